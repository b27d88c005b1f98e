"""How the fair order works in this cluster: the Policy resource as values.

The defaults are what holds without any Policy.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from fractions import Fraction

from app.core.model import Millis

NONE = Millis(0)
FIVE_MINUTES = Millis(5 * 60_000)
TEN_MINUTES = Millis(10 * 60_000)
FOUR_HOURS = Millis(4 * 3_600_000)


class Reclaim(Enum):
    """Whose borrowed work may be evicted for others."""

    OFF = "off"
    GUARANTEE = "guarantee"
    """Only to honour a guarantee."""
    FAIR = "fair"
    """Also to even out what is borrowed."""


class WithinQueue(Enum):
    """Whether a user's own work of lower priority may be evicted for that user."""

    NEVER = "Never"
    LOWER_PRIORITY = "LowerPriority"


class Mode(Enum):
    """Whether pods are held."""

    ENFORCE = "Enforce"
    OBSERVE = "Observe"
    """Nothing new is held; what is held is still released in order, and everything is counted."""


@dataclass(frozen=True, slots=True)
class Policy:
    """`history` is how much past borrowing counts next to present borrowing (kappa); 0: not.

    `scheduling_timeout`: so long a released pod may go without a node, `gang_timeout` a gang be
    without some of its pods; 0: for ever.
    """

    history: Fraction = Fraction(0)
    half_life: Millis = FOUR_HOURS
    min_charge: Millis = NONE
    reserve_after: Millis = FIVE_MINUTES
    backfill: bool = True
    reclaim: Reclaim = Reclaim.GUARANTEE
    within_queue: WithinQueue = WithinQueue.NEVER
    min_runtime: Millis = FIVE_MINUTES
    gang_timeout: Millis = TEN_MINUTES
    scheduling_timeout: Millis = FIVE_MINUTES
    mode: Mode = Mode.ENFORCE
