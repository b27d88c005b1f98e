"""Fairness error: devices that tenants were entitled to, requested and did not get, over time.

Computed without the engine: weighted max-min fair shares of the devices at each instant.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Mapping
from fractions import Fraction

from app.core.model import TenantName


class FairnessErrors:
    """Held and waiting devices of each tenant, and the fairness error at this instant.

    The demand of a tenant is its held and waiting devices. The devices are divided by weight
    until each tenant has its demand or an equal part per weight: its entitled share. Weight 0 has
    no entitled share. Guarantees and limits are ignored.
    """

    def __init__(self, devices: int, weights: Mapping[TenantName, Fraction]) -> None:
        self._devices = devices
        self._weights = {name: float(weight) for name, weight in weights.items() if weight > 0}
        self._held: dict[TenantName, int] = {}
        self._queued: dict[TenantName, int] = {}
        self._demand_ratios: list[
            tuple[float, TenantName]
        ] = []  # demand over weight, smallest first
        self._demand = 0
        self._waiting = 0
        self._error: float | None = 0.0

    def add_devices(self, tenant: TenantName, held: int, queued: int) -> None:
        """Add to the held and the waiting devices of a tenant; amounts may be negative."""
        weight = self._weights.get(tenant)
        if weight is None:
            return
        before = self._held.get(tenant, 0) + self._queued.get(tenant, 0)
        self._held[tenant] = self._held.get(tenant, 0) + held
        self._queued[tenant] = self._queued.get(tenant, 0) + queued
        after = before + held + queued
        self._demand += held + queued
        self._waiting += queued
        self._error = None
        if after == before:
            return
        if before:
            self._demand_ratios.remove((before / weight, tenant))
        if after:
            insort(self._demand_ratios, (after / weight, tenant))

    def current_error(self) -> float:
        """Return the sum over tenants of the entitled and requested devices that are not held."""
        if self._error is None:
            self._error = self._compute() if self._waiting else 0.0
        return self._error

    def _compute(self) -> float:
        """Cap the tenants with the largest demand per weight at an equal part per weight.

        All other tenants are entitled to their demand, so all their waiting devices are missing.
        """
        if self._demand <= self._devices:
            return float(self._waiting)
        left, weights, part = float(self._devices - self._demand), 0.0, 0.0
        capped = 0
        for ratio, tenant in reversed(self._demand_ratios):
            if capped and part >= ratio:
                break
            left += self._held[tenant] + self._queued[tenant]
            weights += self._weights[tenant]
            part = left / weights
            capped += 1
        short = self._waiting
        missing = 0.0
        for _, tenant in self._demand_ratios[len(self._demand_ratios) - capped :]:
            short -= self._queued[tenant]
            missing += max(0.0, self._weights[tenant] * part - self._held[tenant])
        return missing + short
