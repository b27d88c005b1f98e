"""Created to released: Fairgate against Kueue, on one cluster in turns.

Each turn creates pods over the same connections, with room for all, and a watch times the removal
of the last gate. Two arms have scheduler and nodes running, two have them stopped. Only the queue
of the turn runs: Kueue's program is stopped in the turns of Fairgate, and the other way round.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

import uvloop

from app.devcluster.progress import SetupProgress
from app.devcluster.signals import signals_as_interrupt
from loadtest import kueue, load
from loadtest.bench_cluster import BenchCluster, local_cluster
from loadtest.figures import Measure, Target, columns, rate, ratio, turns
from loadtest.gate_watch import gates
from loadtest.kueue import Kueue

NAME = "peers"
PODS = 500
ROUNDS = 3
FAIRGATE = "bench-peers"
RUNNING, STOPPED = Target(least=5), Target(least=10)
SECONDS = 600.0

ARMS = {
    "fairgate": "Fairgate",
    "kueue": "Kueue",
    "fairgate stopped": "Fairgate, scheduler and nodes stopped",
    "kueue stopped": "Kueue, scheduler and nodes stopped",
}


def measure(progress: SetupProgress, folder: Path, pods: int | None, rounds: int | None) -> Measure:
    """Measure with the Kueue built in this folder. Raises InvalidInput if there is none."""
    kueue.program(folder)
    with signals_as_interrupt(), local_cluster(progress) as (cluster, _):

        async def take() -> Measure:
            async with BenchCluster.on(cluster, progress) as bench:
                peer = Kueue(folder, cluster, bench.client)
                return await _measure(bench, peer, pods or PODS, rounds or ROUNDS)

        return uvloop.run(take())


async def _measure(bench: BenchCluster, peer: Kueue, pods: int, rounds: int) -> Measure:
    with bench.step("peers: installing Kueue"):
        await bench.stop_fairgate()
        # With the scheduler stopped, Fairgate otherwise releases only a few pods.
        await bench.set_policy({"maxUnbound": pods, "maxUnownedUnbound": pods})
        await peer.install()
        await bench.start_fairgate()
        await load.create_namespace(bench.client, FAIRGATE)
        await bench.create_tenant(FAIRGATE, paused=False)
    taken: dict[str, list[float]] = {arm: [] for arm in ARMS}
    for number, arm in turns(list(ARMS), rounds):
        with bench.step(f"peers, round {number} of {rounds}: {ARMS[arm]}"):
            taken[arm].append(rate(pods, await _turn(bench, peer, arm, pods)))
    figures = columns(ARMS, "pods/s", taken)
    return Measure(
        NAME,
        "Created to released, with Kueue",
        (
            f"{pods} one-GPU pods a turn over {load.CONNECTIONS} connections, room for all, "
            f"{rounds} rounds in turns. A watch times them from the first create to the last gate.",
            f"Kueue: pod integration only, QPS and burst {kueue.QPS}, one ClusterQueue, no leader "
            "election. Fairgate: as installed, with maxUnbound and maxUnownedUnbound at the number "
            "of pods.",
        ),
        tuple(figures.values()),
        (
            ratio("Fairgate / Kueue", figures["fairgate"], figures["kueue"], RUNNING),
            ratio(
                "Fairgate / Kueue, scheduler and nodes stopped",
                figures["fairgate stopped"],
                figures["kueue stopped"],
                STOPPED,
            ),
        ),
    )


async def _turn(bench: BenchCluster, peer: Kueue, arm: str, pods: int) -> float:
    """Create the pods of one turn; return the seconds from the first create to the last gate."""
    async with _only(bench, peer, arm):
        if not arm.endswith("stopped"):
            return await _timed(bench, arm, pods)
        async with bench.without_scheduler():
            return await _timed(bench, arm, pods)


async def _timed(bench: BenchCluster, arm: str, pods: int) -> float:
    ours = arm.startswith("fairgate")
    namespace = FAIRGATE if ours else kueue.NAMESPACE
    one = partial(load.pod, gated=False) if ours else kueue.pod
    bodies = [one(name) for name in load.names(pods)]
    async with gates(bench.client, namespace) as watch:
        began = time.monotonic()
        await load.create_pods(bench.client, namespace, bodies)
        ended = await watch.wait(pods, SECONDS)
    await load.clear(bench.client, [namespace])
    return ended - began


@asynccontextmanager
async def _only(bench: BenchCluster, peer: Kueue, arm: str) -> AsyncIterator[None]:
    """Run only the queue of this arm during the block."""
    if arm.startswith("fairgate"):
        await load.until(bench.is_empty, "the leader still counts pods that are gone")
        yield
        return
    await bench.stop_fairgate()
    try:
        await peer.start()
        yield
    finally:
        peer.stop()
        await bench.start_fairgate()
