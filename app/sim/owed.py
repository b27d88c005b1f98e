"""The fairness error: what tenants were owed, asked for and did not get, over time.

Its own yardstick, apart from the engine: weighted max-min shares of the devices, by instant.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Mapping
from fractions import Fraction

from app.core.model import TenantName


class Owed:
    """Who asks for how many devices, who holds how many, and how much is amiss right now.

    A tenant's demand is what it holds and what it has waiting. The devices are shared out by
    weight until everyone has either its demand or an equal part for its weight: what it is owed.
    Weight 0 is owed nothing. Guarantees and limits are left out.
    """

    def __init__(self, devices: int, weights: Mapping[TenantName, Fraction]) -> None:
        self._devices = devices
        self._weights = {name: float(weight) for name, weight in weights.items() if weight > 0}
        self._held: dict[TenantName, int] = {}
        self._queued: dict[TenantName, int] = {}
        self._asked: list[tuple[float, TenantName]] = []  # demand over weight, smallest first
        self._demand = 0
        self._waiting = 0
        self._amiss: float | None = 0.0

    def change(self, tenant: TenantName, held: int, queued: int) -> None:
        """Note that a tenant holds and has waiting so many devices more (or fewer)."""
        weight = self._weights.get(tenant)
        if weight is None:
            return
        before = self._held.get(tenant, 0) + self._queued.get(tenant, 0)
        self._held[tenant] = self._held.get(tenant, 0) + held
        self._queued[tenant] = self._queued.get(tenant, 0) + queued
        after = before + held + queued
        self._demand += held + queued
        self._waiting += queued
        self._amiss = None
        if after == before:
            return
        if before:
            self._asked.remove((before / weight, tenant))
        if after:
            insort(self._asked, (after / weight, tenant))

    def amiss(self) -> float:
        """Return the devices owed and asked for but not held, summed over the tenants."""
        if self._amiss is None:
            self._amiss = self._compute() if self._waiting else 0.0
        return self._amiss

    def _compute(self) -> float:
        """Fill from the top: those who ask for most, for their weight, get the same part of it.

        The others get all they ask for, so what they have waiting is amiss.
        """
        if self._demand <= self._devices:
            return float(self._waiting)
        left, weights, part = float(self._devices - self._demand), 0.0, 0.0
        capped = 0
        for ratio, tenant in reversed(self._asked):
            if capped and part >= ratio:
                break
            left += self._held[tenant] + self._queued[tenant]
            weights += self._weights[tenant]
            part = left / weights
            capped += 1
        short = self._waiting
        missing = 0.0
        for _, tenant in self._asked[len(self._asked) - capped :]:
            short -= self._queued[tenant]
            missing += max(0.0, self._weights[tenant] * part - self._held[tenant])
        return missing + short
