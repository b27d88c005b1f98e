"""Limit on evictions of unbound pods per pool, as the last defence against mass evictions.

If more pods would have to be evicted, binding counts as stalled. Then the pods stay.
"""

from __future__ import annotations

from app.core.lifecycle.binding_progress import LONG_MS, BindingProgress
from app.core.lifecycle.event_rate import EventRate
from app.core.model import Millis, PoolName

LEAST = 32
"""Number of pods of a pool that may be evicted within ten minutes."""

SHARE = 10
"""One in this many of the pods bound there within ten minutes may be evicted in addition."""


class EvictionLimit:
    """Limits how many pods of a pool are evicted because no node accepted them."""

    def __init__(self, binding: BindingProgress) -> None:
        self._binding = binding
        self._evicted: dict[PoolName, EventRate] = {}

    def reserve_evictions(self, pool: PoolName, count: int, now: Millis) -> bool:
        """Return whether this many more pods may be evicted together, and count them if so.

        A larger number may be evicted together if the pool had no eviction within ten minutes.
        """
        if self._binding.is_timeout_paused(pool):
            return False
        rate = self._evicted.setdefault(pool, EventRate(LONG_MS))
        gone = rate.count(now)
        most = max(LEAST, self._binding.count_bound_long_term(pool) // SHARE)
        if gone and gone + count > most:
            return False
        rate.add(now, count)
        return True
