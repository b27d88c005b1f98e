"""An EventSink that records its events. Tests can wait for an event."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from app.core.events import ClusterEvent


class Heard:
    """`ports.cluster.EventSink`. `events` are all received events, in order."""

    def __init__(self) -> None:
        self.events: list[ClusterEvent] = []
        self._changed = asyncio.Condition()

    async def put(self, event: ClusterEvent, /) -> None:
        self.events.append(event)
        async with self._changed:
            self._changed.notify_all()

    async def until(
        self, wanted: Callable[[ClusterEvent], bool], since: int = 0, seconds: float = 30.0
    ) -> int:
        """Wait for an event at index `since` or later; return the index after it."""

        def found() -> int:
            for index in range(since, len(self.events)):
                if wanted(self.events[index]):
                    return index + 1
            return 0

        async with asyncio.timeout(seconds), self._changed:
            return await self._changed.wait_for(found)
