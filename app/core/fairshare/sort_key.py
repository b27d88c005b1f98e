"""Sort keys of siblings in the share tree, and ties between them.

`share_tree` computes the keys.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

from sortedcontainers import SortedDict

from app.core.model import Millis

if TYPE_CHECKING:
    from app.core.fairshare.tree_node import TenantNode


Served = tuple[int, int]
"""Epoch and sequence of the last release. `NEVER_SERVED` sorts first."""

NEVER_SERVED: Served = (0, 0)

TIE_TOLERANCE = 1e-9
"""Scores with a relative difference up to this value are equal if history counts."""

GUARANTEED, BORROWING, ZERO_WEIGHT = 0, 1, 2
"""Bands of the order. The last one is weight 0 beyond the guarantee."""


class Rank(NamedTuple):
    """The rank of a branch among its siblings for one workload, without tie-breakers."""

    is_blocked: bool
    band: int
    score: float
    """Within the guarantee: the part of the guarantee that is used. Otherwise the share score.
    Lower comes first.

    An integer of up to some hundreds of bits; a float with history."""


class SiblingKey(NamedTuple):
    """Rank and tie-breakers: a total order of siblings."""

    is_blocked: bool
    band: int
    score: float
    last_served: Served
    since: Millis
    uid: str


def in_tie_order(waiting: SortedDict[SiblingKey, TenantNode]) -> Iterator[TenantNode]:
    """Yield siblings in order. Nearly equal scores count as equal."""
    group: list[SiblingKey] = []
    for key in waiting:
        if group and not is_tie(group[0], key):
            yield from (waiting[k] for k in sorted(group, key=lambda k: k[3:]))
            group = []
        group.append(key)
    yield from (waiting[k] for k in sorted(group, key=lambda k: k[3:]))


def is_tie(first: SiblingKey, other: SiblingKey) -> bool:
    """Return whether only the last release, the age or the uid decides between two siblings."""
    if (first.is_blocked, first.band) != (other.is_blocked, other.band):
        return False
    return other.score - first.score <= TIE_TOLERANCE * abs(other.score)
