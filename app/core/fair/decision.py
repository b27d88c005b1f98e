"""Why a workload was chosen: the numbers that were compared, kept as they were at that moment."""

from __future__ import annotations

from typing import NamedTuple

from app.core.asks.shape import Shape
from app.core.fair.backlog import Turn
from app.core.fair.branch import Leaf
from app.core.fair.order import BORROWING, GUARANTEED, Key
from app.core.model import Millis, PoolName, TenantName, UserName
from app.core.places.plans import Plan


class Level(NamedTuple):
    """One level of the tree: who won the turn, and the next after it, with their keys."""

    winner: str
    key: Key | None
    rival: str | None
    rival_key: Key | None

    @property
    def rule(self) -> str:
        """Return what decided between the two."""
        if self.rival_key is None or self.key is None:
            return "nobody else waits"
        mine, other = self.key, self.rival_key
        if mine.blocked != other.blocked:
            return "the other is at its limit"
        if mine.band != other.band:
            return "within its guarantee" if mine.band == GUARANTEED else "the other has weight 0"
        if mine.score != other.score:
            return "lower score" if mine.band >= BORROWING else "less of its guarantee used"
        if mine.served != other.served:
            return "served less recently"
        return "older" if mine.since != other.since else "smaller uid"


class Decision(NamedTuple):
    """One release: whose, where to, and why it was its turn.

    `backfilled`: the next in order did not fit, and this delays nothing that is reserved.
    `levels` are the comparisons from the top of the tree down. `completes`: none of that mattered,
    because it is the rest of a gang of which some run already.
    """

    at: Millis
    tenant: TenantName
    user: UserName
    pool: PoolName
    backfilled: bool
    levels: tuple[Level, ...]
    completes: bool = False

    @property
    def reason(self) -> str:
        """Return what decided, for people, from the top of the tree down."""
        if self.completes:
            return "the rest of a gang of which some run already"
        steps = "; ".join(f"{level.winner}: {level.rule}" for level in self.levels)
        return f"backfilled past the next in order; {steps}" if self.backfilled else steps


class Choice(NamedTuple):
    """A workload that is to be released now, and where its pods would go."""

    leaf: Leaf
    turn: Turn
    shape: Shape
    pool: PoolName
    plan: Plan
