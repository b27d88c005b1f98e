"""The Protocols between the core and the world. Rooms implement them; wiring hands them over."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from app.core.effects import Adopt, Intend, PodRef, Release, StoreWrite, Tell
from app.core.events import ClusterEvent
from app.core.fair.checkpoint import Checkpoint
from app.core.fair.runs import Run
from app.core.model import Answer, Millis, PoolName, Resource, TenantName, Uid
from app.core.telling.pressure import Pressure
from app.core.telling.views import View


class EventSink(Protocol):
    """Where watches put what they saw. Awaiting it is the back-pressure."""

    async def put(self, event: ClusterEvent, /) -> None: ...


class Notes(Protocol):
    """What the audit chain last told of what is there, kept with it. All raise StoreError."""

    async def noted(self) -> Mapping[str, str] | None:
        """Return the notes; None: they were lost. After `claim` nobody else adds to them."""

    async def remember(self, epoch: int, notes: Callable[[], Iterable[tuple[str, str]]]) -> None:
        """If the notes were lost, keep these; what was noted since then stands."""


class Store(Notes, Protocol):
    """The leader's copy of its state, in Redis. One caller at a time; all raise StoreError."""

    async def floor(self, known: int = 0) -> int:
        """The highest epoch that ever wrote; 0 for an empty store.

        An epoch too far beyond what is `known` from elsewhere is none: no leader wrote it.
        """

    async def claim(self, epoch: int) -> None:
        """Raise the floor: no older epoch writes from now on. What it wrote stays readable."""

    async def rebuild(self, epoch: int, writes: Iterable[StoreWrite]) -> None:
        """Take the store over for `epoch` and replace all of its contents."""

    async def write(self, epoch: int, writes: Sequence[StoreWrite]) -> None:
        """Apply all writes or none. Raises EpochStale, StoreEmptied, StoreUnavailable."""

    async def intents(self) -> tuple[Intend, ...]:
        """The releases that were begun and not settled."""

    async def running(self) -> tuple[Run, ...]:
        """The runs that were begun and have not ended. After `claim` nobody else adds to them."""


class RunReader(Protocol):
    """What every replica may read of the runs. All raise StoreError."""

    async def running(self) -> tuple[Run, ...]:
        """The runs that go on."""

    def ran(self, after: Millis) -> AsyncIterator[Run]:
        """The runs that ended after this time, by their end; read bit by bit.

        Who reads `running` before it misses none, and may see one in both.
        """

    async def complete_since(self) -> Millis | None:
        """From when on no run is missing; None: nobody can tell yet."""


class RunKeeper(Protocol):
    """Keeps the runs within bounds. May raise StoreError."""

    async def trim(self, epoch: int, now: Millis, before: Millis, most: int) -> bool:
        """Remove some of the runs that ended before, or are too many; True: there may be more.

        The first call notes that runs are complete from `now` on. Raises EpochStale.
        """


class Releaser(Protocol):
    """Changes pods in the API server."""

    async def release(self, order: Release) -> Answer | None:
        """Send the release patch and find out what became of it.

        Returns None when that cannot be told yet: call `look` until it can be.
        """

    async def look(self, order: Release) -> Answer | None:
        """Read the pod and tell what became of an earlier release of it; None: no answer came.

        Raises PodUnyielding if that could only be told by a change that does not get through.
        """

    async def fence(self, ref: PodRef, epoch: int) -> Answer:
        """Make every release patch of an older epoch fail on this pod, if it is still held.

        Returns what became of them. Raises PodUnyielding as `look` does, or another ClusterError.
        """


class Adopter(Protocol):
    """Stamps pods that were there before Fairgate. May raise ClusterError."""

    async def adopt(self, order: Adopt) -> None:
        """Write the stamp and the labels on this very pod; one that is gone is no error."""


class Evictor(Protocol):
    """Evicts pods, as their disruption budgets allow. May raise ClusterError."""

    async def evict(self, ref: PodRef) -> bool:
        """Evict this very pod; True: it goes, or is gone. False: it stays for now."""

    async def kept(self, refs: Sequence[PodRef]) -> Mapping[Uid, str]:
        """Return those who would stay, each with the reason, if all of these were evicted now.

        Nobody is evicted for the answer.
        """


class Owners(Protocol):
    """Knows the controllers of pods. May raise ClusterError."""

    async def missing(self, namespace: str, name: str, uid: str) -> str:
        """Return which controller of this very pod is gone; "": none, or nobody can tell."""


class DeviceUse(Protocol):
    """Knows how busy devices were. May raise ClusterError."""

    async def busiest(self, seconds: int) -> Mapping[tuple[str, str], float]:
        """Return how much of the last so many seconds each pod used its busiest device.

        Keys are namespace and name, values from 0 to 1; who was not measured is left out.
        """


class Installation(Protocol):
    """Knows since when Fairgate is in this cluster. May raise ClusterError."""

    async def since(self, now: Millis) -> Millis:
        """Return since when; if nobody knows, since `now`, and that is kept for ever."""


class Keeper(Protocol):
    """Keeps checkpoints, out of reach of the loss of Redis. May raise ClusterError."""

    async def keep(self, name: TenantName, checkpoint: Checkpoint) -> None:
        """Keep it in the Tenant of that name, in place of the last; a Tenant gone is no error."""

    async def keep_others(self, checkpoints: Mapping[TenantName, Checkpoint]) -> None:
        """Keep those of tenants without a Tenant, all together, in place of the last ones."""

    async def read_others(self) -> Mapping[TenantName, Checkpoint]:
        """Return what `keep_others` kept."""


