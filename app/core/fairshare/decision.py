"""Why a workload was selected: the compared numbers at that moment."""

from __future__ import annotations

from typing import NamedTuple

from app.core.fairshare.sort_key import BORROWING, GUARANTEED, SiblingKey, is_tie
from app.core.fairshare.tree_node import UserNode
from app.core.fairshare.user_queue import QueueKey
from app.core.model import Millis, PoolName, TenantName, UserName
from app.core.placement.assignment import Assignment
from app.core.podspec.equivalence_class import EquivalenceClass


class DecisionLevel(NamedTuple):
    """One level of the tree: the first branch and its next rival, with their sort keys."""

    winner: str
    key: SiblingKey | None
    runner_up: str | None
    runner_up_key: SiblingKey | None

    @property
    def rule(self) -> str:
        """Return the criterion that decided between the two.

        A rival that is first by every criterion was passed. Its first workload does not fit, or is
        kept back by a rule above both branches, such as a limit.
        """
        if self.runner_up_key is None or self.key is None:
            return "nobody else waits"
        mine, other = self.key, self.runner_up_key
        if other.is_blocked and not mine.is_blocked:
            return "the other is at its limit"
        tied = mine[:2] == other[:2] and _is_float_tie(mine, other)
        if tied and mine[3:] < other[3:]:
            return _tie_breaker(mine, other)
        if tied or mine > other:
            return "the other cannot start now"
        if mine.band != other.band:
            return "within its guarantee" if mine.band == GUARANTEED else "the other has weight 0"
        if mine.score != other.score:
            return "lower score" if mine.band >= BORROWING else "less of its guarantee used"
        return _tie_breaker(mine, other)


def _is_float_tie(mine: SiblingKey, other: SiblingKey) -> bool:
    """Return whether two scores with history count as equal."""
    exact = isinstance(mine.score, int) and isinstance(other.score, int)
    return not exact and is_tie(*sorted((mine, other)))


def _tie_breaker(mine: SiblingKey, other: SiblingKey) -> str:
    if mine.last_served != other.last_served:
        return "served less recently"
    return "older" if mine.since != other.since else "smaller uid"


class Decision(NamedTuple):
    """One release: the workload's owner and pool, and why it was next.

    `is_backfilled`: the next in order did not fit, and this release delays no reservation.
    `levels`: the comparisons from the top of the tree down. `completes_gang`: no comparison
    applied, because pods of the same gang already run.
    """

    at: Millis
    tenant: TenantName
    user: UserName
    pool: PoolName
    is_backfilled: bool
    levels: tuple[DecisionLevel, ...]
    completes_gang: bool = False

    @property
    def reason(self) -> str:
        """Return the deciding criteria in words, from the top of the tree down."""
        if self.completes_gang:
            return "the remaining pods of a gang that runs already"
        steps = "; ".join(f"{level.winner}: {level.rule}" for level in self.levels)
        return f"backfilled past the next in order; {steps}" if self.is_backfilled else steps


class Selection(NamedTuple):
    """A workload to release now, and the assignment of its pods to nodes."""

    leaf: UserNode
    queue_key: QueueKey
    equivalence_class: EquivalenceClass
    pool: PoolName
    assignment: Assignment


class BlockedHead(NamedTuple):
    """The user of a head that does not fit now.

    `is_next`: the head is next for one of its pools. `is_guaranteed`: it is within a guarantee, and
    borrowed pods may be sought for it.
    """

    leaf: UserNode
    is_next: bool
    is_guaranteed: bool
