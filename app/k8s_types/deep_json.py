"""Decodes JSON of the API server, which may be nested deeper than msgspec can decode.

The API server accepts 10 000 levels, also from users, for example in `managedFields`. msgspec
raises RecursionError after about 1 000 levels, even in fields that it skips. No field that Fairgate
reads is nested deeper than `DEEPEST`.
"""

from __future__ import annotations

import re
from typing import Generic, TypeVar

import msgspec

T = TypeVar("T")

DEEPEST = 100
"""Number of levels that are kept of a document that is nested too deep."""

_BRACKET = re.compile(rb'[^]["{}]*+(?:"[^"\\]*+(?:\\.[^"\\]*+)*+"[^]["{}]*+)*+([]{}[])', re.DOTALL)
"""Text without brackets, except in strings, and then a bracket."""


class Decoder(Generic[T]):
    """Decodes to a type, as `msgspec.json.Decoder` does, for any depth of the document."""

    def __init__(self, kind: type[T]) -> None:
        self._decode = msgspec.json.Decoder(kind).decode

    def decode(self, document: bytes | msgspec.Raw) -> T:
        """Return the decoded document. Raises msgspec.DecodeError."""
        try:
            return self._decode(document)
        except RecursionError:
            return self._decode(flattened(bytes(document)))


def flattened(document: bytes) -> bytes:
    """Return JSON in which lists and maps below level `DEEPEST` are empty."""
    kept, start, end, depth = [], 0, 0, 0
    while found := _BRACKET.match(document, end):
        end = found.end()
        if found[1] in b"{[":
            depth += 1
            if depth == DEEPEST:
                kept.append(document[start:end])
                start = len(document)
        else:
            if depth == DEEPEST:
                start = end - 1
            depth -= 1
    return b"".join((*kept, document[start:]))
