"""Effects that the engine returns. They say what to do; adapters execute them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum, IntEnum
from typing import NamedTuple

from app.core.audit_entry import AuditRecord
from app.core.fairshare.decision import Decision
from app.core.fairshare.usage_record import UsageEnded, UsageStarted
from app.core.model import (
    NO_UID,
    Amounts,
    GrantedClaim,
    Millis,
    NodeName,
    PoolName,
    TenantName,
    Uid,
    UserName,
)
from app.core.placement.scheduler_hints import NodeHint
from app.core.podspec.constraints import Toleration


@dataclass(frozen=True, slots=True)
class PodRef:
    """Address of a pod in the API."""

    uid: Uid
    namespace: str
    name: str


class ListOrder(IntEnum):
    """Section of a user's list of held pods. The sections follow each other in this order."""

    QUEUED = 0
    """First pod of a workload that has a position in the queue."""
    UNQUEUED = 1
    """First pod of a workload that waits without a position, such as an incomplete gang."""
    MEMBER = 2
    """Another pod of a gang. The first pod of the gang stands for it."""


@dataclass(frozen=True, slots=True)
class Enqueue:
    """Store write: this pod waits in this queue. `rank` sorts as text in queue order.

    `pods`: the number of waiting pods of the workload, set on its first pod.
    """

    ref: PodRef
    tenant: TenantName
    user: UserName
    rank: str
    order: ListOrder = ListOrder.QUEUED
    gang: str = ""
    pods: int = 1


@dataclass(frozen=True, slots=True)
class Dequeue:
    """Store write: this pod no longer waits."""

    uid: Uid


UNKNOWN_START = Millis(0)


@dataclass(frozen=True, slots=True)
class Intend:
    """Store write before the patch: this pod may have been released.

    `begin`: the time from which it counts as used, 0 if unknown.
    """

    ref: PodRef
    tenant: TenantName
    user: UserName
    pool: PoolName
    demand: Amounts
    epoch: int
    sequence: int
    begin: Millis = UNKNOWN_START

    @property
    def stamp(self) -> str:
        """Return the release annotation after the patch: epoch and number of the release."""
        return f"{self.epoch}.{self.sequence}"


@dataclass(frozen=True, slots=True)
class Charge:
    """Store write: usage of this pod. Also removes its intent."""

    uid: Uid
    tenant: TenantName
    user: UserName
    pool: PoolName
    demand: Amounts


@dataclass(frozen=True, slots=True)
class Refund:
    """Store write: this pod has no usage. Removes its charge and its intent."""

    uid: Uid


StoreWrite = Enqueue | Dequeue | Intend | Charge | Refund | UsageStarted | UsageEnded
"""All writes of the leader to the store. Each is idempotent, keyed by the pod's uid.

Usage records survive a rebuild: they are the only record of past usage, not a copy.
"""


@dataclass(frozen=True, slots=True)
class Release:
    """Release this pod: write the intent, patch, confirm, then send `ReleaseAnswered`.

    `expected_annotation`: the release annotation that the patch must find. "" means that the owner
    removed it
        and it must be written first.
    `selector`, `tolerations`, `labels`: additions of the patch to the pod.
    `has_*`: which parent fields exist in the pod.
    """

    intent: Intend
    expected_annotation: str
    selector: Mapping[str, str]
    labels: Mapping[str, str]
    has_selector: bool
    has_labels: bool
    has_annotations: bool
    preemptible: bool
    """Whether all pods that are released together may be evicted. The patch writes it to each of
    them, so that the decision stays true."""
    waiting_since: Millis
    """When the pod started to wait."""
    node: NodeName | None = None
    """Node with enough free capacity. The scheduler may choose another node of the pool."""
    decision: Decision | None = None
    """Why the pod was next in fair order."""
    tolerations: tuple[Toleration, ...] = ()
    has_tolerations: bool = False
    node_hint: NodeHint | None = None
    """How the patch directs the scheduler to that node."""
    batch_size: int = 1
    """Number of consecutive releases of one gang, this one included."""
    claims: tuple[GrantedClaim, ...] = ()
    """The resource claims of the pod. They are protected first, then recorded by the patch."""
    generated_claims: frozenset[str] = frozenset()
    """Names of the claims that the pod, or its pod group, must control."""

    @property
    def stamp(self) -> str:
        """Return the release annotation of its intent."""
        return self.intent.stamp


