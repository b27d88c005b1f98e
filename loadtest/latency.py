"""Latency from create to release if capacity is free: the cost of the queue.

Pods arrive at a fixed rate, regardless of earlier releases. The baseline is a loop that patches
each pod as soon as its own watch shows it.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

from loadtest import load
from loadtest.bench_cluster import BenchCluster
from loadtest.figures import Measure, Series, columns, percentile, ratio, turns
from loadtest.gate_watch import gates

NAME = "latency"
A_SECOND = 20
SECONDS = 15
PODS = A_SECOND * SECONDS
ROUNDS = 4
PATIENCE_SECONDS = 60.0

ARMS = {"bare": "bare watch and patch", "fairgate": "Fairgate"}
NAMESPACES = {"bare": "bench-reacted", "fairgate": "bench-queued"}


async def measure(bench: BenchCluster, pods: int | None, rounds: int | None) -> Measure:
    """Create `pods` pods, 20 per second, in each arm and round; None means the default."""
    pods, rounds = pods or PODS, rounds or ROUNDS
    for namespace in NAMESPACES.values():
        await load.create_namespace(bench.client, namespace)
    await bench.create_tenant(NAMESPACES["fairgate"], paused=False)
    with bench.step("latency: warming up"):
        for arm in ARMS:
            await _turn(bench, arm, A_SECOND)
    taken: dict[str, list[list[float]]] = {arm: [] for arm in ARMS}
    for number, arm in turns(list(ARMS), rounds):
        with bench.step(f"latency, round {number} of {rounds}: {ARMS[arm]}"):
            taken[arm].append(await _turn(bench, arm, pods))
    middle, tail = _figures(taken, 50), _figures(taken, 99)
    return Measure(
        NAME,
        "From create to release, with room",
        (
            f"{pods} one-GPU pods a round and arm, {A_SECOND} a second, {rounds} rounds taken in "
            "turns; scheduler, controllers, nodes and Fairgate run in both arms.",
            "From sending the create to the moment a watch shows the pod without its gate.",
        ),
        (middle["bare"], middle["fairgate"], tail["bare"], tail["fairgate"]),
        (
            ratio("Fairgate / bare, p50", middle["fairgate"], middle["bare"]),
            ratio("Fairgate / bare, p99", tail["fairgate"], tail["bare"]),
        ),
    )


def _figures(taken: dict[str, list[list[float]]], per_cent: int) -> dict[str, Series]:
    titles = {arm: f"{title}, p{per_cent}" for arm, title in ARMS.items()}
    values = {arm: [percentile(waits, per_cent) for waits in taken[arm]] for arm in ARMS}
    return columns(titles, "ms", values)


async def _turn(bench: BenchCluster, arm: str, pods: int) -> list[float]:
    """Create the pods of one turn at the fixed rate; return the wait of each in milliseconds."""
    namespace, bare = NAMESPACES[arm], arm == "bare"
    names = load.names(pods)
    sent: dict[str, float] = {}

    async def create(name: str) -> None:
        body = load.pod(name, gated=bare)
        sent[name] = time.monotonic()
        await load.create_pod(bench.client, namespace, body)

    async with load.together() as group:

        def react(name: str) -> None:
            if bare:
                group.create_task(load.ungate(bench.client, namespace, name))

        async with gates(bench.client, namespace, react) as watch:
            await _at_pace(names, lambda name: group.create_task(create(name)))
            await watch.wait(pods, PATIENCE_SECONDS)
    await load.clear(bench.client, [namespace])
    await load.until(bench.is_empty, "the leader still counts pods that are gone")
    return [(watch.opened[name] - sent[name]) * 1000 for name in names]


async def _at_pace(names: list[str], start: Callable[[str], object]) -> None:
    """Call `start` for every name at fixed times, without waiting for earlier calls."""
    began = time.monotonic()
    for number, name in enumerate(names):
        await asyncio.sleep(max(0.0, began + number / A_SECOND - time.monotonic()))
        start(name)
