"""Types of the core: ids, pods, tenants, pools, nodes, wait reasons.

Values only. They contain no logic except questions about a single value.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum, IntEnum
from fractions import Fraction
from typing import NewType

from app.core.podspec.anti_affinity_terms import AntiAffinityTerm
from app.core.podspec.constraints import (
    NodeConstraints,
    PodDistanceRule,
    RequiredAffinity,
    Taint,
    Toleration,
)

Uid = NewType("Uid", str)
NO_UID = Uid("")
TenantName = NewType("TenantName", str)
UserName = NewType("UserName", str)
PoolName = NewType("PoolName", str)
NodeName = NewType("NodeName", str)
Resource = NewType("Resource", str)

Millis = NewType("Millis", int)
"""Milliseconds since the Unix epoch, or since the start of a simulation."""

Amounts = Mapping[Resource, int]
"""Amounts in base units: millicores of cpu, bytes, whole devices, whole pods."""

NodeSet = tuple[NodeName, ...] | None
"""Names of the only nodes that a pod may use, sorted; None for any node."""

BackoffKey = tuple[TenantName, UserName, frozenset[tuple[Resource, int]]]
"""Key of a backoff: tenant, user and requests. Pods with the same key share one backoff."""

DEFAULT_TENANT = TenantName("default")
"""Parent of the tenants that exist only for a namespace without a Tenant."""

DEFAULT_POOL = PoolName("default")
"""The only pool of a cluster without Pool objects. It contains every node."""

UNKNOWN_USER = UserName("unknown")
"""Submitter of pods that were created before Fairgate was installed."""

UNMAPPED_PREFIX = "ns."


class Phase(Enum):
    """The distinguished values of a pod's `status.phase`."""

    PENDING = "Pending"
    RUNNING = "Running"
    FINISHED = "Finished"


class QosClass(IntEnum):
    """`status.qosClass` of a pod. Lower values are evicted first."""

    BEST_EFFORT = 0
    BURSTABLE = 1
    GUARANTEED = 2


class PlacementStrategy(Enum):
    """Placement strategy of workloads on the nodes of a pool."""

    PACK = "pack"
    SPREAD = "spread"


@dataclass(frozen=True, slots=True)
class TopologyConstraint:
    """Topology constraint of a gang: its nodes share a label value, as a must or a preference."""

    label: str
    required: bool = False


@dataclass(frozen=True, slots=True)
class ClaimRef:
    """One entry of a pod's `spec.resourceClaims` and its claim.

    `name` is "" until the claim is generated. `generated` is True if the claim comes from a
    template.
    """

    entry: str
    name: str
    generated: bool = False


@dataclass(frozen=True, slots=True)
class GrantedClaim:
    """A resource claim for which a pod was released: the object and the amounts it counted as."""

    name: str
    uid: Uid
    amounts: Amounts = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class AffinityPresence:
    """Which parents of node affinity a pod has already. The release patch adds the missing ones.

    `terms`: for each required term whether it has expressions; None for an empty term.
    """

    affinity: bool = False
    nodes: bool = False
    preferred: bool = False
    terms: tuple[bool | None, ...] = ()


NO_AFFINITY = AffinityPresence()


@dataclass(frozen=True, slots=True)
class ReclaimTerms:
    """The notice and the checkpoints of a pod, for its reclaim.

    `notice`: the notice that the pod wants. `checkpoint_interval`: the longest time between two
    checkpoints, None if not declared. `notice_ends_at`: the end of the notice that a leader gave,
    None without a notice.
    `has_responders`: other programs help with its eviction (`evictionResponders`).
    """

    notice: Millis = Millis(0)
    checkpoint_interval: Millis | None = None
    notice_ends_at: Millis | None = None
    has_responders: bool = False


NO_TERMS = ReclaimTerms()


@dataclass(frozen=True, slots=True)
class SchedulerCondition:
    """The `PodScheduled=False` condition that the scheduler wrote on a released pod."""

    reason: str
    message: str = ""

    @property
    def was_judged(self) -> bool:
        """Return whether the scheduler looked for a node. `SchedulerError` is its own failure."""
        return self.reason == "Unschedulable"


PREEMPTS = "PreemptLowerPriority"
"""The preemption policy of pods and pod groups without an explicit one."""


