"""A cache with expiry, for answers of the API server and values that are computed from them.

Callers choose parts of the keys, such as the name of a tenant that need not exist. So the memory of
a cache has a limit in bytes, and an expired entry does not stay.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Generic, TypeVar

from app.core.memory_size import size_of

MOST_BYTES = 8 * 1024**2
"""Limit of the estimated size of all keys and values of one cache."""

CacheKey = TypeVar("CacheKey", bound=Hashable)
Value = TypeVar("Value")


@dataclass(frozen=True, slots=True)
class _Entry(Generic[Value]):
    until: float
    value: Value
    size: int


class ExpiringCache(Generic[CacheKey, Value]):
    """Cache with expiry. It has at most `most` entries, and keys and values of `MOST_BYTES`.

    If there are more, `put` evicts the oldest entries first. It also removes expired entries.
    """

    def __init__(self, clock: Callable[[], float], seconds: float, most: int = 10_000) -> None:
        """`clock` returns monotonic seconds."""
        self._clock = clock
        self._seconds = seconds
        self._most = most
        self._entries: OrderedDict[CacheKey, _Entry[Value]] = OrderedDict()
        """The oldest entry first. All have the same lifetime, so it also expires first."""
        self._size = 0

    def get(self, key: CacheKey) -> Value | None:
        """Return a value that has not expired."""
        entry = self._entries.get(key)
        return entry.value if entry is not None and self._clock() < entry.until else None

    def put(self, key: CacheKey, value: Value) -> None:
        """Store a value for the time of this cache. One larger than the cache is not stored."""
        now = self._clock()
        replaced = self._entries.pop(key, None)
        self._size -= replaced.size if replaced is not None else 0
        entry = _Entry(now + self._seconds, value, size_of(key) + size_of(value))
        self._entries[key] = entry
        self._size += entry.size
        while self._entries and self._must_evict(next(iter(self._entries.values())), now):
            _, oldest = self._entries.popitem(last=False)
            self._size -= oldest.size

    def _must_evict(self, oldest: _Entry[Value], now: float) -> bool:
        is_full = len(self._entries) > self._most or self._size > MOST_BYTES
        return is_full or oldest.until <= now
