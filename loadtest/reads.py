"""REST reads per second with ten thousand waiting pods, compared with `/livez` of the same server.

A real service process answers over TLS, on a full cluster. `/livez` costs only HTTP, so the ratio
to it shows the cost of a read itself.
"""

from __future__ import annotations

import asyncio
import itertools
import ssl
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from functools import partial

import aiohttp

from app.devcluster.nodes import GPU
from loadtest import load
from loadtest.bench_cluster import NODES, BenchCluster
from loadtest.figures import Measure, Target, columns, percentile, rate, ratio, turns

NAME = "reads"
PODS = 10_000
ROUNDS = 5
TENANTS = 20
REQUESTS = 300
"""Requests per turn. Each connection has its own caller, so that none exceeds its rate."""

WARM_UP = 60
PATIENCE_SECONDS = 120.0
WALL = "bench-wall"
ROLE = "bench-reader"
READER = "reader"
RBAC = "/apis/rbac.authorization.k8s.io/v1"
RULES = [
    {"apiGroups": ["fairgate.io"], "verbs": ["get", "list"],
     "resources": ["tenants", "tenants/queue", "quotas"]},
    {"apiGroups": [""], "verbs": ["get"], "resources": ["pods"]},
]  # fmt: skip

PATHS = {
    "livez": "/livez",
    "tenants": "/v1/tenants",
    "queue": "/v1/tenants/{}/queue?limit=100",
    "workload": "/v1/workloads/{}/{}",
    "quotas": "/v1/quotas",
}
ARMS = {
    "livez": "livez",
    "tenants": "all tenants",
    "queue": "queue, 100 of it",
    "workload": "why of one pod",
    "quotas": "quotas",
    "mixed": "those four in turns",
}
TARGETS = {"queue": Target(least=0.5)}
READS = ("tenants", "queue", "workload", "quotas")

Taken = dict[str, list[float]]


