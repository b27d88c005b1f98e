"""Decisions per second of the engine alone, and with a hundred times more pending pods.

Both crowds are in one process and are measured in turns, so that conditions are equal.
"""

from __future__ import annotations

import gc
import os
import statistics
from pathlib import Path

from app.devcluster.progress import ConsoleProgress
from loadtest.crowd import GPUS_A_NODE, NODES, TENANTS, USERS, Crowd
from loadtest.figures import Compared, Measure, Series, Target, columns, rate, ratio, turns

NAME = "decisions"
FEW, MANY = 10_000, 1_000_000
DECISIONS = 5000
ROUNDS = 5
ARRIVALS = 500

LEAST_RATE = Target(least=5000)
LEAST_PART = Target(least=0.6)
MOST_BYTES = Target(most=900)
MOST_MILLIS = Target(most=1)

ARMS = {"few": f"{FEW:,} pending", "many": f"{MANY:,} pending"}


def measure(progress: ConsoleProgress, decisions: int | None, rounds: int | None) -> Measure:
    """Measure the engine with few and with many pods pending."""
    decisions, rounds = decisions or DECISIONS, rounds or ROUNDS
    with progress.step(f"decisions: {FEW:,} pods begin to wait"):
        crowds = {"few": Crowd(FEW)}
    gc.collect()
    before = _resident()
    with progress.step(f"decisions: {MANY:,} pods begin to wait"):
        crowds["many"] = Crowd(MANY)
    gc.collect()
    size = (_resident() - before) / MANY
    gc.freeze()  # as the leader does after its first list
    taken: dict[str, list[float]] = {arm: [] for arm in ARMS}
    waits: list[float] = []
    for number, arm in turns(list(ARMS), rounds):
        with progress.step(f"decisions, round {number} of {rounds}: {ARMS[arm]}"):
            taken[arm].append(rate(decisions, crowds[arm].churn(decisions)))
        if arm == "many":
            seconds = [crowds[arm].arrive() for _ in range(ARRIVALS)]
            waits.append(statistics.median(seconds) * 1000)
    figures = columns(ARMS, "decisions/s", taken)
    return Measure(
        NAME,
        "Decisions of the engine",
        (
            f"{TENANTS} tenants of {USERS} users, one pool of {NODES} nodes with {GPUS_A_NODE} "
            f"GPUs, all in use; one-GPU pods. A decision: one pod ends, one comes, one pass, one "
            f"release and its answer. {decisions} a round, {rounds} rounds in turns, one core.",
            f"Memory: growth of the resident set by the crowd of {MANY:,}, over their number. "
            f"Event: the median of {ARRIVALS} arrivals with their pass while nothing fits.",
        ),
        tuple(figures.values()),
        (
            Compared(figures["few"], LEAST_RATE),
            ratio("many / few", figures["many"], figures["few"], LEAST_PART),
            Compared(Series("memory of one pending", "B", (size,)), MOST_BYTES),
            Compared(Series(f"one event, {MANY:,} pending", "ms", tuple(waits)), MOST_MILLIS),
        ),
    )


def _resident() -> int:
    """Return the resident set of this process, in bytes."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")
