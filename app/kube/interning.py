"""Interns values that pods repeat: names, requests, selectors.

A leader stores up to a million pods. Most of them differ in little more than uid and name.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar, cast

from app.core.memory_size import size_of

MOST_BYTES = 4 * 1024**2
"""Limit of the estimated size of all stored values in bytes. The cache is cleared beyond it."""

MAX_VALUE_BYTES = 16 * 1024
"""Limit of the estimated size of one interned value. Few pods share larger ones."""

K = TypeVar("K")
V = TypeVar("V")
T = TypeVar("T")

_ABSENT = object()
"""Marks a missing value, because None is a value."""


class InterningPool:
    """Returns the stored copy of an equal value. Callers must not modify it."""

    def __init__(self) -> None:
        self._known: dict[object, Any] = {}
        self._size = 0

    def intern(self, value: T) -> T:
        """Return the stored copy of a hashable value."""
        return cast(T, self._intern_by_key((type(value), value), value))

    def intern_mapping(self, mapping: Mapping[K, V]) -> Mapping[K, V]:
        """Return the stored copy of a mapping of hashable values."""
        return cast(Mapping[K, V], self._intern_by_key((dict, *mapping.items()), mapping))

    def _intern_by_key(self, key: object, value: object) -> Any:
        known = self._known.get(key, _ABSENT)
        if known is _ABSENT:
            size = size_of(key) + size_of(value)
            if size > MAX_VALUE_BYTES:
                return value
            self._size += size
            if self._size > MOST_BYTES:
                self._known.clear()
                self._size = size
            known = self._known[key] = value
        return known


_NAMES: dict[str, str] = {}
MOST_NAMES = 20_000
LONGEST_NAME = 320
"""Longest label key, in characters. Longer strings are not names and are not interned."""


def name(text: str) -> str:
    """Return the stored copy of a name. The cache is limited, because users choose names."""
    known = _NAMES.get(text)
    if known is not None or len(text) > LONGEST_NAME:
        return known or text
    if len(_NAMES) >= MOST_NAMES:
        _NAMES.clear()
    _NAMES[text] = text
    return text
