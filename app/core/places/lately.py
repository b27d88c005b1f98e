"""Answers kept while they are asked for: as many as there are questions, and not for ever.

Holds values only; whether one still holds is for whoever asks.
"""

from __future__ import annotations

from typing import Generic, TypeVar

REMEMBERED = 16
"""Times as many questions are known to have been asked as answers are kept."""

Key = TypeVar("Key")
Value = TypeVar("Value")


class Lately(Generic[Key, Value]):
    """What was put or asked for last, and what was so before that; what is older goes.

    Each of the two holds `least` answers, or more if answers went that are put again: so what
    every decision asks for stays, however much that is. Fewer again once little is asked for.
    """

    __slots__ = ("_again", "_earlier", "_gone", "_least", "_most", "_now", "_used")

    def __init__(self, least: int) -> None:
        self._now: dict[Key, Value] = {}
        self._earlier: dict[Key, Value] = {}
        self._gone: set[int] = set()  # hashes: the answers are large, and one may err
        self._least = self._most = least
        self._used = self._again = 0

    def __len__(self) -> int:
        """Return how many are kept."""
        return len(self._now) + len(self._earlier)

    def get(self, key: Key) -> Value | None:
        """Return what is kept, if it is."""
        found = self._now.get(key)
        if found is None and key in self._earlier:
            found = self._earlier.pop(key)
            self._used += 1
            self._keep(key, found)
        return found

    def put(self, key: Key, value: Value) -> Value:
        """Keep a value, which is not None, and return it."""
        self._earlier.pop(key, None)
        if hash(key) in self._gone:
            self._gone.discard(hash(key))
            self._again += 1
        self._keep(key, value)
        return value

    def clear(self) -> None:
        """Forget everything."""
        self._now.clear()
        self._earlier.clear()
        self._gone.clear()
        self._most = self._least
        self._used = self._again = 0

    def _keep(self, key: Key, value: Value) -> None:
        self._now[key] = value
        if len(self._now) <= self._most:
            return
        if self._again:  # too few were kept
            self._most *= 2
        elif 4 * self._used < self._most:
            self._most = max(self._least, self._most // 2)
        if len(self._gone) > REMEMBERED * self._most:
            self._gone.clear()
        self._gone.update(map(hash, self._earlier))
        self._earlier, self._now, self._used = self._now, {}, 0
        self._again = 0
