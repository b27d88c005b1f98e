"""Who failed must wait before the next try: twice as long each time in a row.

What is a failure, and what ends the row, is for whoever keeps one of these to say.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Generic, TypeVar

from app.core.model import Millis

Who = TypeVar("Who")

MOST_DOUBLINGS = 6

LONG = 1_200_000
"""Milliseconds: longer than controllers pause before they create a pod anew."""


@dataclass(frozen=True, slots=True)
class _Failure:
    """The last of so many `times` in a row. The next try is at `until`, `length` after it."""

    times: int
    until: Millis
    length: int

    @property
    def forgotten(self) -> Millis:
        return Millis(self.until + max(self.length, LONG))


class Backoff(Generic[Who]):
    """Who failed how often in a row, and until when they wait."""

    def __init__(self) -> None:
        self._failures: dict[Who, _Failure] = {}

    def __iter__(self) -> Iterator[Who]:
        return iter(tuple(self._failures))

    def __len__(self) -> int:
        return len(self._failures)

    def fail(self, who: Who, now: Millis, span: int) -> None:
        """One failed, and waits: `span` milliseconds the first time. While it does, once counts."""
        known = self._failures.get(who)
        if known is not None and known.until > now:
            return
        times = known.times + 1 if known else 1
        length = span << min(times - 1, MOST_DOUBLINGS)
        self._failures[who] = _Failure(times, Millis(now + length), length)

    def forgive(self, who: Who) -> None:
        """Nothing is held against this one; harmless if nothing was."""
        self._failures.pop(who, None)

    def clear(self) -> None:
        """Nothing is held against anybody."""
        self._failures.clear()

    def waiting(self, now: Millis) -> dict[Who, Millis]:
        """Return who waits, and until when."""
        return {who: each.until for who, each in self._failures.items() if each.until > now}

    def old(self, now: Millis) -> list[Who]:
        """Return whose last failure is so long ago that it may be forgiven."""
        return [who for who, each in self._failures.items() if each.forgotten <= now]

    def keep(self, who: Who, now: Millis) -> None:
        """What is held against this one is not forgiven yet: asked about again after as long."""
        known = self._failures[who]
        self._failures[who] = _Failure(known.times, now, known.length)

    def due(self, now: Millis) -> Millis | None:
        """Return when somebody waits no more, or is old, by time alone."""
        failures = self._failures.values()
        return min((f.until if f.until > now else f.forgotten for f in failures), default=None)
