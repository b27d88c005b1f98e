"""The words of the house as types: ids, pods, tenants, pools, nodes, and what a pod waits for.

Values only. No behaviour beyond what a value says about itself.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum, IntEnum
from fractions import Fraction
from typing import NewType

from app.core.asks.terms import Affinity, Spacing, Taint, Toleration

Uid = NewType("Uid", str)
TenantName = NewType("TenantName", str)
UserName = NewType("UserName", str)
PoolName = NewType("PoolName", str)
NodeName = NewType("NodeName", str)
Resource = NewType("Resource", str)

Millis = NewType("Millis", int)
"""Milliseconds since the Unix epoch, or since the start of a simulation."""

Amounts = Mapping[Resource, int]
"""Amounts in base units: millicores of cpu, bytes, whole devices, whole pods."""

Pin = tuple[NodeName, ...] | None
"""The only nodes that a pod may go to, sorted; None: any."""

Kind = tuple[TenantName, UserName, frozenset[tuple[Resource, int]]]
"""What makes pods alike to whoever judges them by what became of others: whose, and how much."""

GATE = "fairgate.io/queue"
LABEL_TENANT = "fairgate.io/tenant"
LABEL_POOL = "fairgate.io/pool"
LABEL_USER = "fairgate.io/user"
ANNOTATION_SUBMITTER = "fairgate.io/submitter"
ANNOTATION_RELEASE = "fairgate.io/release"
ANNOTATION_POOLS = "fairgate.io/pools"
ANNOTATION_PREEMPTIBLE = "fairgate.io/preemptible"
ANNOTATION_MAX_RUNTIME = "fairgate.io/max-runtime"
ANNOTATION_GPU_MEMORY = "fairgate.io/gpu-memory"
ANNOTATION_MODEL_SIZE = "fairgate.io/model-size"
ANNOTATION_CHANGED_BY = "fairgate.io/changed-by"
ANNOTATION_CHANGED = "fairgate.io/changed"
ANNOTATION_GANG = "fairgate.io/gang"
ANNOTATION_GANG_SIZE = "fairgate.io/gang-size"
ANNOTATION_PLACEMENT = "fairgate.io/placement"
ANNOTATION_TOPOLOGY = "fairgate.io/topology"
ANNOTATION_GANG_FAILURE = "fairgate.io/gang-failure"
ANNOTATION_MIRROR = "kubernetes.io/config.mirror"

HELD = "0"
"""Value of the release annotation that the webhook writes."""

ADOPTED = "adopted"
"""Its value on pods that run without a release, and rightly: they were there before us."""

DEFAULT_TENANT = TenantName("default")
"""Parent of every tenant that stands for a namespace nobody mapped."""

DEFAULT_POOL = PoolName("default")
"""The one pool of a cluster without Pool objects: every node."""

UNKNOWN_USER = UserName("unknown")
"""Submitter of pods that were created before Fairgate was installed."""

UNMAPPED_PREFIX = "ns."


class Phase(Enum):
    """`status.phase` of a pod, as far as it matters here."""

    PENDING = "Pending"
    RUNNING = "Running"
    FINISHED = "Finished"


class Quality(IntEnum):
    """`status.qosClass` of a pod; the lower is evicted first."""

    BEST_EFFORT = 0
    BURSTABLE = 1
    GUARANTEED = 2


class Style(Enum):
    """How workloads are laid out over the nodes of a pool."""

    PACK = "pack"
    SPREAD = "spread"


@dataclass(frozen=True, slots=True)
class Near:
    """That the pods of a gang must, or had better, stand on nodes with one value of a label."""

    label: str
    required: bool = False


@dataclass(frozen=True, slots=True)
class ClaimRef:
    """One entry of a pod's `spec.resourceClaims`, and the claim it means.

    `name` is "" before a claim was generated; `generated`: only one made for the pod will do.
    """

    entry: str
    name: str
    generated: bool = False


@dataclass(frozen=True, slots=True)
class Bounds:
    """What is written already where a release may add node affinity: which parents there are.

    `terms`: for each required term, whether it has expressions; None for one that is empty.
    """

    affinity: bool = False
    nodes: bool = False
    preferred: bool = False
    terms: tuple[bool | None, ...] = ()


NO_BOUNDS = Bounds()


@dataclass(frozen=True, slots=True)
class Pod:
    """One managed pod, as the API server stores it.

    `gates` are all its scheduling gates, `release` the raw release annotation ("" if absent),
    `since` its creation time, `pools` what the user's pools annotation names (empty: any),
    `only` the nodes that its affinity names, as that of a DaemonSet's pod does, `affinity` what
    else it requires of nodes (None: nothing), `tolerations` all of its own, `spacings` its rules
    about the distance to others of its kind.
    `gang` names the gang within the namespace ("": none), `gang_size` how many pods it has (0:
    see `groups`), `gang_anew` that it begins again as a whole if one fails before all run.
    `failed`: it is finished, and did not succeed.
    `owner` names the controller at the top, as far as the pod tells ("": none).
    `style` and `near` are how its user wants it laid out (None: that is left to the pool).
    `started` is when its node took it up, `max_runtime` what its owner declared.
    `gpu_memory`: bytes that it needs on the devices of its node (0: it does not say).
    `mirror`: it stands for a static pod, which its node runs whatever becomes of this one.
    `freed_by`: who, other than the leader, took our gate away; "" if that was not told.

    A pod with `claims` for devices has in `plain` what its containers ask for (else None). From
    that follow its demand, the claims it `awaits`, the pool it is `tied` to by a claim that others
    use there, and whether it `asks` for anything managed at all: see `claimants`.
    """

    uid: Uid
    namespace: str
    name: str
    user: UserName
    priority: int
    since: Millis
    demand: Amounts
    gates: tuple[str, ...] = ()
    release: str = ""
    node: NodeName | None = None
    pool: PoolName | None = None
    selector: Mapping[str, str] = field(default_factory=dict)
    pools: tuple[PoolName, ...] = ()
    only: Pin = None
    affinity: Affinity | None = None
    tolerations: tuple[Toleration, ...] = ()
    spacings: tuple[Spacing, ...] = ()
    phase: Phase = Phase.PENDING
    terminating: bool = False
    has_labels: bool = True
    has_annotations: bool = True
    gang: str = ""
    gang_size: int = 1
    gang_anew: bool = False
    failed: bool = False
    owner: str = ""
    started: Millis | None = None
    max_runtime: Millis | None = None
    preemptible: bool = True
    gpu_memory: int = 0
    quality: Quality = Quality.BURSTABLE
    mirror: bool = False
    freed_by: str = ""
    claims: tuple[ClaimRef, ...] = ()
    plain: Amounts | None = None
    awaits: tuple[str, ...] = ()
    tied: PoolName | None = None
    asks: bool = True
    style: Style | None = None
    near: Near | None = None
    bounds: Bounds = NO_BOUNDS


@dataclass(frozen=True, slots=True)
class Bystander:
    """A pod that is not managed but takes room on a node."""

    uid: Uid
    node: NodeName
    demand: Amounts


@dataclass(frozen=True, slots=True)
class Node:
    """A node: `ready` means ready and schedulable; `allocatable` in base units.

    `fractions[r]` is the size of one device of a resource that is sold in fractions: less than
    one device comes from a single device. `taints` are those that keep pods off it, its readiness
    aside.
    """

    name: NodeName
    labels: Mapping[str, str]
    allocatable: Amounts
    ready: bool
    fractions: Amounts = field(default_factory=dict)
    taints: tuple[Taint, ...] = ()


@dataclass(frozen=True, slots=True)
class Quota:
    """What a tenant may always have of a pool, and what it may never exceed there.

    A resource that the limit does not name is unlimited.
    """

    guarantee: Amounts = field(default_factory=dict)
    limit: Amounts = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Tenant:
    """A Tenant resource. `created` decides who keeps a namespace that two of them name.

    `uid` tells it from another of its name, `generation` what is configured from what was before.
    """

    name: TenantName
    created: Millis
    weight: Fraction = Fraction(1)
    parent: TenantName | None = None
    namespaces: tuple[str, ...] = ()
    user_weights: Mapping[UserName, Fraction] = field(default_factory=dict)
    pools: tuple[PoolName, ...] = ()
    quotas: Mapping[PoolName, Quota] = field(default_factory=dict)
    max_pending: int | None = None
    paused: bool = False
    generation: int = 0
    uid: str = ""


@dataclass(frozen=True, slots=True)
class Pool:
    """A Pool resource. `weights`: worth of one unit next to other pools, 1 where absent.

    `tolerations` are added, at release, to those of a pod.
    `topology`: labels of its nodes that name the domains they are in, the widest first.
    `gpu_memory`: bytes of one device, None if nobody wrote it; `max_capacity`: what its nodes may
    come to offer, where somebody adds nodes when pods wait for them.
    """

    name: PoolName
    selector: Mapping[str, str] = field(default_factory=dict)
    weights: Mapping[Resource, Fraction] = field(default_factory=dict)
    overcommit: Mapping[Resource, Fraction] = field(default_factory=dict)
    placement: Style = Style.PACK
    tolerations: tuple[Toleration, ...] = ()
    topology: tuple[str, ...] = ()
    paused: bool = False
    gpu_memory: int | None = None
    max_capacity: Amounts = field(default_factory=dict)
    generation: int = 0
    uid: str = ""


class Wait(Enum):
    """Why a held pod waits."""

    TURN = "waits for its turn"
    NO_POOL = "no pool can serve it"
    OTHER_GATE = "it carries a scheduling gate that is not ours to remove"
    TENANT_PAUSED = "its tenant is paused"
    GANG_INCOMPLETE = "its gang is not complete"
    GANG_DEFERRED = "its gang lost a pod before all of it ran; it begins anew later"
    CLAIM = "its resource claim is not there yet"
    REFUSED = "the API server refused its release; it is tried again later"
    NO_NODE = "a pod like it found no node; it is tried again later"


class Answer(Enum):
    """What became of one attempt to release a pod."""

    RELEASED = "released"
    GONE = "gone"
    HELD = "held"
    """Certainly not released: it waits again."""
    UNSENT = "unsent"
    """The intent could not be written, so nothing was tried."""
