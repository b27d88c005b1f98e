"""Victim searches without a result, which are repeated only after a pause.

The result depends on nearly the whole state: usage, nodes, Policy, refusals and time. So nearly
every event could change it, and every event causes a cycle. But the searches of one cycle may take
seconds of CPU time. The pause is proportional to their work, so that they take about a tenth of the
time of the leader. Small clusters have no pause.
"""

from __future__ import annotations

from typing import NamedTuple

from app.core.fairshare.tree_node import UserNode
from app.core.model import Millis, PoolName
from app.core.podspec.equivalence_class import EquivalenceClass

STEPS_PER_PAUSED_MS = 10
"""Steps of a search for which the next one is paused by one millisecond. A step takes about 10 µs
of CPU time."""

MAX_STEPS_WITHOUT_PAUSE = 2_000
"""Failed searches with no more steps together are repeated in the next cycle."""

MAX_PAUSE_MS = 30_000
"""Longest pause. It limits by how much a reclaim may be late."""

MAX_STEPS_PER_CYCLE = 50_000
"""Number of steps from which a cycle starts no further search. Another cycle follows at once."""


class SearchKey(NamedTuple):
    """Workloads of one user for which a search has the same result."""

    leaf: UserNode
    precedence: int
    shape: EquivalenceClass
    pool: PoolName


class FailedSearches:
    """The searches that failed since the last pause ended. No search is repeated in its cycle."""

    def __init__(self) -> None:
        self._failed: dict[SearchKey, int] = {}
        """The number of the cycle in which each search failed."""
        self._cycle = 0
        self._since = Millis(0)
        self._steps = 0
        self._is_awaited = False

    def start_cycle(self, now: Millis) -> None:
        """Start a scheduling cycle. If the pause has ended, all searches may be repeated."""
        self._cycle += 1
        self._is_awaited = False
        if now >= self._pause_end():
            self._failed.clear()
            self._steps = 0

    def record(self, key: SearchKey, steps: int, now: Millis) -> None:
        """Record a failed search and its work."""
        if not self._failed:
            self._since = now
        self._failed[key] = self._cycle
        self._steps += steps

    def is_paused(self, key: SearchKey) -> bool:
        """Return whether a search must not be repeated now."""
        cycle = self._failed.get(key)
        if cycle is None:
            return False
        self._is_awaited |= cycle < self._cycle
        return True

    def due(self) -> Millis | None:
        """Return when the pause ends, if a search was to be repeated in this cycle."""
        return self._pause_end() if self._is_awaited else None

    def _pause_end(self) -> Millis:
        if self._steps <= MAX_STEPS_WITHOUT_PAUSE:
            return self._since
        return Millis(self._since + min(self._steps // STEPS_PER_PAUSED_MS, MAX_PAUSE_MS))
