"""Releases per second: the leader releases a full queue, compared with bare patches of a client.

Scheduler, controllers and KWOK nodes run in both arms. An independent watch times both.
"""

from __future__ import annotations

import time

from loadtest import load
from loadtest.bench_cluster import GPUS, BenchCluster
from loadtest.figures import Measure, Target, columns, rate, ratio, turns
from loadtest.gate_watch import gates

NAME = "releases"
PODS = 3000
ROUNDS = 4
WARM_UP = 200
TARGET = Target(least=0.9)

ARMS = {"bare": "bare patches", "fairgate": "Fairgate's leader"}
BARE = "bench-bare"
HELD = "bench-held"


async def measure(bench: BenchCluster, pods: int | None, rounds: int | None) -> Measure:
    """Release `pods` held pods in each arm and round; None means the default."""
    pods, rounds = pods or PODS, rounds or ROUNDS
    if pods > GPUS:
        raise load.BenchFailed(f"The cluster has room for {GPUS} pods; ask for no more by --pods.")
    for namespace in (BARE, HELD):
        await load.create_namespace(bench.client, namespace)
    await bench.create_tenant(HELD, paused=True)
    with bench.step("releases: warming up"):
        for turn in _TURNS.values():
            await turn(bench, min(pods, WARM_UP))
    taken: dict[str, list[float]] = {arm: [] for arm in ARMS}
    for number, arm in turns(list(ARMS), rounds):
        with bench.step(f"releases, round {number} of {rounds}: {ARMS[arm]}"):
            taken[arm].append(rate(pods, await _TURNS[arm](bench, pods)))
    figures = columns(ARMS, "pods/s", taken)
    return Measure(
        NAME,
        "Releases of held pods",
        (
            f"{pods} held one-GPU pods a round and arm, room for all, {rounds} rounds taken in "
            "turns; scheduler, controllers, nodes and Fairgate run in both arms.",
            "Timed by a watch: from the first patch, or from un-pausing the tenant, until the "
            "last gate is gone.",
        ),
        tuple(figures.values()),
        (ratio("Fairgate / bare", figures["fairgate"], figures["bare"], TARGET),),
    )


async def _bare(bench: BenchCluster, pods: int) -> float:
    """Remove the gate of the benchmark from `pods` pods; return the seconds taken."""
    names = load.names(pods)
    bodies = [load.pod(name, gated=True) for name in names]
    await load.create_pods(bench.client, BARE, bodies)
    async with gates(bench.client, BARE) as watch:
        began = time.monotonic()
        limit = _limit(pods)
        await load.over(names, lambda name: load.ungate(bench.client, BARE, name), limit)
        ended = await watch.wait(pods, limit)
    await _settle(bench, BARE)
    return ended - began


async def _fairgate(bench: BenchCluster, pods: int) -> float:
    """Unpause a tenant with `pods` held pods; return the seconds until all are released."""
    await bench.hold(HELD)
    bodies = [load.pod(name, gated=False) for name in load.names(pods)]
    await load.create_pods(bench.client, HELD, bodies)
    await load.until(lambda: bench.has_pending(HELD, pods), "the leader has not seen all pods")
    async with gates(bench.client, HELD) as watch:
        began = time.monotonic()
        await bench.let_go(HELD)
        ended = await watch.wait(pods, _limit(pods))
    await _settle(bench, HELD)
    return ended - began


_TURNS = {"bare": _bare, "fairgate": _fairgate}


async def _settle(bench: BenchCluster, namespace: str) -> None:
    """Delete all pods, and wait until the leader has counted that."""
    await load.clear(bench.client, [namespace])
    await load.until(bench.is_empty, "the leader still counts pods that are gone")


def _limit(pods: int) -> float:
    """Timeout of a turn in seconds. Less than ten pods per second means a defect."""
    return 10.0 + pods / 10