@dataclass(frozen=True, slots=True)
class Pod:
    """One managed pod, as stored in the API server.

    `gates`: all its scheduling gates.
    `release_annotation`: its raw release annotation, "" if absent.
    `created_at`: its creation time.
    `pools`: the pools in the user's annotation; empty for any pool.
    `node_names`: the nodes that its affinity names, as for a pod of a DaemonSet.
    `affinity`: its other required node affinity, or None.
    `tolerations`: all its tolerations.
    `distance_rules`: its rules about the distance to other pods (anti-affinity, topology spread).
    `phase`, `failed`: a `failed` pod is finished without success.
    `grace_ends`: end of its grace period, if it is being deleted.
    `gang`: name of its gang within the namespace, "" without a gang.
    `gang_size`: number of pods in the gang; 0: a group object defines it, see `pod_groups`.
    `gang_min_count`: number of pods that its gang needs to start; 0: all of them.
    `replicated_job`: the replicated job that it belongs to, if its gang is a JobSet.
    `preemption_policy`: its preemption policy, as the API server resolved it.
    `restart_gang`: the gang restarts as a whole if a pod fails before all pods run.
    `refusal_reason`: why its node refused it; "" if it did not, or if that is unknown.
    `owner`: name of its topmost known controller, or "". `owner_creates_pods`: its kind may create
        pods again, unlike a ConfigMap.
    `started_at`: when its node started it. `max_runtime`: its declared run time.
    `budget_reason`: while held, why a disruption budget would block its eviction, or "". Such a pod
        starts only within the guarantee, as if it were not `preemptible`.
    `labels`: the labels that disruption budgets and anti-affinity may select; None if too many.
    `gpu_memory`: bytes that it needs on the devices of its node; 0 if not stated.
    `mirror`: it represents a static pod, which its node runs in any case.
    `gate_removed_by`: the user, other than the leader, that removed the gate; "" if unknown.
    `claims`: its claims for devices.
    `container_requests`: with claims, what its containers request; else None.
    `granted_claims`: the claims for which it was released; None if its annotation lists none.
    `missing_claims`: the claims that do not exist. `missing_class`: a device class that it needs
        and that does not exist. `finalizer_is_new`: the finalizer of a claim was just added.
        `claims_unsettled`: a claim changes so often that its present amounts are not charged.
        `claim_pool`: the pool of a claim that other pods use. `claim_refusal`: why it may not join
        such a claim, or "". `needs_managed`: whether it requests a managed resource.
        `claim_charges` derives these and `demand`.
    `placement_strategy`, `topology`: as its user requested; None leaves it to the pool.
    `too_large`: why it is too large to be released, or "". The rules of such a pod are not read.
    `anti_affinity_terms`: its required anti-affinity, as it affects other pods.
    `excluded_by`: the known rules of existing pods that select it.
    `node_constraints`: cached result of `node_filter.node_constraints_of`.
    `scheduler`: name of its scheduler, "" for the default scheduler.
    `scheduler_may_be_silent`: for a good reason: another scheduler, claims, or a group.
    `scheduler_condition`: condition written by the scheduler, if the pod is released and unbound.
    `reclaim_terms`: the notice and the loss of a reclaim.
    """

    uid: Uid
    namespace: str
    name: str
    user: UserName
    priority: int
    created_at: Millis
    demand: Amounts
    gates: tuple[str, ...] = ()
    release_annotation: str = ""
    node: NodeName | None = None
    pool: PoolName | None = None
    selector: Mapping[str, str] = field(default_factory=dict)
    pools: tuple[PoolName, ...] = ()
    node_names: NodeSet = None
    affinity: RequiredAffinity | None = None
    tolerations: tuple[Toleration, ...] = ()
    distance_rules: tuple[PodDistanceRule, ...] = ()
    phase: Phase = Phase.PENDING
    terminating: bool = False
    grace_ends: Millis | None = None
    has_labels: bool = True
    has_annotations: bool = True
    gang: str = ""
    gang_size: int = 1
    gang_min_count: int = 0
    replicated_job: str = ""
    preemption_policy: str = PREEMPTS
    restart_gang: bool = False
    failed: bool = False
    refusal_reason: str = ""
    owner: str = ""
    owner_creates_pods: bool = True
    started_at: Millis | None = None
    max_runtime: Millis | None = None
    preemptible: bool = True
    labels: Mapping[str, str] | None = field(default_factory=dict)
    budget_reason: str = ""
    gpu_memory: int = 0
    qos_class: QosClass = QosClass.BURSTABLE
    mirror: bool = False
    gate_removed_by: str = ""
    claims: tuple[ClaimRef, ...] = ()
    granted_claims: tuple[GrantedClaim, ...] | None = None
    container_requests: Amounts | None = None
    missing_claims: tuple[str, ...] = ()
    missing_class: str = ""
    finalizer_is_new: bool = False
    claims_unsettled: bool = False
    claim_pool: PoolName | None = None
    claim_refusal: str = ""
    needs_managed: bool = True
    placement_strategy: PlacementStrategy | None = None
    topology: TopologyConstraint | None = None
    affinity_presence: AffinityPresence = NO_AFFINITY
    too_large: str = ""
    anti_affinity_terms: tuple[AntiAffinityTerm, ...] = ()
    excluded_by: tuple[PodDistanceRule, ...] = ()
    node_constraints: NodeConstraints | None = field(
        default=None, init=False, repr=False, compare=False
    )
    scheduler: str = ""
    scheduler_may_be_silent: bool = False
    scheduler_condition: SchedulerCondition | None = None
    reclaim_terms: ReclaimTerms = NO_TERMS

    @property
    def is_owned(self) -> bool:
        """Return whether a controller owns the pod and may create it again."""
        return bool(self.owner) and self.owner_creates_pods


