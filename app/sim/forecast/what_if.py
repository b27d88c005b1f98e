"""What-if computation: the live backlog with other weights, run forward by the production engine.

Both runs use the same run times and no later arrivals, so they differ only by the change.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from fractions import Fraction

from app.core.errors import InvalidInput
from app.core.explain.snapshot import Snapshot
from app.core.fairshare.tenants import TenantDirectory
from app.core.model import (
    UNMAPPED_PREFIX,
    Millis,
    Resource,
    Tenant,
    TenantName,
    Uid,
)
from app.core.pricing.share_units import Scale
from app.ports.forecasts import TenantForecast, WeightChanges
from app.sim.cluster.virtual_cluster import VirtualCluster
from app.sim.forecast.forward_run import cluster_from_snapshot
from app.sim.forecast.run_times import RunTimes, SampledRunTimes
from app.sim.forecast.worker_protocol import decode_body
from app.sim.metrics.waits import nearest_rank

SEED = 7


def apply_weights(snapshot: Snapshot, changes: WeightChanges) -> tuple[Tenant, ...]:
    """Return the tenants with changed weights. Raises InvalidInput if a tenant is unknown."""
    tenants = {tenant.name: tenant for tenant in snapshot.tenants}
    for name in {**changes.weights, **changes.users}:
        if name.startswith(UNMAPPED_PREFIX):
            raise InvalidInput(
                f"{name} has no Tenant of its own, so it has no weight to change; make one first."
            )
        if name not in tenants:
            raise InvalidInput(f"There is no tenant {name}; kubectl fairgate tenants lists them.")
    for name, weight in changes.weights.items():
        tenants[name] = replace(tenants[name], weight=weight)
    for name, users in changes.users.items():
        known = tenants[name].user_weights
        tenants[name] = replace(tenants[name], user_weights={**known, **users})
    return tuple(tenants.values())


def forecast_tenants(
    snapshot: Snapshot, runs: RunTimes, tenants: Sequence[Tenant], hours: float
) -> dict[TenantName, TenantForecast]:
    """Return shares and waits of each tenant that exists, uses resources or waits.

    `tenants` replaces the tenants of the snapshot.
    """
    tenancy = TenantDirectory()
    for tenant in tenants:
        tenancy.add_tenant(tenant)
    span = int(hours * 3_600_000)
    world = cluster_from_snapshot(
        snapshot, SampledRunTimes(snapshot, runs, tenancy, SEED), tenants=tenants
    )
    world.advance_to(Millis(snapshot.at + span))
    shares = _shares(world, tenancy, span)
    waits = _waits(snapshot, world, tenancy, span)
    names = sorted({*shares, *waits, *tenancy.tenants})
    weights = {tenant.name: tenant.weight for tenant in tenants}
    return {
        name: _tenant_forecast(
            weights.get(name, Fraction(1)), shares.get(name, 0.0), waits.get(name, []), span
        )
        for name in names
    }


def forecast_pickled(
    body: bytes, tenants: Sequence[Tenant], hours: float
) -> dict[TenantName, TenantForecast]:
    """Return `forecast_tenants` of a pickled snapshot and its run times. A worker process calls
    this.
    """
    snapshot, runs = decode_body(body)
    return forecast_tenants(snapshot, runs, tenants, hours)


def _tenant_forecast(
    weight: Fraction, share: float, waits: Sequence[int], span: int
) -> TenantForecast:
    ordered = sorted(min(wait, span) / 1000 for wait in waits)
    return TenantForecast(
        weight=weight,
        share=share,
        pending=len(ordered),
        started=sum(wait <= span for wait in waits),
        mean_wait=math.fsum(ordered) / len(ordered) if ordered else 0.0,
        p90_wait=nearest_rank(ordered, 0.9) if ordered else 0.0,
    )


def _waits(
    snapshot: Snapshot, world: VirtualCluster, tenancy: TenantDirectory, span: int
) -> dict[TenantName, list[int]]:
    """Return the remaining waits of held pods in milliseconds, for their tenants and ancestors.

    A value above `span` means that the pod did not start.
    """
    starts: dict[Uid, Millis] = {started.pod.uid: started.at for started in world.started}
    waits: dict[TenantName, list[int]] = {}
    for pod in snapshot.held:
        wait = starts.get(pod.uid, snapshot.at + span + 1) - snapshot.at
        for name in tenancy.lineage(tenancy.tenant_of(pod.namespace)):
            waits.setdefault(name, []).append(wait)
    return waits


def _shares(world: VirtualCluster, tenancy: TenantDirectory, span: int) -> dict[TenantName, float]:
    """Return the dominant share of each tenant, averaged over the span."""
    queries = world.engine.queries
    scale = queries.scale()
    spent: dict[TenantName, dict[Resource, int]] = {}
    for (tenant, _, pool), amounts in queries.usage_totals(world.now).items():
        counted = scale.usage_in_grains(pool, amounts)
        for name in tenancy.lineage(tenant):
            sums = spent.setdefault(name, {})
            for column, value in counted.items():
                sums[column] = sums.get(column, 0) + value
    return {name: _dominant(sums, scale, span) for name, sums in spent.items()}


def _dominant(spent: Mapping[Resource, int], scale: Scale, span: int) -> float:
    return max((v / (scale.total_grains * span) for v in spent.values()), default=0.0)


def assumptions_text(runs: RunTimes) -> str:
    """Return the assumptions of a simulation about run times and arrivals, in sentences."""
    if not runs:
        return (
            "No pod was seen to end yet: each runs for what it declares, or else for one hour "
            "more. New pods are left out."
        )
    return (
        f"Each pod runs as long as one of the last {len(runs)} that ended did, of the same user "
        "and size where enough are known, and no longer than it declares. New pods are left out."
    )
