"""Estimates of the memory that values need, for caches with a limit in bytes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, is_dataclass


def size_of(value: object) -> int:
    """Return the approximate size in bytes of a value of strings, numbers, tuples and maps.

    Dataclasses may contain such values. A part that several values share counts for each of them.
    """
    if isinstance(value, str):
        return 60 + len(value) * (1 if value.isascii() else 4)
    if isinstance(value, bytes):
        return 60 + len(value)
    if isinstance(value, Mapping):
        return 250 + sum(100 + size_of(k) + size_of(v) for k, v in value.items())
    if isinstance(value, tuple | frozenset):
        return 60 + sum(8 + size_of(each) for each in value)
    if is_dataclass(value):
        return 60 + sum(8 + size_of(getattr(value, each.name)) for each in fields(value))
    return 40
