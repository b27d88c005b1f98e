"""An in-memory store with the same answers and errors as Redis.

`Contents` is also the reference model for the real store: it counts from scratch.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import assert_never

from app.core.effects import Charge, Dequeue, Enqueue, Intend, ListOrder, Refund, StoreWrite
from app.core.errors import EpochStale, StoreEmptied, StoreUnavailable
from app.core.explain.queue_listing import PageMark, QueueRow
from app.core.explain.views import LeaderStateMessage
from app.core.fairshare.usage_record import UsageEnded, UsageRecord, UsageStarted
from app.core.fairshare.user_queue import QueueKey
from app.core.model import PoolName, Resource, TenantName, Uid, UserName
from app.ports.store import PendingCount, UsedAmount
from tests.fakes.fake_usage_records import Runs


@dataclass(slots=True)
class Contents:
    """The state that results from a list of writes."""

    held: dict[Uid, Enqueue] = field(default_factory=dict)
    taken: dict[Uid, Intend | Charge] = field(default_factory=dict)

    @classmethod
    def of(cls, writes: Iterable[StoreWrite]) -> Contents:
        contents = cls()
        for write in writes:
            contents.apply(write)
        return contents

    def apply(self, write: StoreWrite) -> None:
        match write:
            case Enqueue():
                self.held[write.ref.uid] = write
            case Dequeue(uid):
                self.held.pop(uid, None)
            case Intend():
                self.taken[write.ref.uid] = write
            case Charge():
                self.taken[write.uid] = write
            case Refund(uid):
                self.taken.pop(uid, None)
            case UsageStarted() | UsageEnded():
                pass  # usage records are in `Runs`
            case _:
                assert_never(write)

    def queue(self, tenant: TenantName, user: UserName) -> list[QueueRow]:
        """Return the workloads of a user in order."""
        mine = [w for w in self.held.values() if (w.tenant, w.user) == (tenant, user)]
        mine = [w for w in mine if w.order is not ListOrder.MEMBER]
        mine.sort(key=lambda w: (w.order, w.rank, w.ref.uid))
        length = sum(w.order is ListOrder.QUEUED for w in mine)
        return [
            QueueRow(
                PageMark(user, number <= length, QueueKey.of_rank(w.rank)),
                w.ref,
                w.gang,
                w.pods,
                number if number <= length else 0,
                length if number <= length else 0,
            )
            for number, w in enumerate(mine, 1)
        ]

    def page(
        self, tenant: TenantName, users: Sequence[UserName], after: PageMark | None, limit: int
    ) -> tuple[QueueRow, ...]:
        rows = [row for user in users for row in self.queue(tenant, user)]
        if after is not None:
            behind = not after.is_queued, after.queue_key
            rows = [
                row
                for row in rows
                if row.mark.user != users[0]
                or (not row.mark.is_queued, row.mark.queue_key) > behind
            ]
        return tuple(rows[: max(0, limit)])

    def pending(self, tenant: TenantName | None) -> tuple[PendingCount, ...]:
        held = [w for w in self.held.values() if tenant in (None, w.tenant)]
        pods = Counter((w.tenant, w.user) for w in held)
        return tuple(sorted(PendingCount(*queue, number) for queue, number in pods.items()))

    def used(self, tenant: TenantName | None) -> tuple[UsedAmount, ...]:
        sums: Counter[tuple[TenantName, UserName, PoolName, Resource]] = Counter()
        for taken in self.taken.values():
            for resource, amount in taken.demand.items() if tenant in (None, taken.tenant) else ():
                sums[taken.tenant, taken.user, taken.pool, resource] += amount
        return tuple(sorted(UsedAmount(*cell, amount) for cell, amount in sums.items() if amount))

    def intents(self) -> tuple[Intend, ...]:
        open_ = [_meant(taken) for taken in self.taken.values() if isinstance(taken, Intend)]
        return tuple(sorted(open_, key=lambda intent: intent.ref.uid))


def _meant(intent: Intend) -> Intend:
    """Return the amounts without those that are 0."""
    return replace(intent, demand={r: amount for r, amount in intent.demand.items() if amount})


@dataclass(slots=True)
class Memory:
    """The server. `down`: it does not answer. `refuse`: it rejects a batch with such a write."""

    floor: int = 0
    contents: Contents | None = None
    owner: FakeStore | None = None
    down: bool = False
    notes: dict[str, str] = field(default_factory=dict)
    whole: bool = False
    leader_message: LeaderStateMessage | None = None
    refuse: Callable[[StoreWrite], bool] = lambda write: False
    batches: list[tuple[StoreWrite, ...]] = field(default_factory=list)
    """The writes of each batch."""

    runs: Runs = field(default_factory=Runs)

    def flush(self) -> None:
        """Lose everything."""
        self.runs = Runs()
        self.floor, self.contents, self.owner = 0, None, None
        self.notes, self.whole, self.leader_message = {}, False, None


class FakeStore:
    """`ports.store.Store` and its readable state. Stores with one `Memory` share one server."""

    def __init__(self, memory: Memory | None = None) -> None:
        self.memory = memory or Memory()
        self._epoch = 0

    async def read_epoch_floor(self, known: int = 0) -> int:
        self._answer()
        return self.memory.floor

    async def claim_epoch(self, epoch: int) -> None:
        self._answer()
        if self.memory.floor > epoch:
            raise EpochStale(f"a leader with epoch {self.memory.floor} has written")
        self.memory.floor = epoch

    async def rebuild(self, epoch: int, writes: Iterable[StoreWrite]) -> None:
        self._answer()
        if self.memory.floor > epoch:
            raise EpochStale(f"a leader with epoch {self.memory.floor} has written")
        self.memory.floor = self._epoch = epoch
        contents = Contents()
        for write in writes:
            contents.apply(write)
            self.memory.runs.apply(write)
        self.memory.contents, self.memory.owner = contents, self

    async def write(self, epoch: int, writes: Sequence[StoreWrite]) -> None:
        self._answer()
        if self.memory.floor > epoch:
            raise EpochStale(f"a leader with epoch {self.memory.floor} has written")
        if self.memory.floor < epoch or self.memory.owner is not self or self._epoch != epoch:
            raise StoreEmptied("the store must be rebuilt")
        if any(map(self.memory.refuse, writes)):
            raise StoreUnavailable("the store does not answer")
        self.memory.batches.append(tuple(writes))
        for write in writes:
            self._contents().apply(write)
            self.memory.runs.apply(write)

    async def read_open_intents(self) -> tuple[Intend, ...]:
        self._answer()
        return self.memory.contents.intents() if self.memory.contents else ()

    async def read_open_usage(self) -> tuple[UsageRecord, ...]:
        self._answer()
        return self.memory.runs.running()

    async def audit_markers(self) -> Mapping[str, str] | None:
        self._answer()
        return dict(self.memory.notes) if self.memory.whole else None

    async def restore_audit_markers(
        self, epoch: int, notes: Callable[[], Iterable[tuple[str, str]]]
    ) -> None:
        self._answer()
        if self.memory.floor > epoch:
            raise EpochStale(f"a leader with epoch {self.memory.floor} has written")
        if self.memory.floor < epoch:
            raise StoreEmptied("the store must be rebuilt")
        if not self.memory.whole:
            self.memory.notes = dict(notes()) | self.memory.notes
            self.memory.whole = True

    async def read_pending_counts(self, tenant: TenantName | None) -> tuple[PendingCount, ...]:
        return self._contents().pending(tenant)

    async def read_used_amounts(self, tenant: TenantName | None) -> tuple[UsedAmount, ...]:
        return self._contents().used(tenant)

    async def read_page(
        self, tenant: TenantName, users: Sequence[UserName], after: PageMark | None, limit: int
    ) -> tuple[QueueRow, ...]:
        return self._contents().page(tenant, users, after, limit)

    def _answer(self) -> None:
        if self.memory.down:
            raise StoreUnavailable("the store does not answer")

    def _contents(self) -> Contents:
        self._answer()
        if self.memory.contents is None:
            raise StoreEmptied("the store must be rebuilt")
        return self.memory.contents
