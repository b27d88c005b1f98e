"""Chooses the page size of lists, so that a page does not fill the memory.

An object may have 1.5 MB. A page of 500 such objects would take 750 MB, and several times that when
it is decoded at once.
"""

from __future__ import annotations

from collections.abc import Set

SMALL_PAGE = 100
"""Page size while object sizes are unknown, or many objects are large."""

LARGE_BYTES = 64 * 1024
"""An object of this size is large."""

MOST_LARGE = 100
"""Maximum number of large objects that may be in one page of the usual size."""

WHOLE_BYTES = 8 * 2**20
"""A page up to this size is decoded at once, a larger one object by object."""


class Paging:
    """The large objects of one kind, by key. Deleted objects are forgotten."""

    def __init__(self, page: int) -> None:
        """`page`: the usual page size in objects."""
        self._page = page
        self._listed = False
        self._large: set[str] = set()

    @property
    def limit(self) -> int:
        """Return the size of the next page in objects."""
        careful = not self._listed or len(self._large) > MOST_LARGE
        return min(self._page, SMALL_PAGE) if careful else self._page

    def record_size(self, key: str, size: int) -> None:
        """Record the approximate size of an object in bytes of JSON."""
        if size >= LARGE_BYTES:
            self._large.add(key)
        elif self._large:
            self._large.discard(key)

    def remove(self, key: str) -> None:
        """Remove a deleted object. Harmless if it is unknown."""
        self._large.discard(key)

    def record_list(self, keys: Set[str]) -> None:
        """Record that a list was read completely, with these objects."""
        self._listed = True
        self._large &= keys
