"""A cache of recent answers: as many as every decision needs, but bounded in bytes."""

from __future__ import annotations

from typing import Generic, TypeVar

MOST_BYTES = 6 * 1024**2
"""Maximum estimated size in bytes of each of the two generations."""

REMEMBERED = 16
"""Factor: how many more evicted keys are remembered than entries are stored."""

Key = TypeVar("Key")
Value = TypeVar("Value")


class RecentCache(Generic[Key, Value]):
    """Two generations of recently used entries. Older entries are evicted.

    Each generation has `least` entries, or more while evicted entries are put again, so entries
    that every decision needs are not evicted. It shrinks again when few entries are requested. No
    generation exceeds `MOST_BYTES`, by the sizes passed to `store`.
    """

    __slots__ = (
        "_earlier",
        "_evicted_hashes",
        "_least",
        "_most",
        "_now",
        "_refetched",
        "_size",
        "_used",
    )

    def __init__(self, least: int) -> None:
        self._now: dict[Key, tuple[Value, int]] = {}
        self._earlier: dict[Key, tuple[Value, int]] = {}
        self._size = 0
        self._evicted_hashes: set[int] = (
            set()
        )  # hashes, because keys are large; a collision is harmless
        self._least = self._most = least
        self._used = self._refetched = 0

    def __len__(self) -> int:
        """Return the number of entries."""
        return len(self._now) + len(self._earlier)

    def get(self, key: Key) -> Value | None:
        """Return the entry of a key. None if it is not cached."""
        found = self._now.get(key)
        if found is None and key in self._earlier:
            found = self._earlier.pop(key)
            self._used += 1
            self._insert(key, *found)
        return found[0] if found is not None else None

    def store(self, key: Key, value: Value, size: int = 0) -> Value:
        """Store a value, not None, and return it. `size`: bytes of the value and its key."""
        self._earlier.pop(key, None)
        if hash(key) in self._evicted_hashes:
            self._evicted_hashes.discard(hash(key))
            self._refetched += 1
        self._insert(key, value, size)
        return value

    def clear(self) -> None:
        """Remove all entries."""
        self._now.clear()
        self._earlier.clear()
        self._evicted_hashes.clear()
        self._most = self._least
        self._used = self._refetched = self._size = 0

    def _insert(self, key: Key, value: Value, size: int) -> None:
        before = self._now.get(key)
        self._size += size - (before[1] if before is not None else 0)
        self._now[key] = value, size
        if len(self._now) <= self._most and self._size <= MOST_BYTES:
            return
        if self._refetched and self._size <= MOST_BYTES:  # the limit was too low
            self._most *= 2
        elif 4 * self._used < self._most:
            self._most = max(self._least, self._most // 2)
        if len(self._evicted_hashes) > REMEMBERED * self._most:
            self._evicted_hashes.clear()
        self._evicted_hashes.update(map(hash, self._earlier))
        self._earlier, self._now, self._used = self._now, {}, 0
        self._refetched = self._size = 0
