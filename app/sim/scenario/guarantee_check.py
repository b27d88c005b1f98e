"""Warnings about guarantees above capacity. Not an error, because nodes come and go."""

from __future__ import annotations

from collections.abc import Iterator

from app.core.model import PoolName, Resource
from app.core.quantities import format_amount
from app.sim.metrics.tenant_tree import TenantTree
from app.sim.scenario.loader import Scenario


def guarantee_warnings(scenario: Scenario) -> Iterator[str]:
    """Yield a warning for each resource of a pool with guarantees above its capacity."""
    for pool, offered in scenario.cluster.offers.items():
        for resource, size in offered.items():
            sentence = _guarantee_warning(scenario, pool, resource, size)
            if sentence:
                yield f"{scenario.name}: {sentence}"


def _guarantee_warning(scenario: Scenario, pool: PoolName, resource: Resource, size: int) -> str:
    own = {
        tenant.name: tenant.quotas[pool].guarantee.get(resource, 0)
        for tenant in scenario.tenants
        if pool in tenant.quotas
    }
    most = max(own, key=lambda name: own[name], default=None)
    if most is not None and own[most] > size:
        return (
            f"tenant {most} is guaranteed {format_amount(resource, own[most])} {resource} of pool "
            f"{pool}, "
            f"which has {format_amount(resource, size)}, so it can never have them all; lower the "
            "guarantee or make the pool larger."
        )
    promised = TenantTree(scenario.tenants).sum_guarantees(own)
    if promised > size:
        return (
            f"{format_amount(resource, promised)} {resource} of pool {pool} are guaranteed in all, "
            "but it "
            f"has {format_amount(resource, size)}, so not every guarantee can be kept at once; "
            "lower them or make the pool larger."
        )
    return ""
