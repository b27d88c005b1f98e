"""Events that the engine receives. Every event has its time, because the core has no clock."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum

from app.core.admission.priority_class_twins import PriorityClass
from app.core.effects import Intend
from app.core.fairshare.checkpoint import TenantCheckpoint
from app.core.fairshare.usage_record import UsageRecord
from app.core.lifecycle.stale_pods import StaleReason
from app.core.model import (
    Amounts,
    Millis,
    Node,
    NodeName,
    Pod,
    Pool,
    PoolName,
    ReleaseOutcome,
    Tenant,
    TenantName,
    Uid,
    UnmanagedPod,
)
from app.core.podspec.devices import ResourceSlice
from app.core.podspec.disruption_budget import DisruptionBudget
from app.core.podspec.pod_groups import GangDeclaration
from app.core.podspec.resource_claims import DeviceClass, ResourceClaim
from app.core.policy import Policy


class WatchedSource(Enum):
    """The watched lists."""

    PODS = "pods"
    NODES = "nodes"
    TENANTS = "tenants"
    POOLS = "pools"
    POLICIES = "policies"
    PRIORITIES = "priorities"
    CLAIMS = "resourceclaims"
    CLASSES = "deviceclasses"
    SLICES = "resourceslices"
    JOBS = "jobs"
    JOB_SETS = "jobsets"
    POD_GROUPS = "podgroups.scheduling.x-k8s.io"
    NATIVE_GROUPS = "podgroups.scheduling.k8s.io"
    COMPOSITE_GROUPS = "compositepodgroups"
    BUDGETS = "poddisruptionbudgets"


GROUP_SOURCES = frozenset(
    {
        WatchedSource.JOBS,
        WatchedSource.JOB_SETS,
        WatchedSource.POD_GROUPS,
        WatchedSource.NATIVE_GROUPS,
        WatchedSource.COMPOSITE_GROUPS,
    }
)
"""Lists that only define gang sizes. If one is stale, only its gangs wait."""

REQUIRED_SOURCES = frozenset(WatchedSource) - {WatchedSource.PRIORITIES} - GROUP_SOURCES
"""Lists that the engine must have seen completely, and fresh, before it decides."""


@dataclass(frozen=True, slots=True)
class PodObserved:
    """State of an existing managed pod. Repeats are harmless."""

    at: Millis
    pod: Pod


@dataclass(frozen=True, slots=True)
class UnmanagedPodObserved:
    """An unmanaged pod uses capacity of a node, or belongs to a native PodGroup."""

    at: Millis
    unmanaged_pod: UnmanagedPod


@dataclass(frozen=True, slots=True)
class PodGone:
    """A pod, managed or not, was deleted or is no longer relevant."""

    at: Millis
    uid: Uid


@dataclass(frozen=True, slots=True)
class NodeObserved:
    """State of an existing node."""

    at: Millis
    node: Node


@dataclass(frozen=True, slots=True)
class NodeGone:
    """A node was deleted."""

    at: Millis
    name: NodeName


@dataclass(frozen=True, slots=True)
class TenantObserved:
    """State of an existing Tenant. `pending` and `checkpoint` come from its status.

    `changed_by`, here and below: the user that made the change, "" if unknown.
    """

    at: Millis
    tenant: Tenant
    pending: int = 0
    checkpoint: TenantCheckpoint | None = None
    changed_by: str = ""


@dataclass(frozen=True, slots=True)
class TenantGone:
    """A Tenant was deleted."""

    at: Millis
    name: TenantName


@dataclass(frozen=True, slots=True)
class PoolObserved:
    """State of an existing Pool. `status_capacity`: the capacity in its status, None if absent."""

    at: Millis
    pool: Pool
    changed_by: str = ""
    status_capacity: Amounts | None = None


@dataclass(frozen=True, slots=True)
class PoolGone:
    """A Pool was deleted."""

    at: Millis
    name: PoolName


@dataclass(frozen=True, slots=True)
class PolicyObserved:
    """State of the existing Policy.

    `has_mode`: whether it sets the mode. Otherwise the mode of the installation applies.
    """

    at: Millis
    policy: Policy
    changed_by: str = ""
    has_mode: bool = True
    uid: str = ""


@dataclass(frozen=True, slots=True)
class PolicyGone:
    """The Policy was deleted: the defaults and the mode of the installation apply."""

    at: Millis


@dataclass(frozen=True, slots=True)
class PriorityObserved:
    """State of an existing PriorityClass. The engine reads priorities only from pods."""

    at: Millis
    priority: PriorityClass


@dataclass(frozen=True, slots=True)
class PriorityGone:
    """A PriorityClass was deleted."""

    at: Millis
    name: str


@dataclass(frozen=True, slots=True)
class ClaimObserved:
    """State of an existing ResourceClaim."""

    at: Millis
    claim: ResourceClaim


@dataclass(frozen=True, slots=True)
class ClaimGone:
    """A ResourceClaim was deleted."""

    at: Millis
    namespace: str
    name: str


@dataclass(frozen=True, slots=True)
class ClassObserved:
    """State of an existing DeviceClass."""

    at: Millis
    device_class: DeviceClass


@dataclass(frozen=True, slots=True)
class ClassGone:
    """A DeviceClass was deleted."""

    at: Millis
    name: str


@dataclass(frozen=True, slots=True)
class SliceObserved:
    """State of an existing ResourceSlice."""

    at: Millis
    resource_slice: ResourceSlice


@dataclass(frozen=True, slots=True)
class SliceGone:
    """A ResourceSlice was deleted."""

    at: Millis
    name: str


@dataclass(frozen=True, slots=True)
class GroupObserved:
    """Definition of a gang in a Job, JobSet or PodGroup."""

    at: Millis
    group: GangDeclaration


@dataclass(frozen=True, slots=True)
class GroupGone:
    """The Job, JobSet or PodGroup was deleted. `name` is the gang's."""

    at: Millis
    namespace: str
    name: str


