"""Who took whose place, in which pool, and lately: the same is not taken back within the hour.

By the rules an eviction never leads to its own reverse. Should it ever, nothing goes back and
forth: the reverse is refused, and reported; but never what a guarantee gives, which is taken from
who borrows only. Kept as notes of the audit chain, for the next leader.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from app.core.model import Millis, PoolName, TenantName

PEACE_MS = 3_600_000
"""So long nobody wins a place back from whom it was taken for."""

PREFIX = "Reclaim/"
"""What the keys of these notes begin with; no pod's uid does."""


class Taking(NamedTuple):
    """Work of the `loser` was evicted in a pool for work of the `winner`."""

    pool: PoolName
    loser: TenantName
    winner: TenantName

    @property
    def key(self) -> str:
        """The key of its note."""
        return PREFIX + json.dumps(self)


class Truces:
    """What was taken within the last hour."""

    def __init__(self) -> None:
        self._until: dict[Taking, Millis] = {}

    def sign(self, taking: Taking, now: Millis) -> tuple[str, str]:
        """This was taken just now. Returns the note of it: key and text."""
        until = Millis(now + PEACE_MS)
        self._until[taking] = max(until, self._until.get(taking, until))
        return taking.key, str(self._until[taking])

    def forbids(self, taking: Taking, now: Millis) -> Millis | None:
        """Return until when this may not be taken, because it would be a taking back; or None."""
        until = self._until.get(Taking(taking.pool, taking.winner, taking.loser))
        return until if until is not None and until > now else None

    def expire(self, now: Millis) -> Iterator[str]:
        """Forget what is over; return the keys of its notes."""
        over = [taking for taking, until in self._until.items() if until <= now]
        for taking in over:
            del self._until[taking]
            yield taking.key

    def notes(self) -> Iterator[tuple[str, str]]:
        """Return what is to be remembered."""
        return ((taking.key, str(until)) for taking, until in self._until.items())

    def recall(self, notes: Mapping[str, str], now: Millis) -> None:
        """Take up what earlier leaders noted. No note holds for longer than one of now would."""
        for key, text in notes.items():
            if is_taking(key) and (read := _read(key, text)):
                taking, noted = read
                until = min(noted, now + PEACE_MS)
                self._until[taking] = Millis(max(until, self._until.get(taking, 0)))


def _read(key: str, text: str) -> tuple[Taking, int] | None:
    """Return what a note says; None for one that is none of ours: anybody may have written it."""
    try:
        parts, until = json.loads(key.removeprefix(PREFIX)), int(text)
    except (ValueError, RecursionError):
        return None
    match parts:
        case [str(pool), str(loser), str(winner)]:
            return Taking(PoolName(pool), TenantName(loser), TenantName(winner)), until
    return None


def is_taking(key: str) -> bool:
    """Tell whether a note is one of these."""
    return key.startswith(PREFIX)
