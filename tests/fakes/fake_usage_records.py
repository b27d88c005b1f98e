"""Usage records in memory, with the same answers as Redis, and a reader."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass, field, replace

from app.core.effects import StoreWrite
from app.core.errors import EpochStale, StoreUnavailable
from app.core.fairshare.usage_record import UsageEnded, UsageRecord, UsageStarted
from app.core.model import Millis, Uid

Id = tuple[Uid, Millis]


@dataclass
class Runs:
    """Open and ended usage records. The first write wins. A pod has one open record at a time."""

    open: dict[Uid, UsageRecord] = field(default_factory=dict)
    ended: dict[Id, UsageRecord] = field(default_factory=dict)
    since: Millis | None = None

    def apply(self, write: StoreWrite) -> None:
        match write:
            case UsageStarted(run):
                self._succeed(run)
                known = self.open.get(run.uid)
                if run.id in self.ended or (known and self._tells_less(run, known)):
                    return
                self.open[run.uid] = run
            case UsageEnded(run):
                self._succeed(run)
                known = self.open.get(run.uid)
                if known and known.id == run.id:
                    del self.open[run.uid]
                self.ended.setdefault(run.id, run)
            case _:
                pass

    def running(self) -> tuple[UsageRecord, ...]:
        return tuple(run for _, run in sorted(self.open.items()))

    def _succeed(self, run: UsageRecord) -> None:
        before = self.open.get(run.uid)
        if before is not None and before.begin < run.begin:
            del self.open[run.uid]
            self.ended.setdefault(before.id, replace(before, end=run.begin))

    @staticmethod
    def _tells_less(run: UsageRecord, known: UsageRecord) -> bool:
        return run.begin < known.begin or (run.bound is None and known.bound is not None)


@dataclass
class FakeRuns:
    """`ports.store.UsageRecordReader` and `ports.store.UsageRetentionStore`."""

    runs: Runs = field(default_factory=Runs)
    floor: int = 0
    fails: bool = False

    async def read_open_usage(self) -> tuple[UsageRecord, ...]:
        self._answer()
        return self.runs.running()

    async def read_ended_usage(self, after: Millis) -> AsyncIterator[UsageRecord]:
        self._answer()
        for run in sorted(self.runs.ended.values(), key=lambda run: (run.end or 0, run.id)):
            if (run.end or 0) > after:
                yield run

    async def complete_since(self) -> Millis | None:
        self._answer()
        return self.runs.since

    async def trim(self, epoch: int, now: Millis, before: Millis, most: int) -> bool:
        self._answer()
        if epoch < self.floor:
            raise EpochStale(f"a leader with epoch {self.floor} has written")
        ended = sorted(self.runs.ended.values(), key=lambda run: (run.end or 0, run.id))
        over = max(0, len(ended) - most)
        old = [run for i, run in enumerate(ended) if i < over or (run.end or 0) < before]
        since = now if self.runs.since is None else self.runs.since
        for run in old:
            del self.runs.ended[run.id]
        self.runs.since = Millis(max([since, *(run.end or 0 for run in old)]))
        return False

    def _answer(self) -> None:
        if self.fails:
            raise StoreUnavailable("the store does not answer")