class Sight(Protocol):
    """What the watches see of the cluster."""

    async def catch_up(self) -> None:
        """Return once the sink was told of all that was so when this was called."""


class Epochs(Protocol):
    """Where the highest epoch is kept outside Redis and the Lease. May raise ClusterError."""

    async def floor(self) -> int:
        """The highest epoch that was ever claimed; 0 if none was."""

    async def claim(self, epoch: int) -> None:
        """Raise the floor to `epoch`. Raises EpochStale if it is there already, or above."""


class Terms(Protocol):
    """Hears when this replica leads."""

    def begin(self, epoch: int) -> None:
        """A term begins: nothing was released in it yet."""

    async def end(self) -> None:
        """The term is over, if one was under way. Returns soon."""


class Announcer(Protocol):
    """Tells people, through Kubernetes events. Never blocks, may drop."""

    def tell(self, notice: Tell) -> None: ...


class StatusWriter(Protocol):
    """Publishes the status of Tenant and Pool resources."""

    async def write_status(self, kind: str, name: str, status: dict[str, object]) -> None:
        """`kind` is `tenants` or `pools`. Merges `status` into the object's own."""


class Leadership(Protocol):
    """One lease, one leader."""

    async def acquire(self, fit: Callable[[], Awaitable[bool]] | None = None) -> int:
        """Wait until this replica leads; return `leaseTransitions` of the lease it took.

        `fit` is asked whenever the lease can be had: who could not lead now leaves it to others.
        """

    def left(self) -> float:
        """Return for how many seconds this replica may still act, by the monotonic clock.

        0 or less: not at all. Nothing may be sent that could take longer.
        """

    async def lost(self) -> None:
        """Wait until leadership has ended."""

    async def give_up(self) -> None:
        """Release the lease politely, so that another replica need not wait for it to lapse."""


class Meters(Protocol):
    """Where the leader's numbers go. Never blocks, never raises."""

    def leading(self, epoch: int | None) -> None:
        """This replica leads under `epoch`; None: it does not lead."""

    def shares(self, view: View) -> None:
        """What every tenant and pool holds now; replaces what was shown before."""

    def pressing(
        self,
        view: View,
        pressure: Mapping[TenantName, Pressure],
        fragmentation: Mapping[PoolName, float],
    ) -> None:
        """What waits of whom, since when, and how much of what is free is of no use."""

    def evicted(self, tenant: TenantName, cause: str, lost: Mapping[Resource, float]) -> None:
        """A pod was evicted; `lost` are the resource-seconds that it had used, in base units."""

    def eviction_refused(self, tenant: TenantName) -> None:
        """A pod of that tenant was to be evicted for another's sake, and stays."""

    def loop_refused(self, tenant: TenantName) -> None:
        """Nobody was evicted for work of that tenant, because that would undo a reclaim."""

    def zombies(self, count: Mapping[tuple[TenantName, str], int]) -> None:
        """How many pods of each tenant hold their place in vain, by the kind of that."""

    def drifted(self, ratio: float) -> None:
        """How much of the published bound the largest drift between siblings has used."""

    def released(
        self,
        tenant: TenantName,
        pool: PoolName,
        answer: Answer,
        seconds: float,
        waited: float | None = None,
    ) -> None:
        """One release ended in `answer` after `seconds`; its pod had waited `waited` seconds."""

    def bypassed(self) -> None:
        """A pod was found past the gate that was never released."""

    def store_failed(self, operation: str) -> None:
        """A call of the store raised StoreError. `operation` is one of a few fixed words."""


class EnforcementMeters(Protocol):
    """Where the numbers of whoever guards enforcement go. Never blocks, never raises."""

    def restored(self, kind: str) -> None:
        """An object of this kind was touched by somebody, and put back."""

    def checked(self, check: str, well: bool | None) -> None:
        """What a canary found; None: it does not look now. `check` is one of a few fixed words."""


@dataclass(frozen=True, slots=True)
class Identity:
    """Who a caller is, as the API server authenticated them."""

    name: str
    uid: str = ""
    groups: tuple[str, ...] = ()
    extra: tuple[tuple[str, tuple[str, ...]], ...] = ()


class Authority(Protocol):
    """Asks the API server who somebody is and what they may do. May raise ClusterError."""

    async def authenticate(self, token: str) -> Identity | None:
        """Return whose token this is; None if it is not valid for Fairgate."""

    async def allows(
        self,
        identity: Identity,
        verb: str,
        resource: str,
        subresource: str = "",
        name: str = "",
        *,
        group: str = "fairgate.io",
        namespace: str = "",
    ) -> bool:
        """Tell whether RBAC grants this; no `name`: on all of them. Group "" is that of pods."""


@dataclass(frozen=True, slots=True, repr=False)
class Secret:
    """What a Secret holds; never printed. `ours`: Fairgate made it, nobody put it there."""

    data: Mapping[str, bytes]
    version: str
    ours: bool


class Secrets(Protocol):
    """Where a certificate is kept between starts. May raise ClusterError."""

    async def read_secret(self, namespace: str, name: str) -> Secret | None:
        """Return what is kept; None if there is nothing."""

    async def create_secret(
        self, namespace: str, name: str, data: Mapping[str, bytes], kind: str = "Opaque"
    ) -> bool:
        """Keep this; False if somebody else was first."""

    async def replace_secret(
        self, namespace: str, name: str, data: Mapping[str, bytes], version: str
    ) -> bool:
        """Keep this in place of the content of that version; False if somebody else was first."""
