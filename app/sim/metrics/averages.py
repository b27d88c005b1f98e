"""Time-weighted averages of usage and fairness error over a window, in one pass over a timeline."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction

from app.core.model import Amounts, Millis, PoolName, Resource, TenantName
from app.core.pricing.share_units import Scale
from app.sim.cluster.workload import SimulatedWorkload, TimelineEntry, TimelineStep
from app.sim.metrics.fairness_error import FairnessErrors
from app.sim.metrics.waits import devices_of


@dataclass(frozen=True, slots=True)
class Averages:
    """Dominant shares of tenants, utilisation by resource, and the fairness error in devices."""

    shares: Mapping[TenantName, float]
    utilisation: Mapping[Resource, float]
    fairness_error: float


def average(
    timeline: Sequence[TimelineEntry],
    capacity: Amounts,
    start: Millis,
    end: Millis,
    weights: Mapping[TenantName, Fraction],
    device: Resource | None,
    scale: Scale | None = None,
) -> Averages:
    """Return the averages over [start, end]; if both are equal, the values at `start`.

    Shares are relative to `scale` if it is given, else to the capacity of each resource.
    """
    play = _Play(capacity, start, end, weights, device, scale)
    instant = start
    for moment in timeline:
        if moment.at > end:
            break
        if moment.at != instant:
            play.end_instant(instant)
            instant = moment.at
        play.apply_entry(moment)
    play.end_instant(instant)
    return play.result()


class _Average:
    """Time-weighted average of a value over the window; the last value if the window is empty."""

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
        self._pools: dict[SimulatedWorkload, PoolName] = {}
        self._scaled_usage: dict[TenantName, dict[Resource, int]] = {}
        self._window = start, end
        self._device = device
        self._sizes = {resource: amount for resource, amount in capacity.items() if amount > 0}
        self._waiting: dict[SimulatedWorkload, int] = {}
        """Waiting pods of each workload."""
        self._held: dict[TenantName, dict[Resource, int]] = {}
        self._total = dict.fromkeys(self._sizes, 0)
        self._shares: dict[TenantName, _Average] = {}
        self._used = {resource: _Average(start, end) for resource in self._sizes}
        self._fairness_errors = FairnessErrors(
            self._sizes.get(device, 0) if device is not None else 0, weights
        )
        self._error_average = _Average(start, end)

    def apply_entry(self, moment: TimelineEntry) -> None:
        work, change = moment.work, moment.change
        before = self._waiting.get(work, 0)
        if moment.step is TimelineStep.SUBMITTED:
            after = work.pods
        elif moment.step is TimelineStep.ENDED:
            after = 0
        else:
            after = max(0, before - change)  # workloads that run at the start never waited
        self._waiting[work] = after
        if not after:
            del self._waiting[work]
        devices = devices_of(work, self._device, 1)
        self._fairness_errors.add_devices(work.tenant, change * devices, (after - before) * devices)
        if moment.pool is not None:
            self._pools[work] = moment.pool
        if change:
            self._add_usage(work, change, moment.at)

    def end_instant(self, at: Millis) -> None:
        """Apply all moments of one instant: its fairness error lasts until the next instant."""
        self._error_average.set(self._fairness_errors.current_error(), at)

    def result(self) -> Averages:
        return Averages(
            {tenant: share.result() for tenant, share in self._shares.items()},
            {resource: use.result() for resource, use in self._used.items()},
            self._error_average.result(),
        )

    def _add_usage(self, work: SimulatedWorkload, pods: int, at: Millis) -> None:
        held = self._held.get(work.tenant)
        if held is None:
            held = self._held[work.tenant] = dict.fromkeys(self._sizes, 0)
            self._shares[work.tenant] = _Average(*self._window)
        dominant = 0.0
        for resource, size in self._sizes.items():
            change = pods * work.demand.get(resource, 0)
            if change:
                held[resource] += change
                self._total[resource] += change
                self._used[resource].set(self._total[resource] / size, at)
            dominant = max(dominant, held[resource] / size)
        if self._scale is not None:
            dominant = self._scaled_share(self._scale, work, pods)
        self._shares[work.tenant].set(dominant, at)

    def _scaled_share(self, scale: Scale, work: SimulatedWorkload, pods: int) -> float:
        """Return the dominant share of a tenant after a change, in units of the scale."""
        held = self._scaled_usage.setdefault(work.tenant, {})
        pool = self._pools.get(work)
        counted = scale.demand_in_grains(pool, work.demand) if pool is not None else {}
        for column, grains in counted.items():
            held[column] = held.get(column, 0) + pods * grains
        return max(held.values(), default=0) / scale.total_grains
