"""One user's queue: what waits, in order, found by shape.

Workloads of one shape fit the same places, so only the first of each shape need ever be tried.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterable, Iterator
from operator import itemgetter
from typing import NamedTuple

from sortedcontainers import SortedList

from app.core.asks.shape import Shape
from app.core.model import Millis, Uid

MAX_PRIORITY = 2**31 - 1


class Turn(NamedTuple):
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

    __slots__ = ("_all", "_heads", "_lines")

    def __init__(self) -> None:
        self._lines: dict[Shape, SortedList[Turn]] = {}
        self._heads: list[tuple[Turn, Shape]] = []  # a SortedDict would weigh more than the rest
        self._all: SortedList[Turn] = SortedList()

    def __len__(self) -> int:
        return len(self._all)

    def add(self, turn: Turn, shape: Shape) -> None:
        """Put a workload in its place."""
        line = self._lines.get(shape)
        if line is None:
            line = self._lines[shape] = SortedList()
            insort(self._heads, (turn, shape))
        elif turn < line[0]:
            self._strike(line[0])
            insort(self._heads, (turn, shape))
        line.add(turn)
        self._all.add(turn)

    def remove(self, turn: Turn, shape: Shape) -> None:
        """Take a workload out. It must be there."""
        line = self._lines[shape]
        was_head = turn == line[0]
        line.remove(turn)
        if was_head:
            self._strike(turn)
            if line:
                insort(self._heads, (line[0], shape))
            else:
                del self._lines[shape]
        self._all.remove(turn)

    def after(self, turn: Turn | None) -> Iterator[Turn]:
        """Return who stands behind a place, or everybody, in order. Do not change the queue."""
        return iter(self._all.irange(turn, inclusive=(False, True)))

    def oldest(self) -> Millis | None:
        """Return since when the oldest workload waits; None: nothing does."""
        found: list[Millis] = []
        place = 0
        while place < len(self._all):  # the first of each priority is the oldest of it
            turn = self._all[place]
            found.append(turn.since)
            place = self._all.bisect_left((turn.precedence + 1,))
        return min(found, default=None)

    def head(self) -> tuple[Turn, Shape] | None:
        """Return who is first, or None."""
        if not self._heads:
            return None
        return self._heads[0]

    def heads(self) -> Iterable[tuple[Turn, Shape]]:
        """Return the first workload of every shape, in queue order. Do not change the queue."""
        return self._heads

    def _strike(self, turn: Turn) -> None:
        """Take the head of a shape out of the heads. No two workloads have one turn."""
        del self._heads[bisect_left(self._heads, turn, key=itemgetter(0))]

    def position(self, turn: Turn) -> int:
        """Return how many stand before this place, plus one."""
        return 1 + int(self._all.bisect_left(turn))
