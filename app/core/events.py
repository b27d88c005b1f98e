"""What the engine hears. Every event carries its time: nothing in the core asks what time it is."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum

from app.core.admission.priorities import PriorityClass
from app.core.asks.claims import ResourceClaim
from app.core.asks.groups import Group
from app.core.effects import Intend
from app.core.fair.checkpoint import Checkpoint
from app.core.fair.runs import Run
from app.core.model import (
    Amounts,
    Answer,
    Bystander,
    Millis,
    Node,
    NodeName,
    Pod,
    Pool,
    PoolName,
    Resource,
    Tenant,
    TenantName,
    Uid,
)
from app.core.pods.vain import Vain
from app.core.policy import Policy


class Source(Enum):
    """The lists that watches follow."""

    PODS = "pods"
    NODES = "nodes"
    TENANTS = "tenants"
    POOLS = "pools"
    POLICIES = "policies"
    PRIORITIES = "priorities"
    CLAIMS = "resourceclaims"
    CLASSES = "deviceclasses"
    JOBS = "jobs"
    JOB_SETS = "jobsets"
    POD_GROUPS = "podgroups.scheduling.x-k8s.io"
    NATIVE_GROUPS = "podgroups.scheduling.k8s.io"


GROUPS = frozenset({Source.JOBS, Source.JOB_SETS, Source.POD_GROUPS, Source.NATIVE_GROUPS})
"""The lists that only tell how many pods a gang has: without them, only such gangs wait."""

NEEDED = frozenset(Source) - {Source.PRIORITIES} - GROUPS
"""The lists the engine must have seen whole, and fresh, before it decides anything."""


@dataclass(frozen=True, slots=True)
class PodObserved:
    """A managed pod exists in this state. Repeats are harmless."""

    at: Millis
    pod: Pod


@dataclass(frozen=True, slots=True)
class BystanderObserved:
    """A pod that is not managed takes room on a node."""

    at: Millis
    bystander: Bystander


@dataclass(frozen=True, slots=True)
class PodGone:
    """A pod, managed or not, exists no more, or no longer concerns us."""

    at: Millis
    uid: Uid


@dataclass(frozen=True, slots=True)
class NodeObserved:
    """A node exists in this state."""

    at: Millis
    node: Node


@dataclass(frozen=True, slots=True)
class NodeGone:
    """A node exists no more."""

    at: Millis
    name: NodeName


@dataclass(frozen=True, slots=True)
class TenantObserved:
    """A Tenant resource exists in this state. `pending`, `checkpoint`: what its status says.

    `by` made it so, as far as the API server told: "" if nobody can tell. The same below.
    """

    at: Millis
    tenant: Tenant
    pending: int = 0
    checkpoint: Checkpoint | None = None
    by: str = ""


@dataclass(frozen=True, slots=True)
class TenantGone:
    """A Tenant resource exists no more."""

    at: Millis
    name: TenantName


@dataclass(frozen=True, slots=True)
class PoolObserved:
    """A Pool resource exists in this state. `offered`: the capacity that its status tells, if
    a leader has told any.
    """

    at: Millis
    pool: Pool
    by: str = ""
    offered: Amounts | None = None


@dataclass(frozen=True, slots=True)
class PoolGone:
    """A Pool resource exists no more."""

    at: Millis
    name: PoolName


@dataclass(frozen=True, slots=True)
class PolicyObserved:
    """The Policy exists in this state."""

    at: Millis
    policy: Policy
    by: str = ""


@dataclass(frozen=True, slots=True)
class PolicyGone:
    """The Policy exists no more: its defaults hold."""

    at: Millis


@dataclass(frozen=True, slots=True)
class PriorityObserved:
    """A PriorityClass exists in this state. The engine reads priorities from pods alone."""

    at: Millis
    priority: PriorityClass


@dataclass(frozen=True, slots=True)
class PriorityGone:
    """A PriorityClass exists no more."""

    at: Millis
    name: str


@dataclass(frozen=True, slots=True)
class ClaimObserved:
    """A ResourceClaim exists in this state."""

    at: Millis
    claim: ResourceClaim


@dataclass(frozen=True, slots=True)
class ClaimGone:
    """A ResourceClaim exists no more."""

    at: Millis
    namespace: str
    name: str


@dataclass(frozen=True, slots=True)
class ClassObserved:
    """A DeviceClass exists. `stated` is its `spec.extendedResourceName`, None for none."""

    at: Millis
    name: str
    stated: Resource | None


@dataclass(frozen=True, slots=True)
class ClassGone:
    """A DeviceClass exists no more."""

    at: Millis
    name: str


@dataclass(frozen=True, slots=True)
class GroupObserved:
    """A Job, JobSet or PodGroup says this of a gang."""

    at: Millis
    group: Group


@dataclass(frozen=True, slots=True)
class GroupGone:
    """It exists no more. `name` is that of the gang."""

    at: Millis
    namespace: str
    name: str


@dataclass(frozen=True, slots=True)
class SourceFresh:
    """A list is complete and its watch is live."""

    at: Millis
    source: Source


@dataclass(frozen=True, slots=True)
class SourceStale:
    """A watch fell silent: what is known of this source may be old."""

    at: Millis
    source: Source


@dataclass(frozen=True, slots=True)
class ReleaseAnswered:
    """What became of a release the engine asked for."""

    at: Millis
    uid: Uid
    answer: Answer


@dataclass(frozen=True, slots=True)
class EvictionAccepted:
    """A pod that was to be evicted is on its way out."""

    at: Millis
    uid: Uid


@dataclass(frozen=True, slots=True)
class ReleaseStuck:
    """What became of a release cannot be told for long. It counts as used until it is answered."""

    at: Millis
    uid: Uid


@dataclass(frozen=True, slots=True)
class EvictionRefused:
    """A pod that was to be evicted stays: a disruption budget forbids it, or nobody may ask."""

    at: Millis
    uid: Uid


@dataclass(frozen=True, slots=True)
class FoundUseless:
    """A pod holds its place in vain; `why` is a sentence for its owner."""

    at: Millis
    uid: Uid
    kind: Vain
    why: str


@dataclass(frozen=True, slots=True)
class FoundUseful:
    """A pod was looked at, and does not hold its place in vain for this reason."""

    at: Millis
    uid: Uid
    kind: Vain


@dataclass(frozen=True, slots=True)
class StoreReady:
    """Redis answers and holds what the engine knows (or is about to be told all of it)."""

    at: Millis


@dataclass(frozen=True, slots=True)
class StoreLost:
    """Redis does not answer or lost its contents: nothing is released meanwhile."""

    at: Millis


@dataclass(frozen=True, slots=True)
class Installed:
    """Fairgate has been in this cluster since then; pods older than that are adopted.

    Before it is heard, nobody past the gate is judged.
    """

    at: Millis
    since: Millis


@dataclass(frozen=True, slots=True)
class CheckpointsRead:
    """What was kept of tenants without a Tenant resource. Heard before a term begins."""

    at: Millis
    checkpoints: Mapping[TenantName, Checkpoint]


@dataclass(frozen=True, slots=True)
class LeadershipGained:
    """This engine decides from now on, under this epoch.

    `notes` are what the audit chain last told of what is there, None if nobody knows any more;
    `intents` the releases that the last leader began and never settled; those of them in
    `unsettled` may still happen, and are answered later. `running` are the runs that were kept and
    have not ended, as far as that was kept.
    """

    at: Millis
    epoch: int
    notes: Mapping[str, str] | None = field(default_factory=dict)
    intents: tuple[Intend, ...] = ()
    unsettled: tuple[Intend, ...] = ()
    running: tuple[Run, ...] = ()


@dataclass(frozen=True, slots=True)
class LeadershipLost:
    """This engine only follows from now on."""

    at: Millis


@dataclass(frozen=True, slots=True)
class Pass:
    """Act on everything heard so far. Whoever carries events in sends it when no more are due."""

    at: Millis


ClusterEvent = (
    PodObserved
    | BystanderObserved
    | PodGone
    | NodeObserved
    | NodeGone
    | TenantObserved
    | TenantGone
    | PoolObserved
    | PoolGone
    | PolicyObserved
    | PolicyGone
    | PriorityObserved
    | PriorityGone
    | ClaimObserved
    | ClaimGone
    | ClassObserved
    | ClassGone
    | GroupObserved
    | GroupGone
    | SourceFresh
    | SourceStale
)
"""What the watches of `kube` emit."""

NewsEvent = (
    ClusterEvent
    | ReleaseAnswered
    | EvictionAccepted
    | ReleaseStuck
    | EvictionRefused
    | FoundUseless
    | FoundUseful
    | StoreReady
    | StoreLost
    | Installed
    | CheckpointsRead
    | LeadershipGained
    | LeadershipLost
)
"""What changes what the engine knows."""

Event = NewsEvent | Pass
