"""What the engine shows of itself: frozen values for status, metrics and people."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from fractions import Fraction

from app.core.effects import PodRef
from app.core.model import Amounts, Kind, Millis, NodeName, PoolName, TenantName, Uid, UserName
from app.core.places.growth import Account
from app.core.pods.tracked import GangKey
from app.core.telling.reasons import Rule


@dataclass(frozen=True, slots=True)
class TenantView:
    """What a tenant uses and waits for, its child tenants included.

    `share` is the dominant share of the whole cluster, `used` managed resources per pool,
    `borrowed` what of that exceeds the guarantee, `history` the decayed dominant share of it,
    `disputed` the namespaces it names that an older tenant has, `orphan` that its parent is
    missing or would close a circle, `exists` that there is a Tenant resource.
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
    orphan: bool
    paused: bool
    exists: bool


@dataclass(frozen=True, slots=True)
class PoolView:
    """What a pool offers and what released pods use of it, in managed resources.

    `contested` are nodes it selects that belong to another pool, and which: nothing is released
    into it while there are any.
    `grows`: there is more to come, if pods wait for it.
    `awaiting` pods are released that wait for new nodes of it; after some waited in vain it is
    filled no further than its nodes reach until `closed`.
    """

    capacity: Amounts
    used: Amounts
    nodes: int
    generation: int
    contested: Mapping[NodeName, PoolName]
    paused: bool
    exists: bool
    grows: bool = False
    awaiting: int = 0
    closed: Millis | None = None


@dataclass(frozen=True, slots=True)
class View:
    """Every tenant that exists, uses or waits, and every pool.

    `strays` are the nodes, by name, that offer a managed resource and are in no pool.
    """

    tenants: Mapping[TenantName, TenantView]
    pools: Mapping[PoolName, PoolView]
    strays: tuple[NodeName, ...] = ()


@dataclass(frozen=True, slots=True)
class UserView:
    """A user of a tenant: their weight, managed resources used per pool, and pods that wait."""

    name: UserName
    weight: Fraction
    used: Mapping[PoolName, Amounts]
    pending: int


@dataclass(frozen=True, slots=True)
class NodeView:
    """A node of a pool: managed resources that it offers, and what released pods use of them."""

    name: NodeName
    ready: bool
    capacity: Amounts
    used: Amounts


@dataclass(frozen=True, slots=True)
class HeldView:
    """A workload that waits: a pod, or the held pods of a gang, of which `ref` is the first.

    `position` counts from 1 of `length` in its user's queue; 0: it is not queued. `request` is
    what all of its pods ask for together.
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
    """A pod past the gate that has not finished. `released` is when its use began, if known.

    `pool` is None outside all pools, `node` where it runs or is expected; `adopted`: it was there
    before Fairgate, or was released by hand; `awaits`: its node is still to come.
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


@dataclass(frozen=True, slots=True)
class Reserved:
    """Room that a leader keeps free on nodes of a pool, for work of a tenant."""

    pool: PoolName
    uid: Uid
    tenant: TenantName
    rooms: Mapping[NodeName, Amounts]


@dataclass(frozen=True, slots=True)
class Bulletin:
    """What only a leader knows, as of `at`.

    `drift` is the largest drift between siblings as part of its bound, `refused` how often the
    API server refused to release each pod that rests for that, `banned` the kinds of pods that
    wait because some of theirs were released and found no node, `closed` the pools whose new nodes
    did not come, and until when they are filled no further than their nodes reach, `barred` the
    users for whom alone they are not, `deferred` the gangs that begin anew later, and when.
    """

    at: Millis
    epoch: int
    drift: float
    reserved: tuple[Reserved, ...] = ()
    refused: Mapping[Uid, int] = field(default_factory=dict)
    banned: frozenset[Kind] = frozenset()
    closed: Mapping[PoolName, Millis] = field(default_factory=dict)
    barred: Mapping[tuple[PoolName, Account], Millis] = field(default_factory=dict)
    deferred: Mapping[GangKey, Millis] = field(default_factory=dict)
