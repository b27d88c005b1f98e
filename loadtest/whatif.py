"""How long a what-if takes: everybody who waits, run forward twice, as the service does it."""

from __future__ import annotations

import asyncio
import random
from fractions import Fraction

from app.core.model import Millis, TenantName, UserName
from app.dev.progress import Told
from app.foresight_ports import Changes
from app.sim.run_times import Kind, Lasted, RunTimes
from app.sim.simulations import WhatIfs
from loadtest.crowd import GPUS_A_NODE, NODES, TENANTS, USERS, Crowd
from loadtest.figures import Compared, Measure, Series, Target

NAME = "whatif"
PODS = 10_000
ROUNDS = 3
HOURS = 4.0
RUNS = 2000
MEAN_MS = 3_600_000
SECONDS = 120.0
"""The service stops earlier; here the figure is wanted, whatever it is."""

MOST_SECONDS = Target(most=5)


def measure(progress: Told, decisions: int | None, rounds: int | None) -> Measure:
    """Ask what a higher weight would change, again and again."""
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


async def _ask(crowd: Crowd, rounds: int, progress: Told) -> list[float]:
    runs = _learned()
    simulations = WhatIfs(
        lambda: crowd.engine.outlook.snapshot(Millis(0)), lambda: runs, seconds=SECONDS
    )
    taken = []
    for number in range(1, rounds + 1):
        with progress.step(f"whatif, round {number} of {rounds}"):
            found = await simulations.compare(Changes({TenantName("team-001"): Fraction(3)}), HOURS)
        taken.append(found.seconds)
    await simulations.close()
    return taken


def _learned() -> RunTimes:
    """Return runs of many users, as a service knows them after a day."""
    dice, runs = random.Random(1), RunTimes()
    for number in range(RUNS):
        tenant = TenantName(f"team-{number % TENANTS:03}")
        user = UserName(f"user-{number % (USERS - 3):03}@example.com")
        lasted = Millis(1000 + int(dice.expovariate(1 / MEAN_MS)))
        runs.learn(Lasted(Kind(tenant, user, 1), lasted))
    return runs
