"""Usage over time, drawn as bars in one line of text."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction

from app.core.model import Amounts, Millis, PoolName, Resource, TenantName
from app.core.pricing.share_units import Scale
from app.sim.cluster.workload import SimulatedWorkload, TimelineEntry, TimelineStep

BARS = "▁▂▃▄▅▆▇█"
NOTHING = "·"

Worth = Mapping[PoolName, Mapping[Resource, Fraction]]
"""Weight of one unit of a resource in a pool; 1 if absent."""


@dataclass(frozen=True, slots=True)
class Bar:
    """Period in which a workload held its devices in a pool."""

    work: SimulatedWorkload
    pods: int
    pool: PoolName
    start: Millis
    end: Millis


def sparkline(shares: Iterable[float]) -> str:
    """Draw shares of a whole as bars: 1 is the highest bar, 0 is a dot."""
    return "".join(
        NOTHING if share <= 0 else BARS[min(len(BARS) - 1, int(share * len(BARS)))]
        for share in shares
    )


def usage_periods(timeline: Iterable[TimelineEntry], until: Millis) -> Iterator[Bar]:
    """Yield when the pods of each workload held their request; up to `until` if they still do."""
    holding: dict[SimulatedWorkload, list[TimelineEntry]] = {}
    for moment in timeline:
        if moment.change > 0:
            holding.setdefault(moment.work, []).append(moment)
        elif moment.step is TimelineStep.SHRANK:
            yield _stretch(holding[moment.work].pop(), moment.at)
        elif moment.change < 0:
            yield from (_stretch(each, moment.at) for each in holding.pop(moment.work, ()))
    for released in holding.values():
        yield from (_stretch(each, until) for each in released)


def shares_over_time(
    timeline: Sequence[TimelineEntry],
    offers: Mapping[PoolName, Amounts],
    worth: Worth,
    until: Millis,
    steps: int,
    above: Callable[[TenantName], Sequence[TenantName]],
    scale: Scale | None = None,
) -> Mapping[TenantName, list[float]]:
    """Return the dominant share of every tenant with usage, averaged over equal steps.

    `above` returns a tenant and its ancestors, because its usage also counts for them. `scale` is
    set if pods may request parts of devices.
    """
    size: dict[Resource, float] = {}
    for pool, offered in offers.items() if scale is None else ():
        for resource, value in _priced(offered, pool, worth).items():
            size[resource] = size.get(resource, 0.0) + value
    if scale is not None:
        size = dict.fromkeys(scale.size, float(scale.total_grains))
    held: dict[TenantName, dict[Resource, list[float]]] = {}
    for stretch in usage_periods(timeline, until):
        parts = list(_parts(stretch, until, steps))
        demand, pool = stretch.work.demand, stretch.pool
        counted = scale.demand_in_grains(pool, demand) if scale else _priced(demand, pool, worth)
        for resource, value in counted.items():
            for tenant in above(stretch.work.tenant) if size.get(resource) else ():
                row = held.setdefault(tenant, {}).setdefault(resource, [0.0] * steps)
                for step, part in parts:
                    row[step] += part * value * stretch.pods / size[resource]
    return {
        tenant: [max(at) for at in zip(*rows.values(), strict=True)]
        for tenant, rows in held.items()
    }


def _stretch(released: TimelineEntry, end: Millis) -> Bar:
    assert released.pool is not None
    return Bar(released.work, released.change, released.pool, released.at, end)


def _parts(stretch: Bar, until: Millis, steps: int) -> Iterator[tuple[int, float]]:
    """Yield the steps that a stretch touches, and the part of each that it fills."""
    start, end = max(0, stretch.start), min(until, stretch.end)
    first, last = start * steps // until, min(steps - 1, end * steps // until)
    for step in range(first, last + 1):
        left, right = step * until / steps, (step + 1) * until / steps
        part = (min(end, right) - max(start, left)) / (right - left)
        if part > 0:
            yield step, part


def _priced(amounts: Amounts, pool: PoolName, worth: Worth) -> dict[Resource, float]:
    prices = worth.get(pool, {})
    return {r: float(v * prices.get(r, 1)) for r, v in amounts.items()}
