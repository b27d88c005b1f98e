"""Plays a log on the machines of a replay, with the engine in a `VirtualCluster` or with a
baseline.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction

from app.core.model import Amounts, Millis, Resource, Tenant, TenantName
from app.core.policy import Policy
from app.core.quantities import CPU, ManagedResources
from app.sim.cluster.virtual_cluster import ProgressCallback, VirtualCluster
from app.sim.cluster.workload import TimelineEntry, TimelineStep
from app.sim.replay import baselines
from app.sim.replay.machines import Fleet
from app.sim.replay.trace_files import DEVICE, TraceLog
from app.sim.report.progress import progress

IDLE_INSTANTS = 1000
"""Instants in a row without a timeline entry after which waiting workloads cannot start."""


@dataclass(frozen=True, slots=True)
class ReplayInput:
    """Everything a replay needs, read and checked."""

    fleet: Fleet
    log: TraceLog
    tenants: Mapping[TenantName, Tenant]
    policy: Policy
    start: Millis
    end: Millis

    @property
    def managed(self) -> tuple[Resource, ...]:
        """Devices, and cpu if some workload requests no device and must be held because of cpu."""
        bare = any(not work.demand.get(DEVICE) for work in self.log.works)
        return (DEVICE, CPU) if bare else (DEVICE,)

    @property
    def capacity(self) -> Amounts:
        """Capacity of the managed resources."""
        return self.fleet.capacity(self.log.scale, self.managed)

    @property
    def weights(self) -> dict[TenantName, Fraction]:
        """The weight of every tenant."""
        return {name: tenant.weight for name, tenant in self.tenants.items()}


@dataclass(frozen=True, slots=True)
class ReplayResult:
    """Timeline of a replay, and statistics of the engine.

    `drift` is the largest ratio of a drift to its bound over `pairs` comparisons; 0 for a
    baseline. `events` counts the events sent to the engine; for a baseline, arrivals and ends.
    """

    works: int
    timeline: list[TimelineEntry]
    decisions: int
    events: int
    drift: float = 0.0
    pairs: int = 0

    @property
    def never_started(self) -> int:
        """Number of workloads that were never released."""
        started = {m.work for m in self.timeline if m.step is TimelineStep.RELEASED}
        return self.works - len(started)


def play(stage: ReplayInput, policy: str) -> ReplayResult:
    """Play the whole log under a policy, until all workloads ended or cannot start."""
    works = stage.log.works
    arrivals = [work.at for work in works]
    with progress("replaying", Millis(0), Millis(len(works))) as advance:

        def report_progress(at: Millis) -> None:
            advance(Millis(bisect_right(arrivals, at)))

        if policy == "fair":
            return _play_fair(stage, report_progress)
        timeline = baselines.replay(
            works,
            stage.capacity[DEVICE],
            DEVICE,
            backfill=policy == "backfill",
            pool=stage.fleet.pools[0].name,
            tell=report_progress,
        )
    releases = sum(moment.step is TimelineStep.RELEASED for moment in timeline)
    return ReplayResult(len(works), timeline, releases, len(timeline) - releases)


def _play_fair(stage: ReplayInput, progress: ProgressCallback) -> ReplayResult:
    works = stage.log.works
    world = VirtualCluster(
        ManagedResources(stage.managed),
        stage.fleet.nodes(stage.log.scale),
        stage.tenants.values(),
        stage.fleet.pools,
        policy=stage.policy,
    )
    for work in works:
        world.add_workload(work)
    advance_until_idle(world, len(works), progress)
    drift = world.engine.drift
    return ReplayResult(
        len(works), world.timeline, world.decisions, world.events, drift.ratio, drift.pairs
    )


def advance_until_idle(world: VirtualCluster, works: int, progress: ProgressCallback) -> None:
    """Advance time until all workloads arrived and no workload ends or starts any more.

    A workload that can never start may wake a World forever. Such instants count as idle.
    """
    arrived = ending = seen = idle = 0
    while world.next_event_at is not None and (arrived < works or ending or idle < IDLE_INSTANTS):
        world.advance_to(world.next_event_at, progress)
        news = world.timeline[seen:]
        seen += len(news)
        idle = 0 if news else idle + 1
        for moment in news:
            arrived += moment.step is TimelineStep.SUBMITTED
            if moment.work.duration is not None:
                ending += moment.step is TimelineStep.RELEASED
                ending -= moment.step in (TimelineStep.ENDED, TimelineStep.EVICTED)
