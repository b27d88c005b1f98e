"""Events of pods without an API server."""

from __future__ import annotations

from app.ports.api import EventList, PodEvent


class FakePodEvents:
    """`ports.api.PodEvents` with the events that `add` stores."""

    def __init__(self) -> None:
        self._events: dict[tuple[str, str], list[PodEvent]] = {}

    def add(self, namespace: str, name: str, event: PodEvent) -> None:
        self._events.setdefault((namespace, name), []).append(event)

    async def of_pod(self, namespace: str, name: str, limit: int) -> EventList:
        found = self._events.get((namespace, name), [])
        newest = sorted(found, key=lambda each: each.at, reverse=True)
        return EventList(newest[:limit], len(newest) > limit)
