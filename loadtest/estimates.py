"""Accuracy of wait estimates: plays the Philly log and estimates all waiting jobs each hour.

Each estimate uses only the information of its time: ended work, and earlier forecasts with an
outcome. The estimates are then compared with the real waits.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from app.core.model import Millis
from app.core.policy import Policy
from app.core.quantities import ManagedResources
from app.devcluster.progress import ConsoleProgress
from app.sim.cluster.virtual_cluster import VirtualCluster
from app.sim.cluster.workload import SimulatedWorkload, TimelineEntry, TimelineStep
from app.sim.forecast.calibration import Range
from app.sim.forecast.forward_run import simulate_waits
from app.sim.forecast.run_times import ObservedRunTime, RunTimeClass, request_size_class
from app.sim.forecast.wait_model import Name, WaitModel, workload_key
from app.sim.replay.machines import one_pool
from app.sim.replay.trace_files import DEVICE, read_log, tenants_of
from loadtest.figures import Compared, Measure, Series, Target
from loadtest.philly import GPUS, log

NAME = "estimates"
MANAGED = ManagedResources([DEVICE])
HOUR = Millis(3_600_000)
LEAST_GIVEN = Target(least=60)
HELD = Target(least=85, most=95)

LENGTHS = ((0, "under half an hour"), (1800, "half an hour to six"), (21_600, "six hours and more"))
"""Classes of estimates by their p50, to show where estimates fail."""


@dataclass(frozen=True, slots=True)
class Said:
    """Estimate of one workload at a time. `first`: its first estimate, even if it has no range."""

    at: Millis
    work: SimulatedWorkload
    range: Range | None
    first: bool


@dataclass(slots=True)
class Playback:
    """A log played in virtual time, with its estimates."""

    world: VirtualCluster
    foretelling: WaitModel = field(default_factory=WaitModel)
    starts: dict[SimulatedWorkload, Millis] = field(default_factory=dict)
    said: list[Said] = field(default_factory=list)
    _names: dict[SimulatedWorkload, Name] = field(default_factory=dict)
    _heard: int = 0

    def tell(self, at: Millis, number: int) -> None:
        """Advance time to `at`, and estimate the wait of every waiting workload."""
        self.world.advance_to(at)
        self.listen()
        snapshot = self.world.engine.queries.snapshot(at)
        if not snapshot.held:
            return
        waits = simulate_waits(snapshot, self.foretelling.run_times, number)
        ranges = self.foretelling.update_ranges(snapshot, waits)
        for work, pod in self.world.waiting_workloads():
            first = work not in self._names
            self._names[work] = workload_key(pod)
            self.said.append(Said(at, work, ranges.get(pod.uid), first))

    def listen(self) -> None:
        """Learn from the moments since the last call."""
        for moment in self.world.timeline[self._heard :]:
            self._hear(moment)
        self._heard = len(self.world.timeline)

    def _hear(self, moment: TimelineEntry) -> None:
        work, at = moment.work, moment.at
        if moment.step is TimelineStep.RELEASED:
            self.starts[work] = at
            if work in self._names:
                self.foretelling.record_start(self._names[work], at)
        elif moment.step is TimelineStep.ENDED:
            kind = RunTimeClass(work.tenant, work.user, request_size_class(work.demand, MANAGED))
            self.foretelling.record_end(ObservedRunTime(kind, Millis(at - self.starts[work])))


def measure(progress: ConsoleProgress, decisions: int | None, rounds: int | None) -> list[Measure]:
    """Play the log with one tenant per user, and with tenants on two levels."""
    return [
        _measure("every user a tenant", True, progress),
        _measure("two levels", False, progress),
    ]


def _measure(title: str, flat: bool, progress: ConsoleProgress) -> Measure:
    with progress.step(f"estimates: the whole log, {title}"):
        playback = play(flat)
    said, starts = playback.said, playback.starts
    return Measure(
        NAME,
        f"Estimates on the Philly log, {title}",
        (
            f"{GPUS} GPUs, all ten days; every hour, everybody who waits is told. Errors and "
            "widths are medians. The p90 of waits that had not ended by the end of the log, none "
            "here, would count as missed.",
            "A first estimate is the one a workload gets at the first full hour that it waits.",
        ),
        (),
        (
            *_figures("", said, starts, LEAST_GIVEN, HELD),
            *_figures("first estimates: ", [each for each in said if each.first], starts),
            *_by_length(said, starts),
        ),
    )


def play(flat: bool, every: Millis = HOUR) -> Playback:
    """Play the whole log with estimates, then continue until every workload has started."""
    found = read_log(log(), flat=flat)
    fleet = one_pool(GPUS)
    world = VirtualCluster(
        MANAGED,
        fleet.nodes(found.scale),
        tenants_of(found.works).values(),
        fleet.pools,
        Policy(),
        witnesses=0,
    )
    for work in found.works:
        world.add_workload(work)
    playback = Playback(world)
    for number, at in enumerate(_times(found.works, every)):
        playback.tell(at, number)
    last = found.works[-1].at
    while world.next_event_at is not None and len(playback.starts) < len(found.works):
        world.advance_to(Millis(max(last, world.next_event_at) + every))
        playback.listen()
    return playback


def _times(works: Sequence[SimulatedWorkload], every: Millis) -> Iterator[Millis]:
    busy = works[0].at
    return (Millis(at) for at in range(busy, works[-1].at, every))


def _figures(
    which: str,
    said: Sequence[Said],
    starts: dict[SimulatedWorkload, Millis],
    given_least: Target | None = None,
    held_within: Target | None = None,
) -> Iterator[Compared]:
    given = [(each, each.range, _waited(each, starts)) for each in said if each.range]
    if not given:
        return
    yield _one(f"{which}given, of all who wait", "%", 100 * len(given) / len(said), given_least)
    held = sum(waited <= found.p90 for _, found, waited in given)
    yield _one(f"{which}p90 that held", "%", 100 * held / len(given), held_within)
    early = sum(waited <= found.p50 for _, found, waited in given)
    yield _one(f"{which}p50 that held", "%", 100 * early / len(given))
    errors = [abs(waited - found.p50) / 60 for _, found, waited in given]
    yield _one(f"{which}error of p50", "min", statistics.median(errors))
    widths = [(found.p90 - found.p50) / 60 for _, found, _ in given]
    yield _one(f"{which}width of the range", "min", statistics.median(widths))


def _by_length(said: Sequence[Said], starts: dict[SimulatedWorkload, Millis]) -> Iterator[Compared]:
    bounds = [*(least for least, _ in LENGTHS), float("inf")]
    for (least, title), most in zip(LENGTHS, bounds[1:], strict=True):
        given = [e for e in said if e.range is not None and least <= e.range.p50 < most]
        held = sum(_waited(e, starts) <= e.range.p90 for e in given if e.range is not None)
        if given:
            share = 100 * held / len(given)
            yield _one(f"p90 that held, p50 {title} ({len(given):,} said)", "%", share)


def _waited(said: Said, starts: dict[SimulatedWorkload, Millis]) -> float:
    start = starts.get(said.work)
    return float("inf") if start is None else (start - said.at) / 1000


def _one(title: str, unit: str, value: float, target: Target | None = None) -> Compared:
    return Compared(Series(title, unit, (value,)), target)
