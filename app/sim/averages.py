"""What was held and owed on average over a window, found by playing a timeline once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction

from app.core.model import Amounts, Millis, PoolName, Resource, TenantName
from app.core.places.scale import Scale
from app.sim.owed import Owed
from app.sim.waits import devices_of
from app.sim.work import Moment, Step, Work


@dataclass(frozen=True, slots=True)
class Averages:
    """Dominant shares of the tenants, use by resource, and what was owed and missing."""

    shares: Mapping[TenantName, float]
    utilisation: Mapping[Resource, float]
    amiss: float


def average(
    timeline: Sequence[Moment],
    capacity: Amounts,
    start: Millis,
    end: Millis,
    weights: Mapping[TenantName, Fraction],
    device: Resource | None,
    scale: Scale | None = None,
) -> Averages:
    """Return the averages over [start, end]; of an instant, when both are the same.

    Shares are parts of `scale`, where one is given; else of the capacity in each resource.
    """
    play = _Play(capacity, start, end, weights, device, scale)
    instant = start
    for moment in timeline:
        if moment.at > end:
            break
        if moment.at != instant:
            play.settle(instant)
            instant = moment.at
        play.hear(moment)
    play.settle(instant)
    return play.result()


class _Average:
    """The average of a value over the window, told of each change; at one instant: the value."""

    __slots__ = ("_area", "_end", "_last", "_start", "_value")

    def __init__(self, start: Millis, end: Millis) -> None:
        self._start, self._end = start, end
        self._last: int = start
        self._area = 0.0
        self._value = 0.0

    def set(self, value: float, at: Millis) -> None:
        if at > self._last:
            self._area += self._value * (at - self._last)
            self._last = at
        self._value = value

    def result(self) -> float:
        if self._start == self._end:
            return self._value
        self.set(self._value, self._end)
        return self._area / (self._end - self._start)


class _Play:
    """The state of the cluster while a timeline is played up to the end of the window."""

    def __init__(
        self,
        capacity: Amounts,
        start: Millis,
        end: Millis,
        weights: Mapping[TenantName, Fraction],
        device: Resource | None,
        scale: Scale | None,
    ) -> None:
        self._scale = scale
        self._pools: dict[Work, PoolName] = {}
        self._parts: dict[TenantName, dict[Resource, int]] = {}
        self._window = start, end
        self._device = device
        self._sizes = {resource: amount for resource, amount in capacity.items() if amount > 0}
        self._waiting: set[Work] = set()
        self._held: dict[TenantName, dict[Resource, int]] = {}
        self._total = dict.fromkeys(self._sizes, 0)
        self._shares: dict[TenantName, _Average] = {}
        self._used = {resource: _Average(start, end) for resource in self._sizes}
        self._owed = Owed(self._sizes.get(device, 0) if device is not None else 0, weights)
        self._amiss = _Average(start, end)

    def hear(self, moment: Moment) -> None:
        work, step = moment.work, moment.step
        enters = step is Step.SUBMITTED or step is Step.EVICTED
        leaves = step is Step.RELEASED and work in self._waiting
        if enters:
            self._waiting.add(work)
        elif leaves:
            self._waiting.remove(work)
        sign = 0 if step is Step.SUBMITTED else 1 if step is Step.RELEASED else -1
        devices = devices_of(work, self._device)
        self._owed.change(work.tenant, sign * devices, devices * (enters - leaves))
        if moment.pool is not None:
            self._pools[work] = moment.pool
        if sign:
            self._use(work, sign, moment.at)

    def settle(self, at: Millis) -> None:
        """Everything of this instant was heard: what is amiss now lasts until the next."""
        self._amiss.set(self._owed.amiss(), at)

    def result(self) -> Averages:
        return Averages(
            {tenant: share.result() for tenant, share in self._shares.items()},
            {resource: use.result() for resource, use in self._used.items()},
            self._amiss.result(),
        )

    def _use(self, work: Work, sign: int, at: Millis) -> None:
        held = self._held.get(work.tenant)
        if held is None:
            held = self._held[work.tenant] = dict.fromkeys(self._sizes, 0)
            self._shares[work.tenant] = _Average(*self._window)
        dominant = 0.0
        for resource, size in self._sizes.items():
            change = sign * work.demand.get(resource, 0) * work.pods
            if change:
                held[resource] += change
                self._total[resource] += change
                self._used[resource].set(self._total[resource] / size, at)
            dominant = max(dominant, held[resource] / size)
        if self._scale is not None:
            dominant = self._priced(self._scale, work, sign)
        self._shares[work.tenant].set(dominant, at)

    def _priced(self, scale: Scale, work: Work, sign: int) -> float:
        """Return the share of a tenant after a change, where parts of devices are sold."""
        held = self._parts.setdefault(work.tenant, {})
        pool = self._pools.get(work)
        counted = scale.counted_for(pool, work.demand) if pool is not None else {}
        for column, grains in counted.items():
            held[column] = held.get(column, 0) + sign * grains * work.pods
        return max(held.values(), default=0) / scale.whole
