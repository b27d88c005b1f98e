"""Writes the engine's state to Redis in order, and rebuilds it after an outage or a loss.

It is the only writer of the leader's state. No pod is released while Redis cannot be written.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import deque
from collections.abc import Callable, Sequence

from app.controller.event_queue import EventQueue
from app.core.effects import Charge, Dequeue, Enqueue, Intend, Refund, StoreWrite
from app.core.engine import Engine
from app.core.errors import EpochStale, StoreError, StoreForeign, StoreUnavailable
from app.core.events import StoreLost, StoreReady
from app.core.fairshare.usage_record import UsageEnded, UsageStarted
from app.core.model import Millis
from app.ports.metrics import LeaderMetrics
from app.ports.store import Store

BATCH = 256
GATHER_SECONDS = 0.005
"""How long a write waits for others, so that one script call carries them. Intents never wait."""

PROBE_SECONDS = 1.0
"""How often an idle leader checks that the store still has its contents."""

MOST_DUE = 100_000
"""If more writes wait, a rebuild takes less time."""

RECENT = 2000
"""Recent changes of usage records that a rebuild writes again. Repeated writes are harmless.

Redis may lose acknowledged writes. No pod is released while Redis is unreachable, so there are at
most as many unwritten changes as running pods.
"""

RETRY_SECONDS = 0.5

log = logging.getLogger("fairgate.control")

_Due = tuple[Sequence[StoreWrite], asyncio.Future[bool] | None]
"""Writes that are applied together or not at all, and the future of the waiting caller."""


class StoreWriter:
    """Writes to the store between `start_writing` and `stop_writing`."""

    def __init__(
        self,
        store: Store,
        engine: Engine,
        event_queue: EventQueue,
        metrics: LeaderMetrics,
        clock: Callable[[], Millis],
        depose: Callable[[], None],
    ) -> None:
        self._store = store
        self._engine = engine
        self._event_queue = event_queue
        self._metrics = metrics
        self._clock = clock
        self._depose = depose
        self._epoch: int | None = None
        self._is_rebuilt = False
        self._queued: deque[_Due] = deque()
        self._usage_changes: deque[UsageStarted | UsageEnded] = deque()
        """The newest written changes of usage records, followed by all unwritten ones."""
        self._unwritten_usage_count = 0
        self._wake = asyncio.Event()
        self._urgent = asyncio.Event()
        """Set if a write must not wait for others."""
        self.failure = ""
        """Why a write or rebuild failed. Empty after a later write, and in a new term.

        A rebuild alone proves nothing: it removes keys first, so a full Redis may accept it.
        """

    def start_writing(self, epoch: int) -> None:
        """Take the store over: rebuild it, then write each change, under this epoch."""
        self._drop_queued()
        self._usage_changes.clear()
        self._unwritten_usage_count = 0
        self.failure = ""
        self._epoch = epoch
        self._wake.set()

    def stop_writing(self) -> None:
        """Stop writing."""
        self._drop_queued()
        self._epoch = None

    def queue_write(
        self, write: Enqueue | Dequeue | Charge | Refund | UsageStarted | UsageEnded
    ) -> None:
        """Queue a write. Drop it if a rebuild will write the same state.

        Changes of usage records are retained until written, because the engine has only the open
        records at a rebuild.
        """
        if isinstance(write, UsageStarted | UsageEnded):
            self._usage_changes.append(write)
            self._unwritten_usage_count += 1
        if self._is_rebuilt:
            self._queued.append(((write,), None))
            self._wake.set()
            if len(self._queued) >= BATCH:
                self._urgent.set()

    async def write_intents(self, intents: Sequence[Intend]) -> bool:
        """Write all intents in one step, and wait for the result.

        Return False if they are not known to be written: the releases must not be sent.
        """
        if not self._is_rebuilt:
            return False
        written = asyncio.get_running_loop().create_future()
        self._queued.append((intents, written))
        self._wake.set()
        self._urgent.set()
        return bool(await written)

    async def write_changes(self) -> None:
        """Write until cancelled."""
        while True:
            if self._epoch is None:
                await self._wake.wait()
                self._wake.clear()
                continue
            epoch = self._epoch
            try:
                await (self._write() if self._is_rebuilt else self._rebuild())
            except EpochStale:
                if epoch == self._epoch:  # else the error belongs to an earlier term
                    log.error("a newer leader has written to Redis; this one steps down")
                    self.stop_writing()
                    self._depose()
            except StoreError as error:
                await self._handle_store_error(error)

    async def _rebuild(self) -> None:
        epoch = self._epoch
        assert epoch is not None
        contents, runs = (
            [*self._usage_changes, *self._engine.store_writes()],
            self._unwritten_usage_count,
        )
        self._is_rebuilt = True  # changes from now on are written after these contents
        await self._store.rebuild(epoch, contents)
        self._count_written_usage(epoch, runs)
        await self._store.restore_audit_markers(epoch, lambda: list(self._engine.audit_markers()))
        if self._epoch == epoch:
            log.info("redis rebuilt", extra={"writes": len(contents), "epoch": epoch})
            await self._event_queue.put(StoreReady(self._clock()))

    async def _write(self) -> None:
        epoch = self._epoch
        assert epoch is not None
        if len(self._queued) > MOST_DUE:
            raise StoreUnavailable(
                "it is slower than the changes; the copy is written again from the start"
            )
        if not self._queued:
            try:
                async with asyncio.timeout(PROBE_SECONDS):  # wait_for can swallow a cancellation
                    await self._wake.wait()
            except TimeoutError:
                await self._store.write(epoch, [])
                self.failure = ""
            self._wake.clear()
            return
        await self._wait_for_more_writes()
        if not self._queued:
            return  # the term ended meanwhile
        batch = self._next_batch()
        if self._queued:
            self._urgent.set()
        try:
            await self._store.write(epoch, [write for writes, _ in batch for write in writes])
        except BaseException:
            self._answer_callers(batch, False)
            raise
        self.failure = ""
        self._answer_callers(batch, True)
        changes = [each for writes, _ in batch for each in writes]
        runs = sum(isinstance(each, UsageStarted | UsageEnded) for each in changes)
        self._count_written_usage(epoch, runs)

    async def _wait_for_more_writes(self) -> None:
        """Wait for more writes, unless a release waits for one or a batch is complete."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(GATHER_SECONDS):
                await self._urgent.wait()
        self._urgent.clear()

    def _count_written_usage(self, epoch: int, runs: int) -> None:
        """Count `runs` changes of usage records as written. Retain the newest for a rebuild."""
        if epoch != self._epoch:
            return  # they belong to an earlier term
        self._unwritten_usage_count -= runs
        while len(self._usage_changes) > max(self._unwritten_usage_count, RECENT):
            self._usage_changes.popleft()

    def _next_batch(self) -> list[_Due]:
        """Return the next batch. Writes that must be applied together stay in one batch."""
        batch = [self._queued.popleft()]
        size = len(batch[0][0])
        while self._queued and size + len(self._queued[0][0]) <= BATCH:
            size += len(self._queued[0][0])
            batch.append(self._queued.popleft())
        return batch

    async def _handle_store_error(self, error: StoreError) -> None:
        self.failure = str(error)
        facts = {"why": self.failure}
        log.warning("redis cannot be written; releases are paused", extra=facts)
        self._metrics.count_store_failure("rebuild" if isinstance(error, StoreForeign) else "write")
        self._drop_queued()
        await self._event_queue.put(StoreLost(self._clock()))
        await asyncio.sleep(RETRY_SECONDS)

    def _drop_queued(self) -> None:
        self._is_rebuilt = False
        self._urgent.set()
        due, self._queued = list(self._queued), deque()
        self._answer_callers(due, False)

    def _answer_callers(self, batch: list[_Due], written: bool) -> None:
        for _, waiting in batch:
            if waiting is not None and not waiting.done():
                waiting.set_result(written)
