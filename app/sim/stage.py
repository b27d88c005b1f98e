"""A log and the machines it is played on: by the World and its engine, or by a baseline."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction

from app.core.model import Amounts, Millis, Resource, Tenant, TenantName
from app.core.policy import Policy
from app.core.resources import CPU, ManagedResources
from app.sim import baselines
from app.sim.fleet import Fleet
from app.sim.progress import progress
from app.sim.traces import DEVICE, Log
from app.sim.work import Moment, Step
from app.sim.world import Tell, World

PATIENCE = 1000
"""Instants without any news after which what still waits is taken to be unable to start."""


@dataclass(frozen=True, slots=True)
class Stage:
    """Everything a replay needs, read and checked."""

    fleet: Fleet
    log: Log
    tenants: Mapping[TenantName, Tenant]
    policy: Policy
    start: Millis
    end: Millis

    @property
    def managed(self) -> tuple[Resource, ...]:
        """Devices; and cpu, if there is work that asks for no device and must be held by that."""
        bare = any(not work.demand.get(DEVICE) for work in self.log.works)
        return (DEVICE, CPU) if bare else (DEVICE,)

    @property
    def capacity(self) -> Amounts:
        """How much there is of what is managed."""
        return self.fleet.capacity(self.log.scale, self.managed)

    @property
    def weights(self) -> dict[TenantName, Fraction]:
        """The weight of every tenant."""
        return {name: tenant.weight for name, tenant in self.tenants.items()}


@dataclass(frozen=True, slots=True)
class Played:
    """What happened from the first to the last, and what it took.

    `drift` is the largest ratio of a drift to its bound, over so many `pairs`; 0 where no engine
    had a part. `events` is what the engine heard; for a baseline, arrivals and ends.
    """

    works: int
    timeline: list[Moment]
    decisions: int
    events: int
    drift: float = 0.0
    pairs: int = 0

    @property
    def never_started(self) -> int:
        """How many workloads were never released."""
        started = {m.work for m in self.timeline if m.step is Step.RELEASED}
        return self.works - len(started)


def play(stage: Stage, policy: str) -> Played:
    """Play the whole log in an order, until everything ended or cannot start."""
    works = stage.log.works
    arrivals = [work.at for work in works]
    with progress("replaying", Millis(0), Millis(len(works))) as advance:

        def tell(at: Millis) -> None:
            advance(Millis(bisect_right(arrivals, at)))

        if policy == "fair":
            return _play_fair(stage, tell)
        timeline = baselines.replay(
            works,
            stage.capacity[DEVICE],
            DEVICE,
            backfill=policy == "backfill",
            pool=stage.fleet.pools[0].name,
            tell=tell,
        )
    releases = sum(moment.step is Step.RELEASED for moment in timeline)
    return Played(len(works), timeline, releases, len(timeline) - releases)


def _play_fair(stage: Stage, tell: Tell) -> Played:
    works = stage.log.works
    world = World(
        ManagedResources(stage.managed),
        stage.fleet.nodes(stage.log.scale),
        stage.tenants.values(),
        stage.fleet.pools,
        policy=stage.policy,
    )
    for work in works:
        world.add(work)
    settle(world, len(works), tell)
    drift = world.engine.drift
    return Played(
        len(works), world.timeline, world.decisions, world.events, drift.ratio, drift.pairs
    )


def settle(world: World, works: int, tell: Tell) -> None:
    """Let time pass until all works arrived and nothing more ends or starts.

    A World may wake for ever, because of what can never start: that is no news.
    """
    arrived = ending = seen = idle = 0
    while world.next_due is not None and (arrived < works or ending or idle < PATIENCE):
        world.run(world.next_due, tell)
        news = world.timeline[seen:]
        seen += len(news)
        idle = 0 if news else idle + 1
        for moment in news:
            arrived += moment.step is Step.SUBMITTED
            if moment.work.duration is not None and moment.step is not Step.SUBMITTED:
                ending += 1 if moment.step is Step.RELEASED else -1