async def measure(bench: BenchCluster, pods: int | None, rounds: int | None) -> Measure:
    """Read while `pods` pods wait, `rounds` times; None means the default."""
    pods, rounds = pods or PODS, rounds or ROUNDS
    namespaces = [f"bench-read-{number:02}" for number in range(TENANTS)]
    each = -(-pods // TENANTS)
    with bench.step(f"reads: {each * TENANTS:,} pods begin to wait"):
        await _fill(bench, namespaces, each)
    rates: Taken = {arm: [] for arm in ARMS}
    slowest: Taken = {arm: [] for arm in ARMS}
    paths = {arm: _paths(arm, namespaces, load.names(each)) for arm in ARMS}
    async with _readers(bench, namespaces[: load.CONNECTIONS]) as readers:
        with bench.step("reads: warming up"):
            for arm in ARMS:
                await _turn(readers, paths[arm], WARM_UP)
        for number, arm in turns(list(ARMS), rounds):
            with bench.step(f"reads, round {number} of {rounds}: {ARMS[arm]}"):
                seconds, waits = await _turn(readers, paths[arm], REQUESTS)
            rates[arm].append(rate(REQUESTS, seconds))
            slowest[arm].append(percentile(waits, 99) * 1000)
    await load.clear(bench.client, [*namespaces, WALL])
    await load.until(bench.is_empty, "the leader still counts pods that are gone")
    return _told(rates, slowest, each * TENANTS, rounds)


def _told(rates: Taken, slowest: Taken, pods: int, rounds: int) -> Measure:
    figures = columns(ARMS, "reads/s", rates)
    late = columns({arm: f"{title}, p99" for arm, title in ARMS.items()}, "ms", slowest)
    return Measure(
        NAME,
        "REST reads",
        (
            f"{pods:,} pods of {TENANTS} tenants wait behind a full cluster. {REQUESTS} reads a "
            f"round and arm over {load.CONNECTIONS} connections, each of a caller of its own; "
            f"{rounds} rounds taken in turns. Client, API server and all else share the box.",
            "A real service process over TLS; rights are asked of the API server and kept for "
            "seconds, as always. p99 is of a read among 16 under way.",
        ),
        (*figures.values(), *late.values()),
        tuple(
            ratio(f"{ARMS[arm]} / livez", figures[arm], figures["livez"], TARGETS.get(arm))
            for arm in (*READS, "mixed")
        ),
    )


def _paths(arm: str, namespaces: Sequence[str], names: Sequence[str]) -> Iterator[str]:
    """Return an endless iterator of paths to read."""
    if arm == "mixed":
        parts = [_paths(each, namespaces, names) for each in READS]
        return itertools.chain.from_iterable(zip(*parts, strict=True))
    made = (
        PATHS[arm].format(namespace, name)
        for name, namespace in itertools.product(names, namespaces)
    )
    return itertools.cycle(made)


async def _fill(bench: BenchCluster, namespaces: Sequence[str], each: int) -> None:
    """Occupy all GPUs, and create waiting pods of every tenant."""
    whole = NODES.capacity[GPU]
    await load.create_namespace(bench.client, WALL)
    await load.create_pods(
        bench.client, WALL, [load.pod(name, gated=False, gpus=int(whole)) for name in
                              load.names(NODES.count)],
    )  # fmt: skip
    await load.until(bench.is_full, "the leader has not let the cluster be filled")
    for namespace in namespaces:
        await load.create_namespace(bench.client, namespace)
        await bench.create_tenant(namespace, paused=False)
        bodies = [load.pod(name, gated=False) for name in load.names(each)]
        await load.create_pods(bench.client, namespace, bodies)
    for namespace in namespaces:
        seen = partial(bench.has_pending, namespace, each)
        await load.until(seen, "the leader has not seen all pods")


@asynccontextmanager
async def _readers(
    bench: BenchCluster, namespaces: Sequence[str]
) -> AsyncIterator[list[aiohttp.ClientSession]]:
    """Yield the session of a service account of each namespace, after RBAC allows its requests.

    All service accounts of one namespace together may send 200 requests a second.
    """
    role = {"apiVersion": "rbac.authorization.k8s.io/v1", "metadata": {"name": ROLE}}
    await load.create(bench.client, f"{RBAC}/clusterroles", {**role, "rules": RULES})
    binding = {
        **role,
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": ROLE},
        "subjects": [
            {"kind": "ServiceAccount", "name": READER, "namespace": n} for n in namespaces
        ],
    }
    await load.create(bench.client, f"{RBAC}/clusterrolebindings", binding)
    url, context = bench.api
    sessions = []
    try:
        for namespace in namespaces:
            token = await bench.token(namespace, READER)
            head = {"Authorization": f"Bearer {token}"}
            sessions.append(_session(url, context, head))
        for session in sessions:
            await load.until(partial(_is_let_in, session), "RBAC lets nobody read")
        yield sessions
    finally:
        for session in sessions:
            await session.close()


def _session(url: str, context: ssl.SSLContext, head: dict[str, str]) -> aiohttp.ClientSession:
    connector = aiohttp.TCPConnector(ssl=context, limit=1)
    limit = aiohttp.ClientTimeout(total=load.REQUEST_SECONDS)
    return aiohttp.ClientSession(url, connector=connector, headers=head, timeout=limit)


async def _is_let_in(session: aiohttp.ClientSession) -> bool:
    async with session.get("/v1/quotas?limit=1") as answer:
        return answer.status == 200


async def _turn(
    readers: Sequence[aiohttp.ClientSession], paths: Iterator[str], requests: int
) -> tuple[float, list[float]]:
    """Send the requests; return the total seconds, and the seconds of each.

    Raises BenchFailed for a status other than 200.
    """
    waits: list[float] = []
    left = iter(range(requests))

    async def work(session: aiohttp.ClientSession) -> None:
        for _ in left:
            path, began = next(paths), time.monotonic()
            async with session.get(path) as answer:
                await answer.read()
            waits.append(time.monotonic() - began)
            if answer.status != 200:
                raise load.BenchFailed(f"GET {path} was answered with status {answer.status}.")

    began = time.monotonic()
    async with asyncio.timeout(PATIENCE_SECONDS), load.together() as group:
        for session in readers:
            group.create_task(work(session))
    return time.monotonic() - began, waits
