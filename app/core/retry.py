"""Retry delays: exponential backoff per key, a schedule of retries per pod, and server errors."""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Generic, TypeVar

from app.core.errors import ClusterError, ClusterRefused
from app.core.model import Millis, Uid

Who = TypeVar("Who")

MOST_DOUBLINGS = 6

LONG = 1_200_000
"""Milliseconds, longer than the pause of a controller before it creates a pod again."""


@dataclass(frozen=True, slots=True)
class _Failure:
    """The last of `times` consecutive failures. It ends at `until`, after `length` milliseconds."""

    times: int
    until: Millis
    length: int

    @property
    def expires_at(self) -> Millis:
        return Millis(self.until + max(self.length, LONG))


class Backoff(Generic[Who]):
    """Number of consecutive failures and end of the delay for each key."""

    def __init__(self) -> None:
        self._failures: dict[Who, _Failure] = {}

    def __iter__(self) -> Iterator[Who]:
        return iter(tuple(self._failures))

    def __len__(self) -> int:
        return len(self._failures)

    def record_failure(self, who: Who, now: Millis, span: int) -> None:
        """Record a failure. The first delay is `span` ms. A failure during a delay is ignored."""
        known = self._failures.get(who)
        if known is not None and known.until > now:
            return
        times = known.times + 1 if known else 1
        length = span << min(times - 1, MOST_DOUBLINGS)
        self._failures[who] = _Failure(times, Millis(now + length), length)

    def clear_failures(self, who: Who) -> None:
        """Remove the failures of `who`. Harmless if there are no failures."""
        self._failures.pop(who, None)

    def clear(self) -> None:
        """Remove all failures."""
        self._failures.clear()

    def active_delays(self, now: Millis) -> dict[Who, Millis]:
        """Return the keys that are still delayed, with the end of the delay."""
        return {who: each.until for who, each in self._failures.items() if each.until > now}

    def expired_keys(self, now: Millis) -> list[Who]:
        """Return the keys that failed long enough ago to be forgiven."""
        return [who for who, each in self._failures.items() if each.expires_at <= now]

    def postpone_expiry(self, who: Who, now: Millis) -> None:
        """Postpone forgiveness: `expired_keys` returns the key again after the same time span."""
        known = self._failures[who]
        self._failures[who] = _Failure(known.times, now, known.length)

    def due(self, now: Millis) -> Millis | None:
        """Return the earliest time at which a delay ends or a key becomes `expired_keys`."""
        failures = self._failures.values()
        return min((f.until if f.until > now else f.expires_at for f in failures), default=None)


FIRST = 5_000
LONGEST = 320_000
"""Shortest and longest interval between two attempts, in milliseconds."""


class RetrySchedule:
    """The pods that have a scheduled attempt."""

    def __init__(self) -> None:
        self._next: dict[Uid, tuple[Millis, int]] = {}
        self._heap: list[tuple[Millis, Uid]] = []

    def __contains__(self, uid: Uid) -> bool:
        return uid in self._next

    def add(self, uid: Uid, now: Millis) -> None:
        """Schedule a pod for an attempt now. Harmless if it is scheduled already."""
        if uid not in self._next:
            self._schedule(uid, now, 0)

    def drop(self, uid: Uid) -> None:
        """Remove a pod. Harmless if it is not scheduled."""
        self._next.pop(uid, None)

    def clear(self) -> None:
        """Remove all pods."""
        self._next.clear()
        self._heap.clear()

    def take_due(self, now: Millis) -> list[Uid]:
        """Return the pods with a due attempt, and schedule the next attempt of each."""
        taken: list[Uid] = []
        due = self.due()
        while due is not None and due <= now:
            _, uid = heapq.heappop(self._heap)
            taken.append(uid)
            times = self._next[uid][1]
            self._schedule(uid, Millis(now + min(FIRST << min(times, 6), LONGEST)), times + 1)
            due = self.due()
        return taken

    def due(self) -> Millis | None:
        """Return the time of the next attempt, or None if no attempt is scheduled."""
        while self._heap and self._next.get(self._heap[0][1], (None, 0))[0] != self._heap[0][0]:
            heapq.heappop(self._heap)
        return self._heap[0][0] if self._heap else None

    def _schedule(self, uid: Uid, at: Millis, times: int) -> None:
        self._next[uid] = (at, times)
        heapq.heappush(self._heap, (at, uid))


FIRST_SECONDS = 1.0
LONGEST_SECONDS = 30.0


class ServerBackoff:
    """The delay doubles with each consecutive failure."""

    def __init__(self, first: float = FIRST_SECONDS) -> None:
        self.failures = 0
        self._first = first

    def reset(self) -> None:
        """Reset the delay after a success."""
        self.failures = 0

    def next_delay(self, error: ClusterError) -> float:
        """Return the seconds to wait after a failure: at least `Retry-After`, at most 30."""
        self.failures += 1
        asked = error.retry_after or 0.0 if isinstance(error, ClusterRefused) else 0.0
        grown: float = self._first * 2 ** min(self.failures - 1, 10)
        return min(LONGEST_SECONDS, max(grown, asked))
