"""Events of pods without an API server."""

from __future__ import annotations

import asyncio

from app.core.errors import ClusterError
from app.ports.api import EventList, PodEvent


class FakePodEvents:
    """`ports.api.PodEvents` with the events that `add` stores."""

    def __init__(self) -> None:
        self.error: ClusterError | None = None
        self.waits: asyncio.Event | None = None
        """A read ends only when this event is set."""
        self.reads = 0
        """Reads that began."""
        self._events: dict[tuple[str, str], list[PodEvent]] = {}

    def add(self, namespace: str, name: str, event: PodEvent) -> None:
        self._events.setdefault((namespace, name), []).append(event)

    async def read_pod_events(self, namespace: str, name: str, limit: int) -> EventList:
        self.reads += 1
        if self.waits is not None:
            await self.waits.wait()
        if self.error is not None:
            raise self.error
        found = self._events.get((namespace, name), [])
        newest = sorted(found, key=lambda each: each.at, reverse=True)
        return EventList(newest[:limit], len(newest) > limit)
