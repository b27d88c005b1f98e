"""Where siblings stand: the keys they are ordered by, and which of them tie.

A key says nothing about what was compared; the tree computes it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, NamedTuple

from sortedcontainers import SortedDict

from app.core.model import Millis

if TYPE_CHECKING:
    from app.core.fair.branch import Branch

Served = tuple[int, int]
"""Epoch and sequence of the last release; NEVER sorts first."""

NEVER: Served = (0, 0)

LIKELY = 10**8
"""No leader ever had such an epoch, whatever a pod says: a term takes seconds."""

MOST = 10**11
"""No epoch that is kept is above this: room for the terms of a century after any forged stamp, and
for what Redis, believed to a distance only (store/lua/prelude.lua), can raise them to."""

TIE = 1e-9
"""With history, scores that differ by less than this part of themselves are equal."""

GUARANTEED, BORROWING, LEFTOVERS = 0, 1, 2
"""Bands of the order. The last is weight 0 beyond the guarantee."""


class Rank(NamedTuple):
    """Where a branch stands among its siblings for one workload, ties aside."""

    blocked: bool
    band: int
    score: float
    """Within the guarantee: the part of it that is used. Else the score. Lower is first.

    Whole numbers, of up to some hundreds of bits, unless history counts."""


class Key(NamedTuple):
    """Rank and ties: a total order of siblings."""

    blocked: bool
    band: int
    score: float
    served: Served
    since: Millis
    uid: str


def likely(epochs: Iterable[int]) -> int:
    """Return the highest of these epochs that a leader can have had; 0 if there is none."""
    return max((epoch for epoch in epochs if epoch < LIKELY), default=0)


def tied(waiting: SortedDict[Key, Branch]) -> Iterator[Branch]:
    """Go through siblings in order, where scores that hardly differ are equal."""
    group: list[Key] = []
    for key in waiting:
        if group and not _ties(group[0], key):
            yield from (waiting[k] for k in sorted(group, key=lambda k: k[3:]))
            group = []
        group.append(key)
    yield from (waiting[k] for k in sorted(group, key=lambda k: k[3:]))


def _ties(first: Key, other: Key) -> bool:
    if (first.blocked, first.band) != (other.blocked, other.band):
        return False
    return other.score - first.score <= TIE * abs(other.score)
