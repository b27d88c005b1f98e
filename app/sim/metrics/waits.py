"""Wait times: figures of many waits, and the waits of a timeline.

Percentiles use the nearest rank, so each is the wait of one workload.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from app.core.model import Millis, Resource
from app.sim.cluster.workload import SimulatedWorkload, TimelineEntry, TimelineStep

SIZES = ((0, "none"), (1, "1"), (3, "2-3"), (7, "4-7"), (15, "8-15"), (31, "16-31"), (63, "32-63"))
LARGEST = "64 and more"
"""Size classes of workloads by requested devices: upper bound and name."""
SIZE_NAMES = (*(name for _, name in SIZES), LARGEST)


@dataclass(frozen=True, slots=True)
class Waits:
    """Waits in seconds, and the number of workloads. All zero if there are no waits."""

    mean: float = 0.0
    p50: float = 0.0
    p95: float = 0.0
    max: float = 0.0
    jobs: int = 0


def summarize_waits(waits: Iterable[float]) -> Waits:
    """Return the figures of some waits in seconds."""
    ordered = sorted(waits)
    if not ordered:
        return Waits()
    return Waits(
        mean=math.fsum(ordered) / len(ordered),
        p50=nearest_rank(ordered, 0.50),
        p95=nearest_rank(ordered, 0.95),
        max=ordered[-1],
        jobs=len(ordered),
    )


def nearest_rank(ordered: Sequence[float], part: float) -> float:
    """Return the smallest value that at least this part of the sorted values does not exceed."""
    return ordered[max(0, math.ceil(part * len(ordered) - 1e-9) - 1)]


def size_class(devices: float) -> str:
    """Return the name of the size class for a number of devices."""
    return next((name for most, name in SIZES if devices <= most), LARGEST)


def devices_of(work: SimulatedWorkload, device: Resource | None, pods: int | None = None) -> int:
    """Return the units of the device that this many pods of a workload request; None: all."""
    count = work.pods if pods is None else pods
    return work.demand.get(device, 0) * count if device is not None else 0


def waits_of(
    timeline: Sequence[TimelineEntry], start: Millis, end: Millis
) -> Mapping[SimulatedWorkload, float]:
    """Return the seconds waited by every workload submitted within [start, end].

    A workload waits from its submission to its release, and again after each eviction; the waits
    add up. A workload that still waits is counted up to the later of `end` and the last moment.
    Workloads that run at the start never waited and are left out.
    """
    last = max(end, timeline[-1].at) if timeline else end
    since: dict[SimulatedWorkload, int] = {}
    waited: dict[SimulatedWorkload, int] = {}
    for moment in timeline:
        work, at, step = moment.work, moment.at, moment.step
        if step is TimelineStep.SUBMITTED:
            if work.released is None and start <= at <= end:
                waited[work] = 0
                since[work] = at
        elif work in waited:
            if step is TimelineStep.RELEASED:
                waited[work] += at - since.pop(work, at)
            elif step is TimelineStep.EVICTED:
                since[work] = at
    for work, began in since.items():
        waited[work] += last - began
    return {work: millis / 1000 for work, millis in waited.items()}
