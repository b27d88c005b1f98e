"""Duration of a what-if: the whole backlog is run forward twice, as in the service."""

from __future__ import annotations

import asyncio
import random
from fractions import Fraction

from app.core.model import Millis, TenantName, UserName
from app.devcluster.progress import ConsoleProgress
from app.ports.forecasts import WeightChanges
from app.sim.forecast.run_times import ObservedRunTime, RunTimeClass, RunTimes
from app.sim.forecast.what_if_service import WhatIfs
from loadtest.crowd import GPUS_A_NODE, NODES, TENANTS, USERS, Crowd
from loadtest.figures import Compared, Measure, Series, Target

NAME = "whatif"
PODS = 10_000
ROUNDS = 3
HOURS = 4.0
RUNS = 2000
MEAN_MS = 3_600_000
SECONDS = 120.0
"""Time limit. The service has a shorter one, but the measure needs the real duration."""

MOST_SECONDS = Target(most=5)


def measure(progress: ConsoleProgress, decisions: int | None, rounds: int | None) -> Measure:
    """Ask repeatedly for the effect of a higher weight. `decisions` is the number of pods."""
    pods, rounds = decisions or PODS, rounds or ROUNDS
    with progress.step(f"whatif: {pods:,} pods begin to wait"):
        crowd = Crowd(pods)
    taken = asyncio.run(_ask(crowd, rounds, progress))
    return Measure(
        NAME,
        f"What-if with {pods:,} pending",
        (
            f"{TENANTS} tenants of {USERS} users, {NODES * GPUS_A_NODE:,} one-GPU pods running; "
            f"run times of an hour in the mean, {HOURS:g} hours ahead, one weight changed; as "
            "things are and as they would be, each in a process of its own. The first call starts "
            "the processes.",
        ),
        (),
        (Compared(Series("one call", "s", tuple(taken)), MOST_SECONDS),),
    )


async def _ask(crowd: Crowd, rounds: int, progress: ConsoleProgress) -> list[float]:
    runs = _learned()
    simulations = WhatIfs(
        lambda: crowd.engine.queries.snapshot(Millis(0)), lambda: runs, seconds=SECONDS
    )
    taken = []
    for number in range(1, rounds + 1):
        with progress.step(f"whatif, round {number} of {rounds}"):
            found = await simulations.compare(
                WeightChanges({TenantName("team-001"): Fraction(3)}), HOURS
            )
        taken.append(found.seconds)
    await simulations.close()
    return taken


def _learned() -> RunTimes:
    """Return run times of many users, as a service has learned them after a day."""
    dice, runs = random.Random(1), RunTimes()
    for number in range(RUNS):
        tenant = TenantName(f"team-{number % TENANTS:03}")
        user = UserName(f"user-{number % (USERS - 3):03}@example.com")
        lasted = Millis(1000 + int(dice.expovariate(1 / MEAN_MS)))
        runs.add_run(ObservedRunTime(RunTimeClass(tenant, user, 1), lasted))
    return runs