Holder = tuple[str, str]
"""Namespace and name of a pod with anti-affinity that keeps other pods off nodes."""


@dataclass(frozen=True, slots=True)
class UnmanagedPod:
    """A pod that is not managed but uses capacity of a node, or belongs to a native PodGroup.

    `node` is None until it is bound. `anti_affinity_terms` is its required anti-affinity, as it
    affects other pods. `rule_holder` names the pod if it has walls. `group`: namespace and gang
    name of its PodGroup.
    """

    uid: Uid
    node: NodeName | None
    demand: Amounts
    anti_affinity_terms: tuple[AntiAffinityTerm, ...] = ()
    rule_holder: Holder = ("", "")
    group: tuple[str, str] | None = None


@dataclass(frozen=True, slots=True)
class Node:
    """A node. `ready` means ready and schedulable. `allocatable` is in base units.

    `cordoned` means unschedulable, so a cordoned node is not ready.

    `fractions[r]` is the size of one device of a resource that can be shared. A request below one
    device uses a single device. `taints` are those that keep pods off, without those of readiness.

    `readiness_taints`: the others, without values. They change whenever `ready` or `cordoned` does,
    often a moment later, and only some topology spreads depend on them. So they are not compared.
    """

    name: NodeName
    labels: Mapping[str, str]
    allocatable: Amounts
    ready: bool
    device_sizes: Amounts = field(default_factory=dict)
    taints: tuple[Taint, ...] = ()
    cordoned: bool = False
    readiness_taints: tuple[Taint, ...] = field(default=(), compare=False)


@dataclass(frozen=True, slots=True)
class Quota:
    """Guarantee and limit of a tenant in a pool. Resources without a limit are unlimited."""

    guarantee: Amounts = field(default_factory=dict)
    limit: Amounts = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Tenant:
    """A Tenant resource. If two Tenants name the same namespace, the older one (`created`) owns it.

    `uid` distinguishes Tenants of the same name, `generation` versions of the spec.
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
    """A Pool resource.

    `weights`: worth of one unit relative to other pools, 1 where absent.
    `tolerations`: added to a pod at release.
    `topology`: node labels that name the topology domains, widest first.
    `gpu_memory`: bytes of one device, None if not stated.
    `max_capacity`: capacity that the nodes may reach if an autoscaler adds nodes for waiting pods.
    """

    name: PoolName
    selector: Mapping[str, str] = field(default_factory=dict)
    weights: Mapping[Resource, Fraction] = field(default_factory=dict)
    overcommit: Mapping[Resource, Fraction] = field(default_factory=dict)
    placement: PlacementStrategy = PlacementStrategy.PACK
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
    TOO_LARGE = "one of its lists is longer than a bound"
    OTHER_GATE = "it carries a scheduling gate that is not ours to remove"
    NO_TENANT = "its namespace just lost its tenant, or a tenant above it is not valid"
    TENANT_PAUSED = "its tenant is paused"
    GANG_INCOMPLETE = "its gang is not complete"
    GANG_DEFERRED = "its gang lost a pod before the whole gang ran; the gang starts again later"
    CLAIM = "its resource claim is not there yet"
    REFUSED = "the API server refused its release; it is tried again later"
    NO_NODE = "a pod like it found no node; it is tried again later"
    POSTPONED = "the search for its place takes too long; it is tried again later"


class ReleaseOutcome(Enum):
    """Result of one attempt to release a pod."""

    RELEASED = "released"
    GONE = "gone"
    HELD = "held"
    """Certainly not released. The pod waits again."""
    UNSENT = "unsent"
    """The intent could not be written, so no patch was sent."""
