"""Devices held by each tenant over time, averaged over equal slices of a window."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from app.core.model import Millis, Resource
from app.sim.cluster.workload import TimelineEntry, TimelineStep
from app.sim.metrics.waits import devices_of

Holdings = Mapping[str, Sequence[float]]
"""Devices held by each tenant, one number per slice."""


def holdings(
    timeline: Sequence[TimelineEntry],
    device: Resource,
    start: Millis,
    end: Millis,
    slices: int,
    unit: int = 1,
) -> Holdings:
    """Return the devices held by each tenant that held any; `unit` base units are one device."""
    held: dict[str, int] = {}
    since: dict[str, int] = {}
    areas: dict[str, list[float]] = {}
    width = (end - start) / slices

    def settle(tenant: str, at: int) -> None:
        """Add the devices held since the last change to the slices that this time covers."""
        left, right = max(since.get(tenant, start), start), min(at, end)
        since[tenant] = at
        amount = held.get(tenant, 0)
        if not amount or right <= left:
            return
        row = areas.setdefault(tenant, [0.0] * slices)
        first = min(int((left - start) / width), slices - 1)
        last = min(int((right - start) / width), slices - 1)
        for index in range(first, last + 1):
            low = max(left, start + index * width)
            high = min(right, start + (index + 1) * width)
            row[index] += amount * max(0.0, high - low)

    for moment in timeline:
        if moment.step is not TimelineStep.SUBMITTED:
            tenant: str = moment.work.tenant
            settle(tenant, moment.at)
            change = devices_of(moment.work, device, moment.change)
            held[tenant] = held.get(tenant, 0) + change
    for name in held:
        settle(name, end)
    return {name: [area / width / unit for area in row] for name, row in areas.items()}


def largest_holders(runs: Iterable[Holdings], most: int) -> list[str]:
    """Return the `most` tenants with the largest sums over all runs, largest first."""
    totals: dict[str, float] = {}
    for held in runs:
        for tenant, row in held.items():
            totals[tenant] = totals.get(tenant, 0.0) + sum(row)
    return sorted(totals, key=lambda tenant: (-totals[tenant], tenant))[:most]
