"""Finds quotas of a Tenant without their full effect.

A quota of a pool that does not exist has no effect. A guarantee counts at its own level, among
siblings. So it takes no capacity from other branches of the tree, unless each tenant above has a
guarantee that covers it.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from app.core.fairshare.tenants import TenantDirectory
from app.core.model import PoolName, Tenant, TenantName


@dataclass(frozen=True, slots=True)
class QuotaFaults:
    """Pools that a tenant names and that do not exist, and guarantees that are not covered.

    `uncovered`: pool of the guarantee, and the lowest tenant above that guarantees less.
    """

    missing: tuple[PoolName, ...]
    uncovered: tuple[tuple[PoolName, TenantName], ...]


def quota_faults(
    tenant: Tenant, tenancy: TenantDirectory, pools: Collection[PoolName]
) -> QuotaFaults | None:
    """Return the faults of a tenant's quotas; None if there are none. `pools`: all pools."""
    missing = sorted({*tenant.quotas, *tenant.pools}.difference(pools))
    uncovered = [
        (pool, above)
        for pool in sorted(tenant.quotas)
        if pool in pools and (above := _uncovering_ancestor(tenant, pool, tenancy)) is not None
    ]
    return QuotaFaults(tuple(missing), tuple(uncovered)) if missing or uncovered else None


def _uncovering_ancestor(
    tenant: Tenant, pool: PoolName, tenancy: TenantDirectory
) -> TenantName | None:
    """Return the lowest tenant above that guarantees less of a resource in a pool."""
    guarantee = tenant.quotas[pool].guarantee
    for name in tenancy.lineage(tenant.name)[1:]:
        found = tenancy.tenants.get(name)
        quota = found.quotas.get(pool) if found is not None else None
        covered = quota.guarantee if quota is not None else {}
        if any(covered.get(r, 0) < value for r, value in guarantee.items()):
            return name
    return None