@dataclass(frozen=True, slots=True)
class BudgetObserved:
    """State of an existing PodDisruptionBudget."""

    at: Millis
    budget: DisruptionBudget


@dataclass(frozen=True, slots=True)
class BudgetGone:
    """A PodDisruptionBudget was deleted."""

    at: Millis
    namespace: str
    name: str


@dataclass(frozen=True, slots=True)
class SourceFresh:
    """A list is complete and its watch is live."""

    at: Millis
    source: WatchedSource


@dataclass(frozen=True, slots=True)
class SourceStale:
    """A watch is silent. The cached state of this source may be outdated."""

    at: Millis
    source: WatchedSource


@dataclass(frozen=True, slots=True)
class ReleaseAnswered:
    """Result of a release that the engine requested."""

    at: Millis
    uid: Uid
    outcome: ReleaseOutcome


@dataclass(frozen=True, slots=True)
class EvictionAccepted:
    """The eviction of a pod was accepted: the pod is terminating."""

    at: Millis
    uid: Uid


@dataclass(frozen=True, slots=True)
class ReleaseStuck:
    """The result of a release is unknown for a long time. It counts as used until it is known."""

    at: Millis
    uid: Uid


@dataclass(frozen=True, slots=True)
class EvictionRefused:
    """A pod stays: a disruption budget blocks its eviction, or Fairgate may not evict it."""

    at: Millis
    uid: Uid


@dataclass(frozen=True, slots=True)
class StalePodFound:
    """A pod is idle or orphaned. `why` is a sentence for its owner."""

    at: Millis
    uid: Uid
    reason: StaleReason
    why: str


@dataclass(frozen=True, slots=True)
class StalePodCleared:
    """A pod was checked and is not stale for this reason."""

    at: Millis
    uid: Uid
    reason: StaleReason


@dataclass(frozen=True, slots=True)
class CostlyPod:
    """It took too long to evaluate a pod, or the gang that waits under its uid."""

    at: Millis
    uid: Uid


@dataclass(frozen=True, slots=True)
class StoreReady:
    """Redis is available and holds the engine's state, or is about to receive it."""

    at: Millis


@dataclass(frozen=True, slots=True)
class StoreLost:
    """Redis is unavailable or lost its contents. The leader pauses releases."""

    at: Millis


@dataclass(frozen=True, slots=True)
class Installed:
    """Install time of Fairgate. Pods older than that are adopted.

    Before this event the engine does not judge pods without a gate.
    """

    at: Millis
    installed_at: Millis


@dataclass(frozen=True, slots=True)
class CheckpointsRead:
    """Stored checkpoints of tenants without a Tenant resource. Sent before a term starts."""

    at: Millis
    checkpoints: Mapping[TenantName, TenantCheckpoint]


@dataclass(frozen=True, slots=True)
class LeadershipGained:
    """This engine leads from now on, under this epoch.

    `audit_markers`: the audit markers, or None if they were lost.
    `intents`: releases that the last leader started without a recorded result.
    `unsettled`: those of the intents that may still take effect; their results arrive later.
    `open_records`: the stored open usage records.
    """

    at: Millis
    epoch: int
    audit_markers: Mapping[str, str] | None = field(default_factory=dict)
    intents: tuple[Intend, ...] = ()
    unsettled: tuple[Intend, ...] = ()
    open_records: tuple[UsageRecord, ...] = ()


@dataclass(frozen=True, slots=True)
class LeadershipLost:
    """This engine is a follower from now on."""

    at: Millis


@dataclass(frozen=True, slots=True)
class Pass:
    """Act on all events so far. The caller sends it when no further events are due."""

    at: Millis


SettingsEvent = TenantObserved | TenantGone | PoolObserved | PoolGone | PolicyObserved | PolicyGone
"""Changes of the objects with which administrators configure Fairgate."""

DeviceEvent = ClaimObserved | ClaimGone | ClassObserved | ClassGone | SliceObserved | SliceGone
"""Changes of the objects of dynamic resource allocation."""

ClusterEvent = (
    PodObserved
    | UnmanagedPodObserved
    | PodGone
    | NodeObserved
    | NodeGone
    | SettingsEvent
    | DeviceEvent
    | PriorityObserved
    | PriorityGone
    | GroupObserved
    | GroupGone
    | BudgetObserved
    | BudgetGone
    | SourceFresh
    | SourceStale
)
"""Events that the watches in `kube` emit."""

NewsEvent = (
    ClusterEvent
    | ReleaseAnswered
    | EvictionAccepted
    | ReleaseStuck
    | EvictionRefused
    | StalePodFound
    | StalePodCleared
    | CostlyPod
    | StoreReady
    | StoreLost
    | Installed
    | CheckpointsRead
    | LeadershipGained
    | LeadershipLost
)
"""Events that change the state of the engine."""

Event = NewsEvent | Pass
