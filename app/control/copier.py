"""Keeps the store a copy of the engine: writes in order, rebuilds it when it was away or emptied.

The only writer of the leader's state. While the store cannot be written, nothing is released.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Sequence

from app.control.inbox import Inbox
from app.core.effects import Charge, Dequeue, Enqueue, Intend, Refund, StoreWrite
from app.core.engine import Engine
from app.core.errors import EpochStale, StoreError, StoreForeign, StoreUnavailable
from app.core.events import StoreLost, StoreReady
from app.core.fair.runs import Begun, Ran
from app.core.model import Millis
from app.ports import Meters, Store

BATCH = 256
PROBE_SECONDS = 1.0
"""How often an idle leader looks whether the store still has its contents."""

MOST_DUE = 100_000
"""Beyond so many writes that wait, a rebuild is the shorter way."""

RECENT = 2000
"""Changes of runs that a rebuild writes again, which does no harm: Redis may lose what it answered
for. While it is away nothing is released, so no more wait to be written than pods run."""

RETRY_SECONDS = 0.5

log = logging.getLogger("fairgate.control")

_Due = tuple[Sequence[StoreWrite], asyncio.Future[bool] | None]
"""Writes that stand or fall together, and who waits for them."""


class Copier:
    """See the module. `lead` and `follow` say whether there is anything to copy."""

    def __init__(
        self,
        store: Store,
        engine: Engine,
        inbox: Inbox,
        meters: Meters,
        clock: Callable[[], Millis],
        depose: Callable[[], None],
    ) -> None:
        self._store = store
        self._engine = engine
        self._inbox = inbox
        self._meters = meters
        self._clock = clock
        self._depose = depose
        self._epoch: int | None = None
        self._stands = False
        self._due: deque[_Due] = deque()
        self._runs: deque[Begun | Ran] = deque()
        """Those that are not written, and before them the newest that are."""
        self._unwritten = 0
        self._wake = asyncio.Event()

    def lead(self, epoch: int) -> None:
        """Take the store over: it is rebuilt, then kept up to date, under this epoch."""
        self._abandon()
        self._runs.clear()
        self._unwritten = 0
        self._epoch = epoch
        self._wake.set()

    def follow(self) -> None:
        """Stop writing."""
        self._abandon()
        self._epoch = None

    def copy(self, write: Enqueue | Dequeue | Charge | Refund | Begun | Ran) -> None:
        """Write this, after everything before it. What a rebuild will write is dropped.

        Runs are kept until they are written: a rebuild only knows those that go on.
        """
        if isinstance(write, Begun | Ran):
            self._runs.append(write)
            self._unwritten += 1
        if self._stands:
            self._due.append(((write,), None))
            self._wake.set()

    async def intend(self, intents: Sequence[Intend]) -> bool:
        """Write all of these, or none, and wait for it; False: none, so nothing may be tried."""
        if not self._stands:
            return False
        written = asyncio.get_running_loop().create_future()
        self._due.append((intents, written))
        self._wake.set()
        return bool(await written)

    async def run(self) -> None:
        """Write until cancelled."""
        while True:
            if self._epoch is None:
                await self._wake.wait()
                self._wake.clear()
                continue
            epoch = self._epoch
            try:
                await (self._write() if self._stands else self._rebuild())
            except EpochStale:
                if epoch == self._epoch:  # else it is about a term that is over
                    log.error("a newer leader has written to Redis; this one steps down")
                    self.follow()
                    self._depose()
            except StoreError as error:
                await self._lose(error)

    async def _rebuild(self) -> None:
        epoch = self._epoch
        assert epoch is not None
        contents, runs = [*self._runs, *self._engine.writes()], self._unwritten
        self._stands = True  # what changes from here on is written after these
        await self._store.rebuild(epoch, contents)
        self._wrote(runs)
        await self._store.remember(epoch, lambda: list(self._engine.notes()))
        if self._epoch == epoch:
            log.info("redis rebuilt", extra={"writes": len(contents), "epoch": epoch})
            await self._inbox.put(StoreReady(self._clock()))

    async def _write(self) -> None:
        epoch = self._epoch
        assert epoch is not None
        if len(self._due) > MOST_DUE:
            raise StoreUnavailable("it is too slow for what happens; all of it is written anew")
        if not self._due:
            try:
                async with asyncio.timeout(PROBE_SECONDS):  # wait_for can swallow a cancellation
                    await self._wake.wait()
            except TimeoutError:
                await self._store.write(epoch, [])
            self._wake.clear()
            return
        batch = self._take()
        try:
            await self._store.write(epoch, [write for writes, _ in batch for write in writes])
        except BaseException:
            self._settle(batch, False)
            raise
        self._settle(batch, True)
        self._wrote(sum(isinstance(each, Begun | Ran) for writes, _ in batch for each in writes))

    def _wrote(self, runs: int) -> None:
        """So many more changes of runs were written; the newest of them are kept all the same."""
        self._unwritten -= runs
        while len(self._runs) > max(self._unwritten, RECENT):
            self._runs.popleft()

    def _take(self) -> list[_Due]:
        """Return what is written next; what belongs together is never parted."""
        batch = [self._due.popleft()]
        size = len(batch[0][0])
        while self._due and size + len(self._due[0][0]) <= BATCH:
            size += len(self._due[0][0])
            batch.append(self._due.popleft())
        return batch

    async def _lose(self, error: StoreError) -> None:
        facts = {"why": str(error)}
        log.warning("redis cannot be written; nothing is released until it can", extra=facts)
        self._meters.store_failed("rebuild" if isinstance(error, StoreForeign) else "write")
        self._abandon()
        await self._inbox.put(StoreLost(self._clock()))
        await asyncio.sleep(RETRY_SECONDS)

    def _abandon(self) -> None:
        self._stands = False
        due, self._due = list(self._due), deque()
        self._settle(due, False)

    def _settle(self, batch: list[_Due], written: bool) -> None:
        for _, waiting in batch:
            if waiting is not None and not waiting.done():
                waiting.set_result(written)
