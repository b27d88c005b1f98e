"""A cache whose entries expire, for answers of the API server."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

CacheKey = TypeVar("CacheKey", bound=Hashable)
Value = TypeVar("Value")


class ExpiringCache(Generic[CacheKey, Value]):
    """Cache with expiry. The oldest entries are evicted first if there are more than `most`."""

    def __init__(self, clock: Callable[[], float], seconds: float, most: int = 10_000) -> None:
        """`clock` returns monotonic seconds."""
        self._clock = clock
        self._seconds = seconds
        self._most = most
        self._entries: OrderedDict[CacheKey, tuple[float, Value]] = OrderedDict()

    def get(self, key: CacheKey) -> Value | None:
        """Return a value that has not expired."""
        entry = self._entries.get(key)
        if entry is None:
            return None
        until, value = entry
        return value if self._clock() < until else None

    def put(self, key: CacheKey, value: Value) -> None:
        """Store a value for the time of this cache."""
        self._entries.pop(key, None)
        self._entries[key] = (self._clock() + self._seconds, value)
        if len(self._entries) > self._most:
            self._entries.popitem(last=False)
