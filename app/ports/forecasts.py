"""Protocols and values of wait estimates and what-if simulations for the REST API."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Protocol

from app.core.model import Millis, TenantName, Uid, UserName


@dataclass(frozen=True, slots=True)
class Estimate:
    """Estimated wait of a pod in seconds from `at`: median and 90th percentile."""

    p50: int
    p90: int
    at: Millis


class Forecasts(Protocol):
    """Wait estimates of waiting pods. Answers at once, from the last forecast."""

    def estimate(self, uid: Uid) -> Estimate | None:
        """Return the estimated wait, or None if it would be a guess."""

    def withheld(self, uid: Uid) -> str:
        """Return why there is no estimate, as a sentence."""


@dataclass(frozen=True, slots=True)
class WeightChanges:
    """Weights to try in place of the current ones: per tenant, and per user of a tenant."""

    weights: Mapping[TenantName, Fraction] = field(default_factory=dict)
    users: Mapping[TenantName, Mapping[UserName, Fraction]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class TenantForecast:
    """Result of a simulation for one tenant, its child tenants included.

    `share` is the mean dominant share. `pending` counts the pods that wait now, `started` the
    released ones among them. `mean_wait` and `p90_wait` are their further waiting times in seconds.
    A pod that was not released counts with the whole simulated time.
    """

    weight: Fraction
    share: float
    pending: int
    started: int
    mean_wait: float
    p90_wait: float


@dataclass(frozen=True, slots=True)
class Comparison:
    """Simulations of the same backlog without and with changes: per tenant (`now`, `then`)."""

    pods: int
    seconds: float
    assumed: str
    tenants: Mapping[TenantName, tuple[TenantForecast, TenantForecast]]


class Simulations(Protocol):
    """Runs what-if simulations for a caller."""

    async def compare(self, changes: WeightChanges, hours: float) -> Comparison:
        """Simulate without and with changes. Raises InvalidInput, ForecastBusy, ForecastFailed."""
