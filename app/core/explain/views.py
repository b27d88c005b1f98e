"""Read models of the engine: frozen values for status, metrics and people."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from fractions import Fraction

from app.core.effects import PodRef
from app.core.explain.quota_faults import QuotaFaults
from app.core.explain.reasons import Rule
from app.core.lifecycle.pod_record import GangKey
from app.core.model import (
    Amounts,
    BackoffKey,
    Millis,
    NodeName,
    PoolName,
    TenantName,
    Uid,
    UserName,
)
from app.core.placement.autoscaling_backoff import AutoscalingAccount
from app.core.scheduling.blocked_evictions import BlockedReclaim


@dataclass(frozen=True, slots=True)
class TenantView:
    """Usage and pending pods of a tenant, child tenants included.

    `share` is the dominant share of the whole cluster, `used` the managed resources per pool,
    `borrowed` the part beyond the guarantee, `history` the decayed dominant share. `disputed` are
    its namespaces that belong to an older tenant. `parent_fault`: why nothing of it is released, if
    a tenant above it is not valid. `full`: it has no fewer pending pods than its `maxPending`.
    `exists`: there is a Tenant resource. `blocked`: the reclaims for a guarantee that disruption
    budgets forbid. `quota_faults`: why some of its quotas have no full effect.
    """

    parent: TenantName | None
    weight: Fraction
    share: Fraction
    used: Mapping[PoolName, Amounts]
    borrowed: Mapping[PoolName, Amounts]
    history: float
    pending: int
    generation: int
    disputed: tuple[str, ...]
    parent_fault: str
    paused: bool
    exists: bool
    uid: str = ""
    full: bool = False
    blocked: BlockedReclaim | None = None
    quota_faults: QuotaFaults | None = None


@dataclass(frozen=True, slots=True)
class PoolView:
    """Capacity of a pool and usage by released pods, in managed resources.

    `contested` are selected nodes that belong to another pool, with this pool. No pod is released
    into it while there are any. `grows`: it may get more nodes if pods wait for them. `awaiting` is
    the number of released pods that wait for new nodes. `closed` is the end of a backoff after
    missing nodes, in which only existing nodes are filled. `silent` is the number of released pods
    that the scheduler has not looked at. `stalled` is the time since which it binds no such pod.
    `unowned` is the usage per tenant of unowned pods that no node accepted.
    """

    capacity: Amounts
    used: Amounts
    nodes: int
    generation: int
    contested: Mapping[NodeName, PoolName]
    paused: bool
    exists: bool
    uid: str = ""
    grows: bool = False
    awaiting: int = 0
    closed: Millis | None = None
    silent: int = 0
    stalled: Millis | None = None
    unowned: Mapping[TenantName, Amounts] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ClusterView:
    """Every tenant that exists, uses or waits, and every pool.

    `strays` are the nodes, by name, that offer a managed resource and are in no pool.
    """

    tenants: Mapping[TenantName, TenantView]
    pools: Mapping[PoolName, PoolView]
    strays: tuple[NodeName, ...] = ()


@dataclass(frozen=True, slots=True)
class UserView:
    """A user of a tenant: weight, managed resources used per pool, and number of waiting pods."""

    name: UserName
    weight: Fraction
    used: Mapping[PoolName, Amounts]
    pending: int


@dataclass(frozen=True, slots=True)
class NodeView:
    """A node of a pool: its managed resources, and their usage by released pods.

    `domain`: the widest topology domain of its pool, else its zone, else "".
    """

    name: NodeName
    ready: bool
    cordoned: bool
    domain: str
    capacity: Amounts
    used: Amounts


@dataclass(frozen=True, slots=True)
class HeldView:
    """A waiting workload: a pod, or the held pods of a gang with `ref` as the first.

    `position` counts from 1 to `length` in its user's queue; 0: it is not queued. `request` is the
    total of its pods.
    """

    ref: PodRef
    tenant: TenantName
    gang: str
    pods: int
    user: UserName
    priority: int
    since: Millis
    request: Amounts
    pools: tuple[PoolName, ...]
    position: int
    length: int
    rule: Rule
    reason: str


@dataclass(frozen=True, slots=True)
class ReleasedView:
    """An unfinished released pod. `released` is the start of its use, if known.

    `pool` is None outside all pools. `node` is where it runs or is expected. `adopted`: it predates
    Fairgate or was released by hand. `awaits`: it waits for a future node. `lacks` are the missing
    resource claims without which no node accepts it. `said` is a clause with the scheduler's
    message, `elastic` one with the number of pods of its elastic gang. `checkpoint`: its declared
    longest time between two checkpoints.
    """

    ref: PodRef
    tenant: TenantName
    gang: str
    user: UserName
    priority: int
    since: Millis
    request: Amounts
    released: Millis | None
    pool: PoolName | None
    node: NodeName | None
    adopted: bool
    awaits: bool = False
    lacks: tuple[str, ...] = ()
    said: str = ""
    checkpoint: Millis | None = None
    elastic: str = ""


@dataclass(frozen=True, slots=True)
class PublishedReservation:
    """Capacity that a leader reserves on nodes of a pool for a workload of a tenant."""

    pool: PoolName
    uid: Uid
    tenant: TenantName
    rooms: Mapping[NodeName, Amounts]


@dataclass(frozen=True, slots=True)
class LeaderStateMessage:
    """State that only a leader has, as of `at`.

    `drift` is the largest drift between siblings relative to its bound. `refused` is the number of
    refused releases of each pod in backoff. `banned` are the backoff keys of pods that wait because
    identical pods found no node. `closed` are the pools without expected new nodes, and until when
    only their existing nodes are filled. `barred` is the same for single users. `deferred` are the
    gangs that restart later, and when. `postponed` are the pods with an expensive evaluation.
    """

    at: Millis
    epoch: int
    drift: float
    reserved: tuple[PublishedReservation, ...] = ()
    refused: Mapping[Uid, int] = field(default_factory=dict)
    banned: frozenset[BackoffKey] = frozenset()
    closed: Mapping[PoolName, Millis] = field(default_factory=dict)
    barred: Mapping[tuple[PoolName, AutoscalingAccount], Millis] = field(default_factory=dict)
    deferred: Mapping[GangKey, Millis] = field(default_factory=dict)
    postponed: frozenset[Uid] = frozenset()
