"""One user's queue: what waits, in order, found by shape.

Workloads of one shape fit the same places, so only the first of each shape need ever be tried.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from sortedcontainers import SortedList

from app.core.model import Amounts, Millis, PoolName, Uid

MAX_PRIORITY = 2**31 - 1


@dataclass(frozen=True, slots=True, eq=False)
class Shape:
    """What a workload needs, and the pools that can serve it. Compared by identity: interned."""

    demand: Amounts
    pools: tuple[PoolName, ...]


@dataclass(frozen=True, slots=True, order=True)
class Turn:
    """Place of a workload in its user's queue: by priority, then age, then uid. A total order."""

    precedence: int
    since: Millis
    uid: Uid

    @property
    def rank(self) -> str:
        """The same order as text."""
        return f"{self.precedence:010d}.{self.since:014d}.{self.uid}"


def turn_of(priority: int, since: Millis, uid: Uid) -> Turn:
    """Return the place that a workload takes; a higher priority comes first."""
    return Turn(MAX_PRIORITY - priority, since, uid)


class Queue:
    """What one user waits for, in the order of `Turn`."""

    __slots__ = ("_lines",)

    def __init__(self) -> None:
        self._lines: dict[Shape, SortedList[Turn]] = {}

    def __len__(self) -> int:
        return sum(map(len, self._lines.values()))

    def add(self, turn: Turn, shape: Shape) -> None:
        """Put a workload in its place."""
        line = self._lines.get(shape)
        if line is None:
            line = self._lines[shape] = SortedList()
        line.add(turn)

    def remove(self, turn: Turn, shape: Shape) -> None:
        """Take a workload out. It must be there."""
        line = self._lines[shape]
        line.remove(turn)
        if not line:
            del self._lines[shape]

    def head(self) -> tuple[Turn, Shape] | None:
        """Return who is first, or None."""
        return min(self._firsts(), default=None, key=lambda first: first[0])

    def heads(self) -> list[tuple[Turn, Shape]]:
        """Return the first workload of every shape, in queue order."""
        return sorted(self._firsts(), key=lambda first: first[0])

    def position(self, turn: Turn) -> int:
        """Return how many stand before this place, plus one."""
        return 1 + sum(int(line.bisect_left(turn)) for line in self._lines.values())

    def _firsts(self) -> Iterator[tuple[Turn, Shape]]:
        return ((line[0], shape) for shape, line in self._lines.items())