@dataclass(frozen=True, slots=True)
class Rebuild:
    """Take over the store for this epoch and make it equal to `Engine.store_writes()`.

    The engine releases no pod before `StoreReady`, the answer.
    """

    epoch: int


class ReclaimCause(Enum):
    """Why a workload is evicted for another one."""

    GUARANTEE = "guarantee"
    """The other workload is within its tenant's guarantee."""
    FAIR = "fair"
    """The other workload's tenant borrows less, even after the eviction."""
    PRIORITY = "withinQueue"
    """The other workload is in the same queue and has a higher priority."""

    @property
    def explanation(self) -> str:
        """Return the reason for people, from the victim's point of view."""
        match self:
            case ReclaimCause.GUARANTEE:
                return "it reclaims its guarantee; this pod ran on borrowed capacity"
            case ReclaimCause.FAIR:
                return "it borrows less than the tenant of this, which ran on borrowed capacity"
            case ReclaimCause.PRIORITY:
                return "it is of the same user and has a higher priority"


class BorrowedShares(NamedTuple):
    """Weighted borrowed shares after a reclaim: the victim's first.

    They are of the two siblings where the paths to both tenants part. `names` describes them.
    """

    shares: tuple[float, float]
    names: tuple[str, str]


NOT_COMPARED = BorrowedShares((0.0, 0.0), ("", ""))


@dataclass(frozen=True, slots=True)
class EvictForReclaim:
    """Evict this pod so that another can start. The answer is `PodGone` or `EvictionRefused`.

    `beneficiary`: first pod of the workload that will start in `pool`.
    `batch_size`: number of pods that are evicted together, all or none. Their effects are
        consecutive.
    `overrides`: delete the pod if a disruption budget blocks the eviction.
    """

    ref: PodRef
    tenant: TenantName
    user: UserName
    beneficiary: PodRef
    beneficiary_tenant: TenantName
    cause: ReclaimCause
    pool: PoolName
    weighted_shares: BorrowedShares = NOT_COMPARED
    batch_size: int = 1
    overrides: bool = False


@dataclass(frozen=True, slots=True)
class GiveReclaimNotice:
    """Tell this pod that a reclaim evicts it at `ends_at`. Repeated until it is observed.

    `why` is a clause. `has_responders`: other programs help with the eviction; ask them, too.
    """

    ref: PodRef
    ends_at: Millis
    why: str
    has_responders: bool = False


@dataclass(frozen=True, slots=True)
class WithdrawReclaimNotice:
    """Remove the notice of this pod, because it stays. Repeated until it is observed."""

    ref: PodRef
    has_responders: bool = False


@dataclass(frozen=True, slots=True)
class ReclaimOnCooldown:
    """Report that the reclaim cooldown protects the pods of `tenant` from this workload.

    Pods of `beneficiary_tenant` were recently evicted for `tenant` in that pool. The cooldown ends
    at `until`. Reported once.
    """

    beneficiary: PodRef
    beneficiary_tenant: TenantName
    tenant: TenantName
    pool: PoolName
    until: Millis


@dataclass(frozen=True, slots=True)
class WakeAt:
    """Send a `Pass` at this time at the latest, because a timer expires then."""

    at: Millis


@dataclass(frozen=True, slots=True)
class Adopt:
    """Annotate this pod as adopted, with the labels of a release. Repeated until it is observed.

    `claims` are its current resource claims.
    """

    ref: PodRef
    labels: Mapping[str, str]
    claims: tuple[GrantedClaim, ...] = ()


