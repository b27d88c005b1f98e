"""What questions about waiting are answered from: the records of an engine. Reads only."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from app.core.asks.shape import Shape
from app.core.fair.backlog import Turn
from app.core.fair.branch import Leaf
from app.core.fair.shares import Tree
from app.core.fair.tenancy import Tenancy
from app.core.model import Millis, PoolName, TenantName, Uid
from app.core.places.placement import Placement, Withheld
from app.core.places.pools import Pools
from app.core.pods.roster import Roster
from app.core.pods.tracked import Tracked, Workload
from app.core.telling.reasons import Verdict
from app.core.turns.reservation import Reservations

Kept = Callable[[PoolName, Turn], tuple[TenantName, Withheld] | None]
"""Whom room of a pool is kept free for, and how much, the owner of this place aside."""


@dataclass(frozen=True, slots=True)
class Scene:
    """See the module. It holds until something changes."""

    roster: Roster
    tenancy: Tenancy
    pools: Pools
    placement: Placement
    reservations: Reservations
    kept: Kept
    owners: frozenset[Uid] = frozenset()
    """The workloads that room is kept free for."""
    heard_at: Millis | None = None
    """When a leader elsewhere told whom room is kept free for; None: nobody told that."""
    verdicts: dict[tuple[Leaf, Shape, Uid], Verdict] = field(default_factory=dict)
    """What was found out already."""

    @property
    def tree(self) -> Tree:
        """The tree of shares as it stands."""
        return self.roster.usage.tree


@dataclass(frozen=True, slots=True)
class Place:
    """A workload that waits for its turn."""

    leaf: Leaf
    turn: Turn
    shape: Shape


def workload_of(tracked: Tracked) -> Workload:
    """Return what a held pod waits as: itself, or its gang once that is complete."""
    if tracked.gang is not None and tracked.gang.shape is not None:
        return tracked.gang
    return tracked


def place_of(workload: Workload) -> Place | None:
    """Return where a workload stands; None: it is in no queue."""
    leaf, turn, shape = workload.leaf, workload.turn, workload.shape
    if leaf is None or turn is None or shape is None:
        return None
    return Place(leaf, turn, shape)
