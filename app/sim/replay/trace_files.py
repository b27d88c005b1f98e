"""Reads logs of real clusters as workloads, filters them and shifts their arrivals.

Times are in milliseconds from the zero of the file.
"""

from __future__ import annotations

import random
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from pathlib import Path

from app.core.errors import InvalidInput
from app.core.model import Millis, PoolName, Quota, Resource, Tenant, TenantName, UserName
from app.core.quantities import CPU, PODS
from app.sim.cluster.workload import SimulatedWorkload
from app.sim.replay.csv_rows import CsvRow, read_rows
from app.sim.scenario.value_parsers import did_you_mean
from app.sim.scenario.workloads import MOST_PODS

DEVICE = Resource("nvidia.com/gpu")
MEMORY = Resource("memory")
GIB = 1024**3
SECOND = 1_000

WHOLE, THOUSANDTHS = 1, 1_000
"""Units per device in which amounts are counted."""

NOBODY = "all"
"""Tenant and user of rows that do not name one."""

COLUMNS = ("submit_s", "tenant", "user", "job_id", "pods", "gpus_per_pod", "duration_s")


@dataclass(frozen=True, slots=True)
class TraceLog:
    """The workloads of a log in order of arrival. One device is `scale` units."""

    works: tuple[SimulatedWorkload, ...]
    scale: int


def read_log(
    path: Path,
    *,
    flat: bool = False,
    tenant: str | None = None,
    models: Mapping[str, PoolName] | None = None,
) -> TraceLog:
    """Read a log. `flat` makes every user a tenant, `tenant` keeps only that tenant's rows.

    `models` maps a device model to its pool; if None, models are ignored. Devices are counted in
    thousandths if any row requests a part of one. Raises InvalidInput.
    """
    rows = list(read_rows(path, COLUMNS))
    if tenant is not None:
        rows = _of_tenant(path, rows, tenant)
    if not rows:
        raise InvalidInput(f"{path} holds no jobs; give a log with at least one row.")
    wanted = [row.number("gpus_per_pod") for row in rows]
    scale = WHOLE if all(gpus.denominator == 1 for gpus in wanted) else THOUSANDTHS
    works = [
        _work(row, gpus, scale, flat=flat, models=models)
        for row, gpus in zip(rows, wanted, strict=True)
    ]
    _refuse_repeats(rows)
    return TraceLog(tuple(sorted(works, key=lambda work: work.at)), scale)


def shift_arrivals(
    works: Sequence[SimulatedWorkload], by: Millis, seed: int
) -> tuple[SimulatedWorkload, ...]:
    """Shift every arrival by a random time in [-by, +by], never before 0, and sort them again."""
    dice = random.Random(seed)  # noqa: S311 - repeatable shifts, no secret
    moved = [replace(work, at=Millis(max(0, work.at + dice.randint(-by, by)))) for work in works]
    return tuple(sorted(moved, key=lambda work: work.at))


def make_elastic(log: TraceLog, percent: int, seed: int) -> TraceLog:
    """Make a part of the jobs with several devices elastic. Only whole devices are divided.

    Such a job has one pod for each device, and a quarter of them is its minimum. Raises
    InvalidInput for a job of more than `MOST_PODS`.
    """
    dice = random.Random(seed)  # noqa: S311 - a repeatable choice, no secret
    works = [_elastic(w, log.scale) if dice.randrange(100) < percent else w for w in log.works]
    return TraceLog(tuple(works), log.scale)


