"""The Policy resource as values. The defaults apply if there is no Policy object."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from fractions import Fraction

from app.core.model import Millis

ZERO = Millis(0)
FIVE_MINUTES = Millis(5 * 60_000)
TEN_MINUTES = Millis(10 * 60_000)
FOUR_HOURS = Millis(4 * 3_600_000)


class Reclaim(Enum):
    """Which borrowing pods may be evicted for other tenants."""

    OFF = "off"
    GUARANTEE = "guarantee"
    """Only for a guarantee."""
    FAIR = "fair"
    """Also to balance borrowed capacity."""


class WithinQueue(Enum):
    """Whether a user's pods of lower priority may be evicted for pods of the same user."""

    NEVER = "Never"
    LOWER_PRIORITY = "LowerPriority"


class DisruptionBudgets(Enum):
    """Treatment of a pod that a guarantee needs and a PodDisruptionBudget protects."""

    RESPECT = "Respect"
    """The pod stays."""
    OVERRIDE = "Override"
    """The pod is deleted after its eviction was refused for a while."""


class Mode(Enum):
    """Whether pods are held."""

    ENFORCE = "Enforce"
    OBSERVE = "Observe"
    """New pods are not held. Held pods are still released in order, and all pods are counted."""


ENFORCE_COMMAND = (
    "kubectl patch policies.fairgate.io default --type merge "
    """-p '{"spec": {"mode": "Enforce"}}'"""
)
"""The command that sets mode Enforce in the Policy object, whose mode overrides the chart's."""


@dataclass(frozen=True, slots=True)
class Policy:
    """Values of the Policy. Durations are in milliseconds.

    `history`: weight of past borrowing relative to present borrowing (kappa); 0 ignores the past.
    `evict_unowned`: evict pods without a controller too if they stay unbound.
    `max_unbound`: limit of released, unbound pods per pool; it rises while the scheduler binds
        fast.
    `max_unowned_unbound`: limit of such pods without a controller per user.
    `scheduling_timeout`: longest time a released pod may be unbound; 0 for no limit.
    `max_reclaim_notice`: longest notice before a reclaim, whatever the pod wants; 0 for none.
    `gang_timeout`: longest time a gang may be incomplete; 0 for no limit.
    """

    history: Fraction = Fraction(0)
    half_life: Millis = FOUR_HOURS
    min_charge: Millis = ZERO
    reserve_after: Millis = FIVE_MINUTES
    backfill: bool = True
    reclaim: Reclaim = Reclaim.GUARANTEE
    within_queue: WithinQueue = WithinQueue.NEVER
    min_runtime: Millis = FIVE_MINUTES
    max_reclaim_notice: Millis = FIVE_MINUTES
    gang_timeout: Millis = TEN_MINUTES
    scheduling_timeout: Millis = FIVE_MINUTES
    evict_unowned: bool = False
    max_unbound: int = 256
    max_unowned_unbound: int = 16
    mode: Mode = Mode.ENFORCE
    disruption_budgets: DisruptionBudgets = DisruptionBudgets.RESPECT

    @property
    def overrides_budgets(self) -> bool:
        """Return whether a guarantee overrides disruption budgets."""
        return self.disruption_budgets is DisruptionBudgets.OVERRIDE

    @property
    def reclaims_over_budgets(self) -> bool:
        """Return whether no reclaim is subject to budgets, so that their pods may borrow."""
        return self.overrides_budgets and self.reclaim is Reclaim.GUARANTEE
