"""Counter of events within a sliding time span."""

from __future__ import annotations

from collections import deque

from app.core.model import Millis

PARTS = 10


class EventRate:
    """Counts in ten parts of the span. Parts older than the span are dropped one by one."""

    __slots__ = ("_counts", "_part", "_total")

    def __init__(self, span: int) -> None:
        self._part = max(1, span // PARTS)
        self._counts: deque[list[int]] = deque()
        self._total = 0

    def add(self, now: Millis, count: int = 1) -> None:
        """Count events at this time."""
        part = now // self._part
        if not self._counts or self._counts[-1][0] != part:
            self._counts.append([part, 0])
        self._counts[-1][1] += count
        self._total += count
        self.count(now)

    def count(self, now: Millis) -> int:
        """Return the number of events within the span that ends now."""
        oldest = now // self._part - PARTS
        while self._counts and self._counts[0][0] < oldest:
            self._total -= self._counts.popleft()[1]
        return self._total