def _elastic(work: SimulatedWorkload, scale: int) -> SimulatedWorkload:
    each, rest = divmod(work.demand.get(DEVICE, 0), scale)
    devices = each * work.pods
    if rest or devices < 2:
        return work
    if devices > MOST_PODS:
        raise InvalidInput(
            f"job {work.name} has {devices} devices, which --elastic makes pods; "
            f"a job has {MOST_PODS} pods at most."
        )
    shared = {r: -(-v // each) for r, v in work.demand.items() if r != PODS}
    least = max(1, devices // 4)
    return replace(work, pods=devices, min_pods=least, demand={**shared, PODS: 1})


def tenants_of(works: Sequence[SimulatedWorkload]) -> dict[TenantName, Tenant]:
    """Return the tenants that the workloads name, of weight 1, in order of arrival."""
    return {
        work.tenant: Tenant(work.tenant, Millis(0), namespaces=(work.tenant,)) for work in works
    }


def read_tenants(
    path: Path, tenants: Mapping[TenantName, Tenant], pools: Sequence[PoolName], scale: int
) -> dict[TenantName, Tenant]:
    """Return the tenants with weights, guarantees and limits from a file. Raises InvalidInput."""
    known = dict(tenants)
    seen: set[TenantName] = set()
    for row in read_rows(path, ("tenant", "weight", "guarantee_gpus", "limit_gpus")):
        name = TenantName(row.required_text("tenant"))
        if name in seen:
            raise InvalidInput(f"{row.origin}: tenant: {name} is there twice; keep one row of it.")
        if name not in known:
            raise InvalidInput(
                f"{row.origin}: tenant: {name} has no job in this log{did_you_mean(name, known)}; "
                "remove the row, or mend the name."
            )
        seen.add(name)
        known[name] = replace(
            known[name], weight=row.number("weight", 1), quotas=_quotas(row, pools, scale)
        )
    return known


def _quotas(row: CsvRow, pools: Sequence[PoolName], scale: int) -> dict[PoolName, Quota]:
    guarantee = row.whole_number("guarantee_gpus", 0, 0) * scale
    limited = row.text("limit_gpus") != ""
    limit = row.whole_number("limit_gpus", 0, 0) * scale
    if not guarantee and not limited:
        return {}
    if len(pools) > 1:
        raise InvalidInput(
            f"{row.origin}: guarantee_gpus: this cluster has {len(pools)} pools, and the file "
            "cannot say which; leave guarantee_gpus and limit_gpus empty, or replay with --gpus N."
        )
    if limited and guarantee > limit:
        raise InvalidInput(
            f"{row.origin}: guarantee_gpus: {guarantee // scale} is over the limit of "
            f"{limit // scale}; write a guarantee within the limit."
        )
    return {pools[0]: Quota({DEVICE: guarantee}, {DEVICE: limit} if limited else {})}


def _of_tenant(path: Path, rows: Sequence[CsvRow], tenant: str) -> list[CsvRow]:
    kept = [row for row in rows if row.text("tenant") == tenant]
    if not kept:
        names = {row.text("tenant"): None for row in rows}
        raise InvalidInput(
            f"{path} has no tenant {tenant}{did_you_mean(tenant, names)}; choose one of "
            f"{', '.join(sorted(filter(None, names))[:20]) or 'none, for its rows name no tenant'}."
        )
    return kept


def _work(
    row: CsvRow,
    gpus: Fraction,
    scale: int,
    *,
    flat: bool,
    models: Mapping[str, PoolName] | None,
) -> SimulatedWorkload:
    user = row.text("user") or row.text("tenant") or NOBODY
    demand = {
        DEVICE: int(gpus * scale),
        CPU: row.scaled_number("cpus_per_pod", 1000, 0),
        MEMORY: row.scaled_number("mem_gib_per_pod", GIB, 0),
    }
    if gpus * scale != demand[DEVICE]:
        raise InvalidInput(
            f"{row.origin}: gpus_per_pod: {row.text('gpus_per_pod')} is finer than a thousandth of "
            "a device; write at most three digits after the point."
        )
    duration = row.text("duration_s")
    return SimulatedWorkload(
        name=row.required_text("job_id"),
        tenant=TenantName(user if flat else row.text("tenant") or NOBODY),
        user=UserName(user),
        at=Millis(row.scaled_number("submit_s", SECOND)),
        demand={resource: units for resource, units in demand.items() if units} | {PODS: 1},
        pods=row.whole_number("pods", 1, 1, MOST_PODS),
        duration=Millis(row.scaled_number("duration_s", SECOND)) if duration else None,
        priority=_priority(row),
        pools=_pools(row.text("gpu_model"), models) if gpus else (),
    )


def _priority(row: CsvRow) -> int:
    """Return the priority; 0 if the row has a class of service instead (openb: LS, BE, ...)."""
    written = row.text("priority")
    return row.signed_number("priority") if re.match(r"[+-]?\d", written, re.ASCII) else 0


def _pools(written: str, models: Mapping[str, PoolName] | None) -> tuple[PoolName, ...]:
    if models is None or not written:
        return ()
    names = [model.strip() for model in written.split("|")]
    return tuple(dict.fromkeys(models.get(n.lower(), PoolName(n.lower())) for n in names))


def _refuse_repeats(rows: Sequence[CsvRow]) -> None:
    first: dict[str, str] = {}
    for row in rows:
        earlier = first.setdefault(row.text("job_id"), row.origin)
        if earlier != row.origin:
            raise InvalidInput(
                f"{row.origin}: job_id: {row.text('job_id')} is also at {earlier}; "
                "give every job its own name."
            )
