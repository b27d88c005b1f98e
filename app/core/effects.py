"""What the engine answers. Values that say what should be done; others do it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum

from app.core.asks.terms import Toleration
from app.core.audit import Record
from app.core.fair.decision import Decision
from app.core.fair.runs import Begun, Ran
from app.core.model import Amounts, Millis, NodeName, PoolName, TenantName, Uid, UserName
from app.core.places.steering import Steer


@dataclass(frozen=True, slots=True)
class PodRef:
    """Enough of a pod to address it in the API."""

    uid: Uid
    namespace: str
    name: str


@dataclass(frozen=True, slots=True)
class Enqueue:
    """Copy to the store: this pod waits in this queue. `rank` sorts as text in queue order."""

    ref: PodRef
    tenant: TenantName
    user: UserName
    rank: str


@dataclass(frozen=True, slots=True)
class Dequeue:
    """Copy to the store: this pod waits no more."""

    uid: Uid


UNTOLD = Millis(0)


@dataclass(frozen=True, slots=True)
class Intend:
    """Copy to the store, before the patch: this pod may have been released.

    `begin`: since when it counts as used; 0: that is not told.
    """

    ref: PodRef
    tenant: TenantName
    user: UserName
    pool: PoolName
    demand: Amounts
    epoch: int
    sequence: int
    begin: Millis = UNTOLD

    @property
    def stamp(self) -> str:
        """The release annotation after the patch: which leader, which of its releases."""
        return f"{self.epoch}.{self.sequence}"


@dataclass(frozen=True, slots=True)
class Charge:
    """Copy to the store: this pod uses this much. Settles its intent if there is one."""

    uid: Uid
    tenant: TenantName
    user: UserName
    pool: PoolName
    demand: Amounts


@dataclass(frozen=True, slots=True)
class Refund:
    """Copy to the store: this pod uses nothing (any more); drops its charge and its intent."""

    uid: Uid


StoreWrite = Enqueue | Dequeue | Intend | Charge | Refund | Begun | Ran
"""Everything the leader copies to the store. Each is idempotent: keyed by the pod's uid.

Runs outlast a rebuild: they are no copy of what is so, but the only record of what was.
"""


@dataclass(frozen=True, slots=True)
class Release:
    """Release this pod: write the intent, patch, confirm; answer with `ReleaseAnswered`.

    `tested` is the release annotation that the patch must find ("": its owner took it away, and
    it must be written again first), `selector` what it adds to the pod's nodeSelector,
    `tolerations` those it adds, `labels` what it sets. The `has_` flags say which parents exist.
    """

    intent: Intend
    tested: str
    selector: Mapping[str, str]
    labels: Mapping[str, str]
    has_selector: bool
    has_labels: bool
    has_annotations: bool
    since: Millis
    """When the pod began to wait."""
    node: NodeName | None = None
    """Where the engine sees room for it; the scheduler may choose another node of the pool."""
    decision: Decision | None = None
    """Why it was its turn."""
    tolerations: tuple[Toleration, ...] = ()
    has_tolerations: bool = False
    steer: Steer | None = None
    """How the scheduler is brought to choose that node."""
    together: int = 1
    """How many releases of one gang are ordered one after another, this one among them."""

    @property
    def stamp(self) -> str:
        """The stamp of its intent."""
        return self.intent.stamp


@dataclass(frozen=True, slots=True)
class Rebuild:
    """Take the store over for this epoch and make it equal `Engine.writes()`.

    Answer with `StoreReady`; nothing is released before.
    """

    epoch: int


class Cause(Enum):
    """Why a workload is evicted for another."""

    GUARANTEE = "guarantee"
    """The other is within its tenant's guarantee."""
    FAIR = "fair"
    """The other's tenant borrows less, even afterwards."""
    PRIORITY = "withinQueue"
    """The other is of the same queue, with a higher priority."""

    @property
    def explanation(self) -> str:
        """Return the reason for people, from the victim's side."""
        match self:
            case Cause.GUARANTEE:
                return "it takes back what it is guaranteed; this ran on borrowed capacity"
            case Cause.FAIR:
                return "it borrows less than the tenant of this, which ran on borrowed capacity"
            case Cause.PRIORITY:
                return "it is of the same user and has a higher priority"


@dataclass(frozen=True, slots=True)
class Evict:
    """Evict this pod, so that another can start. The answer is `PodGone`, or `EvictionRefused`.

    `beneficiary` is the first pod of the workload it makes room for, in `pool`; `compared` are the
    weighted shares that the two tenants borrow once all is done, the victim's first. So many are
    evicted `together`, all or none: they are ordered one after another.
    """

    ref: PodRef
    tenant: TenantName
    user: UserName
    beneficiary: PodRef
    beneficiary_tenant: TenantName
    cause: Cause
    pool: PoolName
    compared: tuple[float, float] = (0.0, 0.0)
    together: int = 1


@dataclass(frozen=True, slots=True)
class LoopRefused:
    """Report that nobody of `tenant` is evicted for this work, because that would undo a reclaim.

    Work of the `beneficiary_tenant` was evicted for that tenant in that pool, not long before
    `until`. Told once.
    """

    beneficiary: PodRef
    beneficiary_tenant: TenantName
    tenant: TenantName
    pool: PoolName
    until: Millis


@dataclass(frozen=True, slots=True)
class WakeAt:
    """Send a `Pass` at this time at the latest: something is due by time alone."""

    at: Millis


@dataclass(frozen=True, slots=True)
class Adopt:
    """Stamp this pod as adopted, with the labels of a release. Asked again until that is seen."""

    ref: PodRef
    labels: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Forget:
    """What the audit chain told of this key need not be known any more: see `Record.notes`."""

    key: str


@dataclass(frozen=True, slots=True)
class Bypassed:
    """Report that this pod got past the gate without a release. It counts as used all the same.

    `stamp` is what its release annotation says, `since` is its creation time.
    """

    ref: PodRef
    tenant: TenantName
    user: UserName
    node: NodeName | None
    stamp: str
    since: Millis


@dataclass(frozen=True, slots=True)
class Expel:
    """Evict this pod for its own sake, not for another's. Asked again until it is gone.

    `EvictionRefused` says that it stays for now. `why` is a sentence, `cause` one of a few fixed
    words: `unbound`, no node took it; `bypass`, it was never released; `ownerless`, `idle`, it
    holds its place in vain.
    """

    ref: PodRef
    why: str
    cause: str = "unbound"


class Notice(Enum):
    """Reasons of the Kubernetes events on pods."""

    HELD = "Held"
    WAITING = "Waiting"
    RELEASED = "Released"
    RECLAIMED = "Reclaimed"
    REFUSED = "Refused"
    USELESS = "Useless"


@dataclass(frozen=True, slots=True)
class Tell:
    """Tell the pod's owner, as a Kubernetes event on the pod. Best effort."""

    ref: PodRef
    notice: Notice
    message: str


Effect = (
    Enqueue
    | Dequeue
    | Charge
    | Refund
    | Begun
    | Ran
    | Rebuild
    | Release
    | Evict
    | LoopRefused
    | Adopt
    | Bypassed
    | Expel
    | WakeAt
    | Tell
    | Record
    | Forget
)
