"""Where everything that happens waits for the engine: one bounded queue, in order of arrival."""

from __future__ import annotations

import asyncio
import contextlib

from app.core.events import NewsEvent

CAPACITY = 10_000
BATCH = 500
"""Most events between two passes: what arrives together is ordered together."""


class Inbox:
    """An `EventSink` for the rooms that see, and the queue the loop reads."""

    def __init__(self) -> None:
        self._queue: asyncio.Queue[NewsEvent] = asyncio.Queue(CAPACITY)
        self._arrived = self._taken = self._handled = 0
        self._progress = asyncio.Event()

    async def put(self, event: NewsEvent, /) -> None:
        """Add an event; waits while the engine is behind."""
        await self._queue.put(event)
        self._arrived += 1

    async def handled(self) -> None:
        """Return once the engine was told of everything that was put before."""
        mark = self._arrived
        while self._handled < mark:
            self._progress.clear()
            await self._progress.wait()

    async def take(self, seconds: float) -> list[NewsEvent]:
        """Return what has arrived, at most a batch; nothing if nothing comes for so long.

        Whoever takes more has handled what it took before.
        """
        self._handled = self._taken
        self._progress.set()
        batch: list[NewsEvent] = []
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                batch.append(await self._queue.get())
        while len(batch) < BATCH and not self._queue.empty():
            batch.append(self._queue.get_nowait())
        self._taken += len(batch)
        return batch
