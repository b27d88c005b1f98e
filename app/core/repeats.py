"""What is asked again, less and less often, until it is seen to have happened."""

from __future__ import annotations

import heapq

from app.core.model import Millis, Uid

FIRST = 5_000
LONGEST = 320_000
"""Milliseconds between two times of asking."""


class Repeats:
    """Pods about which something is asked of the world."""

    def __init__(self) -> None:
        self._next: dict[Uid, tuple[Millis, int]] = {}
        self._line: list[tuple[Millis, Uid]] = []

    def __contains__(self, uid: Uid) -> bool:
        return uid in self._next

    def add(self, uid: Uid, now: Millis) -> None:
        """Ask about a pod from now on; harmless if it is asked already."""
        if uid not in self._next:
            self._plan(uid, now, 0)

    def drop(self, uid: Uid) -> None:
        """Ask no more; harmless if nothing is asked."""
        self._next.pop(uid, None)

    def clear(self) -> None:
        """Ask nothing more."""
        self._next.clear()
        self._line.clear()

    def take(self, now: Millis) -> list[Uid]:
        """Return about whom to ask now, and plan the next time for each."""
        taken: list[Uid] = []
        due = self.due()
        while due is not None and due <= now:
            _, uid = heapq.heappop(self._line)
            taken.append(uid)
            times = self._next[uid][1]
            self._plan(uid, Millis(now + min(FIRST << min(times, 6), LONGEST)), times + 1)
            due = self.due()
        return taken

    def due(self) -> Millis | None:
        """Return when the next is to be asked."""
        while self._line and self._next.get(self._line[0][1], (None, 0))[0] != self._line[0][0]:
            heapq.heappop(self._line)
        return self._line[0][0] if self._line else None

    def _plan(self, uid: Uid, at: Millis, times: int) -> None:
        self._next[uid] = (at, times)
        heapq.heappush(self._line, (at, uid))
