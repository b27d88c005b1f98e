"""The bounded queue of events for the engine, in order of arrival."""

from __future__ import annotations

import asyncio
import contextlib
import time

from app.core.events import NewsEvent

CAPACITY = 10_000
BATCH = 500
"""Most events between two passes of the engine."""


class EventQueue:
    """The `EventSink` of the watches. The engine loop reads it."""

    def __init__(self) -> None:
        self._queue: asyncio.Queue[NewsEvent] = asyncio.Queue(CAPACITY)
        self._arrived_count = self._taken_count = self._handled_count = 0
        self._progress = asyncio.Event()

    async def put(self, event: NewsEvent, /) -> None:
        """Add an event. Wait while the queue is full."""
        await self._queue.put(event)
        self._arrived_count += 1

    async def wait_until_handled(self) -> None:
        """Return after the engine has handled every event that was put before this call."""
        mark = self._arrived_count
        while self._handled_count < mark:
            self._progress.clear()
            await self._progress.wait()

    async def take_batch(self, seconds: float, not_before: float = 0.0) -> list[NewsEvent]:
        """Return at most `BATCH` events; an empty list if no event arrives within `seconds`.

        `not_before`: a time of the monotonic clock; more events are gathered until then. A call
        also confirms that the caller has handled the previous batch.
        """
        self._handled_count = self._taken_count
        self._progress.set()
        batch: list[NewsEvent] = []
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                batch.append(await self._queue.get())
        gather = not_before - time.monotonic()
        if batch and gather > 0 and self._queue.qsize() < BATCH:
            await asyncio.sleep(gather)
        while len(batch) < BATCH and not self._queue.empty():
            batch.append(self._queue.get_nowait())
        self._taken_count += len(batch)
        return batch
