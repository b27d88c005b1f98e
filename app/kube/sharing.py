"""One copy of what pods repeat: names, demands, selectors.

A leader holds up to a million pods, and most of them differ in little more than uid and name.
Knows nothing of what the values mean.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any, TypeVar, cast

MOST = 10_000
"""Values kept, for what users write is unbounded; beyond it sharing begins anew."""

K = TypeVar("K")
V = TypeVar("V")
T = TypeVar("T")


class Shared:
    """Gives back an equal value that it gave before. What it gives must not be changed."""

    def __init__(self, most: int = MOST) -> None:
        self._most = most
        self._known: dict[object, Any] = {}

    def value(self, value: T) -> T:
        """Return the one copy of a hashable value."""
        return cast(T, self._one((type(value), value), value))

    def mapping(self, mapping: Mapping[K, V]) -> Mapping[K, V]:
        """Return the one copy of a mapping of hashable values."""
        return cast(Mapping[K, V], self._one((dict, *mapping.items()), mapping))

    def _one(self, key: object, value: object) -> Any:
        known = self._known.get(key)
        if known is None:
            if len(self._known) >= self._most:
                self._known.clear()
            known = self._known[key] = value
        return known


def name(text: str) -> str:
    """Return the one copy of a string; it is forgotten when nobody uses it any more."""
    return sys.intern(text)
