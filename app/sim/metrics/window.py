"""Figures of a timeline: fairness, waits and utilisation, as defined in `fairness.md`, section 7.

The input is a list of moments. The module uses neither the engine nor files.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import TypeVar

from app.core.lifecycle.lost_work import lost_time
from app.core.model import Amounts, Millis, Resource, TenantName, UserName
from app.core.pricing.share_units import Scale
from app.sim.cluster.workload import SimulatedWorkload, TimelineEntry, TimelineStep
from app.sim.metrics.averages import average
from app.sim.metrics.starvation import longest_starving
from app.sim.metrics.waits import (
    SIZE_NAMES,
    Waits,
    devices_of,
    nearest_rank,
    size_class,
    summarize_waits,
    waits_of,
)

MetricKey = TypeVar("MetricKey")

HOUR = 3_600_000
STARVED = {"1h": HOUR, "4h": 4 * HOUR, "12h": 12 * HOUR}


@dataclass(frozen=True, slots=True)
class LongWait:
    """Wait of one workload, in seconds."""

    work: SimulatedWorkload
    seconds: float


@dataclass(frozen=True, slots=True)
class UserWaits:
    """Mean, median and 95th percentile of the mean waits of the users, in seconds."""

    mean: float = 0.0
    p50: float = 0.0
    p95: float = 0.0
    users: int = 0


@dataclass(frozen=True, slots=True)
class Measures:
    """The figures of one window. Waits are in seconds.

    `jain`: Jain's index of the weighted dominant shares, averaged over the window.
    `fairness_error`: devices that tenants were entitled to, requested and did not get, on average.
    `starved_users`: number of users with queued work and no released work for that long.
    `user_waits`: statistics of each user's mean wait. `longest`: the large gang with the longest
    wait. `longest_of_others`: the large gang of another user with the longest wait.
    """

    jain: float
    fairness_error: float
    utilisation: Mapping[Resource, float]
    starved_users: Mapping[str, int]
    wait_seconds: Waits
    large_gang_wait_seconds: Waits
    evicted_device_seconds: float
    waits_by_tenant: Mapping[TenantName, Waits]
    waits_by_size: Mapping[str, Waits]
    users: Mapping[UserName, Waits]
    user_waits: UserWaits
    longest: LongWait | None
    longest_of_others: LongWait | None


def measure(
    timeline: Sequence[TimelineEntry],
    capacity: Amounts,
    start: Millis,
    end: Millis,
    *,
    weights: Mapping[TenantName, Fraction],
    device: Resource | None,
    large_gang: int = 16,
    unit: int = 1,
    scale: Scale | None = None,
) -> Measures:
    """Return the figures of the window [start, end] of a timeline in order of time.

    `weights` has every tenant that counts. Gangs and the error are counted in `device`; `unit` base
    units are one device. A gang of `large_gang` devices or more is large. Waits are those of work
    submitted within the window, even if it was released later. If `start` equals `end`, shares and
    utilisation are those at `start`. `scale` is set if pods may request parts of devices.
    """
    use = average(timeline, capacity, start, end, weights, device, scale)
    waits = waits_of(timeline, start, end)
    users = _grouped((work.user, seconds) for work, seconds in waits.items())
    large = large_gang * unit
    gangs = [LongWait(w, seconds) for w, seconds in waits.items() if devices_of(w, device) >= large]
    longest, others = _longest(gangs)
    return Measures(
        jain=_jain_by_weight(use.shares, weights),
        fairness_error=use.fairness_error / unit,
        utilisation=use.utilisation,
        starved_users=_starved(timeline, start, end),
        wait_seconds=summarize_waits(waits.values()),
        large_gang_wait_seconds=summarize_waits(gang.seconds for gang in gangs),
        evicted_device_seconds=_evicted(timeline, start, end, device) / unit,
        waits_by_tenant=_grouped((work.tenant, seconds) for work, seconds in waits.items()),
        waits_by_size=waits_by_size(waits, device, unit),
        users=users,
        user_waits=_users(users),
        longest=longest,
        longest_of_others=others,
    )


def waits_by_size(
    waits: Mapping[SimulatedWorkload, float], device: Resource | None, unit: int
) -> dict[str, Waits]:
    """Return the figures of waits by number of requested devices, fewest first."""
    by_size = _grouped((size_class(devices_of(w, device) / unit), s) for w, s in waits.items())
    return {name: by_size[name] for name in SIZE_NAMES if name in by_size}


def jain(shares: Iterable[float]) -> float:
    """Return Jain's index of fairness: 1 if all are equal, 1/n if one of n has everything.

    The index is 1 if there are no shares or all are 0.
    """
    values = list(shares)
    squares = sum(value * value for value in values)
    return sum(values) ** 2 / (len(values) * squares) if squares > 0 else 1.0


def _jain_by_weight(
    shares: Mapping[TenantName, float], weights: Mapping[TenantName, Fraction]
) -> float:
    """Return Jain's index of the shares divided by the weights; weight 0 does not count."""
    return jain(shares.get(name, 0.0) / float(w) for name, w in weights.items() if w > 0)


def _starved(timeline: Sequence[TimelineEntry], start: Millis, end: Millis) -> dict[str, int]:
    stretches = longest_starving(timeline, start, end).values()
    return {name: sum(each >= least for each in stretches) for name, least in STARVED.items()}


def _evicted(
    timeline: Sequence[TimelineEntry], start: Millis, end: Millis, device: Resource | None
) -> float:
    """Return the device-seconds that evicted pods lost within the window.

    Of an elastic gang, the pod that was released last is evicted first.
    """
    since: dict[SimulatedWorkload, list[Millis]] = {}
    lost = 0
    for moment in timeline:
        if moment.change > 0:
            since.setdefault(moment.work, []).extend([moment.at] * moment.change)
        elif moment.change < 0:
            begun = since.get(moment.work, [])
            ended = [begun.pop() for _ in range(min(-moment.change, len(begun)))]
            evicted = moment.step in (TimelineStep.EVICTED, TimelineStep.SHRANK)
            if evicted and start <= moment.at <= end:
                interval = moment.work.reclaim.checkpoint_interval
                ran = sum(lost_time(each, interval, moment.at) for each in ended)
                lost += ran * devices_of(moment.work, device, 1)
    return lost / 1000


def _grouped(pairs: Iterable[tuple[MetricKey, float]]) -> dict[MetricKey, Waits]:
    groups: dict[MetricKey, list[float]] = {}
    for key, seconds in pairs:
        groups.setdefault(key, []).append(seconds)
    return {key: summarize_waits(waits) for key, waits in groups.items()}


def _users(users: Mapping[UserName, Waits]) -> UserWaits:
    means = sorted(waits.mean for waits in users.values())
    if not means:
        return UserWaits()
    return UserWaits(
        mean=sum(means) / len(means),
        p50=nearest_rank(means, 0.50),
        p95=nearest_rank(means, 0.95),
        users=len(means),
    )


def _longest(gangs: Sequence[LongWait]) -> tuple[LongWait | None, LongWait | None]:
    """Return the longest wait (the earliest of equals), and the longest of any other user."""

    def longest(of: Iterable[LongWait]) -> LongWait | None:
        return max(of, key=lambda gang: gang.seconds, default=None)

    first = longest(gangs)
    if first is None:
        return None, None
    return first, longest(gang for gang in gangs if gang.work.user != first.work.user)
