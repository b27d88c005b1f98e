"""Who held how much over time, drawn in one line of text."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction

from app.core.model import Amounts, Millis, PoolName, Resource, TenantName
from app.core.places.scale import Scale
from app.sim.work import Moment, Step, Work

BARS = "▁▂▃▄▅▆▇█"
NOTHING = "·"

Worth = Mapping[PoolName, Mapping[Resource, Fraction]]
"""What one unit counts for in a pool; 1 where absent."""


@dataclass(frozen=True, slots=True)
class Stretch:
    """A workload held its devices in a pool from one time to another."""

    work: Work
    pool: PoolName
    start: Millis
    end: Millis


def sparkline(shares: Iterable[float]) -> str:
    """Draw shares of a whole as bars: 1 is the highest, nothing at all is a dot."""
    return "".join(
        NOTHING if share <= 0 else BARS[min(len(BARS) - 1, int(share * len(BARS)))]
        for share in shares
    )


def stretches(timeline: Iterable[Moment], until: Millis) -> Iterator[Stretch]:
    """Return when each workload held what it asked for; until the end, if it still does."""
    holding: dict[Work, Moment] = {}
    for moment in timeline:
        if moment.step is Step.RELEASED:
            holding[moment.work] = moment
        elif moment.step is not Step.SUBMITTED and moment.work in holding:
            yield _stretch(holding.pop(moment.work), moment.at)
    for released in holding.values():
        yield _stretch(released, until)


def shares_over_time(
    timeline: Sequence[Moment],
    offers: Mapping[PoolName, Amounts],
    worth: Worth,
    until: Millis,
    steps: int,
    above: Callable[[TenantName], Sequence[TenantName]],
    scale: Scale | None = None,
) -> Mapping[TenantName, list[float]]:
    """Return the dominant share of every tenant that held anything, averaged over equal steps.

    `above` returns a tenant and those above it, to whom its use counts too. `scale` is for where
    parts of devices are sold.
    """
    size: dict[Resource, float] = {}
    for pool, offered in offers.items() if scale is None else ():
        for resource, value in _priced(offered, pool, worth).items():
            size[resource] = size.get(resource, 0.0) + value
    if scale is not None:
        size = dict.fromkeys(scale.size, float(scale.whole))
    held: dict[TenantName, dict[Resource, list[float]]] = {}
    for stretch in stretches(timeline, until):
        parts = list(_parts(stretch, until, steps))
        demand, pool = stretch.work.demand, stretch.pool
        counted = scale.counted_for(pool, demand) if scale else _priced(demand, pool, worth)
        for resource, value in counted.items():
            for tenant in above(stretch.work.tenant) if size.get(resource) else ():
                row = held.setdefault(tenant, {}).setdefault(resource, [0.0] * steps)
                for step, part in parts:
                    row[step] += part * value * stretch.work.pods / size[resource]
    return {
        tenant: [max(at) for at in zip(*rows.values(), strict=True)]
        for tenant, rows in held.items()
    }


def _stretch(released: Moment, end: Millis) -> Stretch:
    assert released.pool is not None
    return Stretch(released.work, released.pool, released.at, end)


def _parts(stretch: Stretch, until: Millis, steps: int) -> Iterator[tuple[int, float]]:
    """Return the steps that a stretch touches, and how much of each it fills."""
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
