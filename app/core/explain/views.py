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
    `borrowed` the part beyond the guarantee, `history` the decayed dominant share.
    `disputed_namespaces` are its namespaces that belong to an older tenant. `parent_fault`: why
    nothing of it is released, if a tenant above it is not valid. `is_at_max_pending`: it has no
    fewer pending pods than its `maxPending`.
    `exists`: there is a Tenant resource. `blocked_reclaims`: the reclaims for a guarantee that
    disruption budgets forbid. `quota_faults`: why some of its quotas have no full effect.
    """

    parent: TenantName | None
    weight: Fraction
    share: Fraction
    used: Mapping[PoolName, Amounts]
    borrowed: Mapping[PoolName, Amounts]
    history: float
    pending: int
    generation: int
    disputed_namespaces: tuple[str, ...]
    parent_fault: str
    paused: bool
    exists: bool
    uid: str = ""
    is_at_max_pending: bool = False
    blocked_reclaims: BlockedReclaim | None = None
    quota_faults: QuotaFaults | None = None


@dataclass(frozen=True, slots=True)
class PoolView:
    """Capacity of a pool and usage by released pods, in managed resources.

    `contested_nodes` are selected nodes that belong to another pool, with this pool. No pod is
    released into it while there are any. `may_grow`: it may get more nodes if pods wait for them.
    `pods_awaiting_nodes` is the number of released pods that wait for new nodes.
    `growth_closed_until` is the end of a backoff after missing nodes, in which only existing nodes
    are filled. `silent_pods` is the number of released pods that the scheduler has not looked at.
    `stalled_since` is the time since which it binds no such pod. `unowned_usage` is the usage per
    tenant of unowned pods that no node accepted.
    """

    capacity: Amounts
    used: Amounts
    nodes: int
    generation: int
    contested_nodes: Mapping[NodeName, PoolName]
    paused: bool
    exists: bool
    uid: str = ""
    may_grow: bool = False
    pods_awaiting_nodes: int = 0
    growth_closed_until: Millis | None = None
    silent_pods: int = 0
    stalled_since: Millis | None = None
    unowned_usage: Mapping[TenantName, Amounts] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ClusterView:
    """Every tenant that exists, uses or waits, and every pool.

    `nodes_without_pool` are the nodes, by name, that offer a managed resource and are in no pool.
    """

    tenants: Mapping[TenantName, TenantView]
    pools: Mapping[PoolName, PoolView]
    nodes_without_pool: tuple[NodeName, ...] = ()


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
    """An unfinished released pod. `released_at` is the start of its use, if known.

    `pool` is None outside all pools. `node` is where it runs or is expected. `is_adopted`: it
    predates Fairgate or was released by hand. `awaits_node`: it waits for a future node.
    `missing_claims` are the missing resource claims without which no node accepts it.
    `scheduler_message` is a clause with the scheduler's message, `elastic_gang_clause` one with the
    number of pods of its elastic gang. `checkpoint_interval`: its declared longest time between two
    checkpoints.
    """

    ref: PodRef
    tenant: TenantName
    gang: str
    user: UserName
    priority: int
    since: Millis
    request: Amounts
    released_at: Millis | None
    pool: PoolName | None
    node: NodeName | None
    is_adopted: bool
    awaits_node: bool = False
    missing_claims: tuple[str, ...] = ()
    scheduler_message: str = ""
    checkpoint_interval: Millis | None = None
    elastic_gang_clause: str = ""


@dataclass(frozen=True, slots=True)
class PublishedReservation:
    """Capacity that a leader reserves on nodes of a pool for a workload of a tenant."""

    pool: PoolName
    uid: Uid
    tenant: TenantName
    capacity_by_node: Mapping[NodeName, Amounts]


@dataclass(frozen=True, slots=True)
class LeaderStateMessage:
    """State that only a leader has, as of `at`.

    `drift` is the largest drift between siblings relative to its bound. `refusal_counts` is the
    number of refused releases of each pod in backoff. `banned_keys` are the backoff keys of pods
    that wait because identical pods found no node. `growth_closed_until` are the pools without
    expected new nodes, and until when only their existing nodes are filled. `growth_barred_until`
    is the same for single users. `deferred_gangs` are the gangs that restart later, and when.
    `postponed_pods` are the pods with an expensive evaluation.
    """

    at: Millis
    epoch: int
    drift: float
    reservations: tuple[PublishedReservation, ...] = ()
    refusal_counts: Mapping[Uid, int] = field(default_factory=dict)
    banned_keys: frozenset[BackoffKey] = frozenset()
    growth_closed_until: Mapping[PoolName, Millis] = field(default_factory=dict)
    growth_barred_until: Mapping[tuple[PoolName, AutoscalingAccount], Millis] = field(
        default_factory=dict
    )
    deferred_gangs: Mapping[GangKey, Millis] = field(default_factory=dict)
    postponed_pods: frozenset[Uid] = frozenset()
