"""How long work waited: figures of many waits, and the waits of a timeline.

Percentiles are by nearest rank: always a wait that somebody had.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from app.core.model import Millis, Resource
from app.sim.work import Moment, Step, Work

SIZES = ((0, "none"), (1, "1"), (3, "2-3"), (7, "4-7"), (15, "8-15"), (31, "16-31"), (63, "32-63"))
LARGEST = "64 and more"
"""Classes of work by the devices it asks for: the most, and what a person calls it."""
SIZE_NAMES = (*(name for _, name in SIZES), LARGEST)


@dataclass(frozen=True, slots=True)
class Waits:
    """Waits in seconds, and of how many workloads. All zero where there were none."""

    mean: float = 0.0
    p50: float = 0.0
    p95: float = 0.0
    max: float = 0.0
    jobs: int = 0


def figures(waits: Iterable[float]) -> Waits:
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
    """Return the smallest of the sorted values that at least this part of them does not exceed."""
    return ordered[max(0, math.ceil(part * len(ordered) - 1e-9) - 1)]


def size_class(devices: float) -> str:
    """Return the name of the class of work that asks for so many devices."""
    return next((name for most, name in SIZES if devices <= most), LARGEST)


def devices_of(work: Work, device: Resource | None) -> int:
    """Return how much of the device a whole workload asks for."""
    return work.demand.get(device, 0) * work.pods if device is not None else 0


def waits_of(timeline: Sequence[Moment], start: Millis, end: Millis) -> Mapping[Work, float]:
    """Return the seconds waited by every workload submitted within [start, end].

    A workload waits from its submission to its release, and again after each eviction; the waits
    add up. What still waits is counted up to the later of `end` and the last thing that happened.
    What was in place before the start never waited and is left out.
    """
    last = max(end, timeline[-1].at) if timeline else end
    since: dict[Work, int] = {}
    waited: dict[Work, int] = {}
    for moment in timeline:
        work, at, step = moment.work, moment.at, moment.step
        if step is Step.SUBMITTED:
            if work.released is None and start <= at <= end:
                waited[work] = 0
                since[work] = at
        elif work in waited:
            if step is Step.RELEASED:
                waited[work] += at - since.pop(work, at)
            elif step is Step.EVICTED:
                since[work] = at
    for work, began in since.items():
        waited[work] += last - began
    return {work: millis / 1000 for work, millis in waited.items()}