@dataclass(frozen=True, slots=True)
class ClearAuditMarker:
    """Remove the audit marker `key`, see `AuditRecord.audit_markers`."""

    key: str


@dataclass(frozen=True, slots=True)
class Bypassed:
    """Report that this pod runs without a release. It counts as used.

    `stamp` is its release annotation, `since` its creation time. A released pod is reported if it
    uses another claim than the granted one: then `claim` and `claim_uid` are the claim it uses,
    `gained` is the amount by which that claim exceeds the granted one.
    """

    ref: PodRef
    tenant: TenantName
    user: UserName
    node: NodeName | None
    stamp: str
    since: Millis
    claim: str = ""
    claim_uid: Uid = NO_UID
    gained: Amounts = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ClaimDeleted:
    """Report that a resource claim of a released, unbound pod is being deleted.

    The pod gains no advantage: the finalizer keeps the name of the claim occupied.
    """

    ref: PodRef
    tenant: TenantName
    user: UserName
    claim: str
    claim_uid: Uid


@dataclass(frozen=True, slots=True)
class ClaimAddress:
    """Address of a resource claim in the API."""

    uid: Uid
    namespace: str
    name: str


@dataclass(frozen=True, slots=True)
class ProtectClaim:
    """Add Fairgate's finalizer to this resource claim. Repeated until it is observed."""

    ref: ClaimAddress


@dataclass(frozen=True, slots=True)
class UnprotectClaim:
    """Remove Fairgate's finalizer from this resource claim. Repeated until it is observed.

    `version` is the resourceVersion at which no pod used it. At another version it stays.
    """

    ref: ClaimAddress
    version: str


@dataclass(frozen=True, slots=True)
class EvictPod:
    """Evict this pod for its own sake, not for another pod. Repeated until it is gone.

    The answer `EvictionRefused` means that it stays for now. `why` is a sentence. `cause` is one of
    `unbound` (no node took it), `bypass` (never released), `ownerless` and `idle` (stale).
    """

    ref: PodRef
    why: str
    cause: str = "unbound"


@dataclass(frozen=True, slots=True)
class NodeRefused:
    """Report that a node refused a released pod. The node is not used until `until`.

    `reason` is one of a few fixed words, see `node_refusals`.
    """

    ref: PodRef
    tenant: TenantName
    node: NodeName
    pool: PoolName
    reason: str
    until: Millis


class EventReason(Enum):
    """Reasons of the Kubernetes events on pods."""

    HELD = "Held"
    WAITING = "Waiting"
    RELEASED = "Released"
    RECLAIMED = "Reclaimed"
    REFUSED = "Refused"
    USELESS = "Useless"
    NODE_REFUSED = "NodeRefused"
    RECLAIM_NOTICE = "ReclaimNotice"


@dataclass(frozen=True, slots=True)
class EmitEvent:
    """Emit a Kubernetes event on the pod, for its owner. Best effort.

    `message` "": the wait reason that the pod has when the event is sent. The pod gets no event if
    it does not wait then.
    `explains_wait`: the pod waited or still waits, so a release is told even before `Held` was.
    """

    ref: PodRef
    reason: EventReason
    message: str = ""
    explains_wait: bool = False


Effect = (
    Enqueue
    | Dequeue
    | Charge
    | Refund
    | UsageStarted
    | UsageEnded
    | Rebuild
    | Release
    | EvictForReclaim
    | GiveReclaimNotice
    | WithdrawReclaimNotice
    | ReclaimOnCooldown
    | Adopt
    | Bypassed
    | ClaimDeleted
    | ProtectClaim
    | UnprotectClaim
    | NodeRefused
    | EvictPod
    | WakeAt
    | EmitEvent
    | AuditRecord
    | ClearAuditMarker
)
