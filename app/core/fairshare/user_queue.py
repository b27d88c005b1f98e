"""The queue of one user: waiting workloads in order, indexed by equivalence class.

Workloads of one class fit the same nodes, so only the first of each class must be tried.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterable, Iterator
from operator import itemgetter
from typing import NamedTuple

from sortedcontainers import SortedList

from app.core.model import Millis, Uid
from app.core.podspec.equivalence_class import EquivalenceClass

MAX_PRIORITY = 2**31 - 1


class QueueKey(NamedTuple):
    """Position of a workload in its user's queue: priority, then age, then uid. A total order."""

    precedence: int
    since: Millis
    uid: Uid

    @property
    def rank(self) -> str:
        """The same order as a string."""
        return f"{self.precedence:010d}.{self.since:014d}.{self.uid}"

    @property
    def priority(self) -> int:
        """The priority from which the precedence was computed."""
        return MAX_PRIORITY - self.precedence

    @classmethod
    def of_rank(cls, rank: str) -> QueueKey:
        """Return the position that a `rank` stands for. Raises ValueError."""
        precedence, since, uid = rank.split(".", 2)
        return cls(int(precedence), Millis(int(since)), Uid(uid))


def queue_key_of(priority: int, since: Millis, uid: Uid) -> QueueKey:
    """Return the position of a workload. A higher priority comes first."""
    return QueueKey(MAX_PRIORITY - priority, since, uid)


class UserQueue:
    """The waiting workloads of one user, in the order of `QueueKey`."""

    __slots__ = ("_all", "_heads", "_keys_by_class")

    def __init__(self) -> None:
        self._keys_by_class: dict[EquivalenceClass, SortedList[QueueKey]] = {}
        self._heads: list[
            tuple[QueueKey, EquivalenceClass]
        ] = []  # a SortedDict would need much more memory
        self._all: SortedList[QueueKey] = SortedList()

    def __len__(self) -> int:
        return len(self._all)

    def add(self, queue_key: QueueKey, shape: EquivalenceClass) -> None:
        """Add a workload at its position."""
        line = self._keys_by_class.get(shape)
        if line is None:
            line = self._keys_by_class[shape] = SortedList()
            insort(self._heads, (queue_key, shape))
        elif queue_key < line[0]:
            self._remove_head(line[0])
            insort(self._heads, (queue_key, shape))
        line.add(queue_key)
        self._all.add(queue_key)

    def remove(self, queue_key: QueueKey, shape: EquivalenceClass) -> None:
        """Remove a workload. It must be in the queue."""
        line = self._keys_by_class[shape]
        was_head = queue_key == line[0]
        line.remove(queue_key)
        if was_head:
            self._remove_head(queue_key)
            if line:
                insort(self._heads, (line[0], shape))
            else:
                del self._keys_by_class[shape]
        self._all.remove(queue_key)

    def keys_after(self, queue_key: QueueKey | None) -> Iterator[QueueKey]:
        """Iterate over the workloads behind a position (None: all). Keep the queue unchanged."""
        return iter(self._all.irange(queue_key, inclusive=(False, True)))

    def next_of_class(
        self, queue_key: QueueKey, shape: EquivalenceClass, most: int
    ) -> list[QueueKey]:
        """Return up to `most` workloads of a class right behind one of it, with its priority.

        A workload of another class ends them.
        """
        line = self._keys_by_class.get(shape, ())
        of_class = line.irange(queue_key, inclusive=(False, True)) if line else ()
        found: list[QueueKey] = []
        for each, behind in zip(of_class, self.keys_after(queue_key), strict=False):
            if each != behind or each.precedence != queue_key.precedence or len(found) == most:
                break
            found.append(each)
        return found

    def oldest_waiting_since(self) -> Millis | None:
        """Return since when the oldest workload waits. None if the queue is empty."""
        found: list[Millis] = []
        place = 0
        while place < len(self._all):  # the first workload of each priority is its oldest
            queue_key = self._all[place]
            found.append(queue_key.since)
            place = self._all.bisect_left((queue_key.precedence + 1,))
        return min(found, default=None)

    def head(self) -> tuple[QueueKey, EquivalenceClass] | None:
        """Return the first workload. None if the queue is empty."""
        if not self._heads:
            return None
        return self._heads[0]

    def class_heads(self) -> Iterable[tuple[QueueKey, EquivalenceClass]]:
        """Return the first workload of every class, in order. Do not change the queue meanwhile."""
        return self._heads

    def _remove_head(self, queue_key: QueueKey) -> None:
        """Remove the head of a class from the heads. No two workloads have the same `QueueKey`."""
        del self._heads[bisect_left(self._heads, queue_key, key=itemgetter(0))]

    def position(self, queue_key: QueueKey) -> int:
        """Return the number of workloads before this position, plus one."""
        return 1 + int(self._all.bisect_left(queue_key))
