"""What the REST API asks of whoever looks ahead: the Protocols, and what they answer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Protocol

from app.core.model import Millis, TenantName, Uid, UserName


@dataclass(frozen=True, slots=True)
class Estimate:
    """In how many seconds from `at` a pod is likely to start: half by `p50`, nine of ten by
    `p90`.
    """

    p50: int
    p90: int
    at: Millis


class Forecasts(Protocol):
    """What is foreseen for pods that wait. Answers at once, from what was foreseen last."""

    def estimate(self, uid: Uid) -> Estimate | None:
        """When it is likely to start; None: it would be a guess."""

    def withheld(self, uid: Uid) -> str:
        """Why there is no estimate, in a sentence."""


class NoForecasts:
    """`Forecasts` where nobody foresees anything."""

    def estimate(self, uid: Uid) -> Estimate | None:
        """Nothing is foreseen."""
        return None

    def withheld(self, uid: Uid) -> str:
        """Why: nobody looked ahead."""
        return "There is no estimate yet."


@dataclass(frozen=True, slots=True)
class Changes:
    """Weights in place of those that hold: of tenants, and of users by tenant."""

    weights: Mapping[TenantName, Fraction] = field(default_factory=dict)
    users: Mapping[TenantName, Mapping[UserName, Fraction]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Fared:
    """How a tenant, its child tenants included, fares until the end of a simulation.

    `share` is the mean of its dominant share, `started` how many of the pods that wait now were
    released, `waits` the mean and the 90th percentile of the seconds that these pods go on
    waiting; one that was not released counts with all of the time.
    """

    weight: Fraction
    share: float
    pending: int
    started: int
    mean_wait: float
    p90_wait: float


@dataclass(frozen=True, slots=True)
class Comparison:
    """The same backlog, as things are and with changes: by tenant, `now` and `then`."""

    pods: int
    seconds: float
    assumed: str
    tenants: Mapping[TenantName, tuple[Fared, Fared]]


class Simulations(Protocol):
    """Looks ahead on behalf of a caller."""

    async def compare(self, changes: Changes, hours: float) -> Comparison:
        """Let time run twice. Raises InvalidInput, ForecastBusy, ForecastFailed."""
