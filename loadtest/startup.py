"""Start with a full cluster: seconds to the first release and to a hand-over, and memory.

Brings up its own cluster and fills it before Fairgate is installed. The pods are created as
Fairgate would have left them, so that a hundred thousand pods take minutes and not an hour.
"""

from __future__ import annotations

import asyncio
import time
import urllib.request
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import msgspec
import uvloop

from app.core.well_known import GATE
from app.devcluster import state_dir as folders
from app.devcluster.cluster import LocalCluster
from app.devcluster.cluster_options import ClusterOptions
from app.devcluster.fairgate_install import ops_url
from app.devcluster.nodes import GPU, NodeGroup
from app.devcluster.processes import ChildProcess
from app.devcluster.progress import ConsoleProgress
from app.devcluster.signals import signals_as_interrupt
from app.k8s_types import objects
from app.kube.client import Client
from loadtest import load
from loadtest.figures import Compared, Measure, Series, Target

NAME = "startup"
HELD, USING, USERS = 100_000, 5_000, 2_000
ROUNDS = 2
ROOM = 100
"""Pods that end while there is no leader, so that pods can be released."""

GPUS = 256
ROOM_OF_NODE = {"cpu": "256", "memory": "1024Gi", "pods": "1000", GPU: str(GPUS)}
NAMESPACES = tuple(f"bench-start-{number:02}" for number in range(50))
LIMIT = 600.0
FIRST_RELEASE, MEMORY, HAND_OVER = Target(most=30), Target(most=400), Target(most=2)

_change = msgspec.json.Decoder(objects.WatchEvent[objects.PodObject])
_page = msgspec.json.Decoder(objects.ListPage[objects.MetadataOnly])


@dataclass(frozen=True, slots=True)
class _Start:
    """One start: seconds, and MiB of resident memory."""

    release: float
    peak: float
    steady: float
    hand_over: float


def measure(progress: ConsoleProgress, pods: int | None, rounds: int | None) -> Measure:
    """Start a controller with `pods` held pods, `rounds` times; None means the default."""
    pods, rounds = pods or HELD, rounds or ROUNDS
    cluster = LocalCluster(folders.own_folder("bench"))
    with signals_as_interrupt():
        try:
            group = NodeGroup("bench-node", USING // GPUS + 1, ROOM_OF_NODE)
            cluster.up(ClusterOptions(groups=(group,), fairgate=False), progress)
            starts = uvloop.run(_measure(cluster, group, pods, rounds, progress))
        finally:
            with progress.step("Taking the cluster down"):
                cluster.down()
    return Measure(
        NAME,
        "Start-up of a controller",
        (
            f"{pods:,} held pods in {USERS:,} queues and {USING:,} that use a GPU each; {ROOM} "
            f"end while nobody leads. {rounds} starts; scheduler, nodes, webhook and API server "
            "run on the same box.",
            "From the start of the process until a watch sees the first gate gone; memory is the "
            "leader's resident set; a hand-over is from SIGTERM until a standby leads.",
        ),
        (),
        (
            _figure("first release", "s", [each.release for each in starts], FIRST_RELEASE),
            _figure("memory, at most", "MiB", [each.peak for each in starts], MEMORY),
            _figure("memory, then", "MiB", [each.steady for each in starts], MEMORY),
            _figure("polite hand-over", "s", [each.hand_over for each in starts], HAND_OVER),
        ),
    )


def _figure(title: str, unit: str, values: list[float], target: Target) -> Compared:
    return Compared(Series(title, unit, tuple(values)), target)


async def _measure(
    cluster: LocalCluster, group: NodeGroup, pods: int, rounds: int, progress: ConsoleProgress
) -> list[_Start]:
    async with _client(cluster) as client:
        await _fill(client, group, pods, progress)
        with progress.step("startup: installing Fairgate"):
            await asyncio.to_thread(cluster.start_fairgate, "webhook")
        starts = []
        for number in range(1, rounds + 1):
            with progress.step(f"startup, round {number} of {rounds}"):
                starts.append(await _start(cluster, client))
        return starts


@asynccontextmanager
async def _client(cluster: LocalCluster) -> AsyncIterator[Client]:
    client = await Client.connect(cluster.kubeconfig, pool_size=load.CONNECTIONS + 1)
    try:
        yield client
    finally:
        await client.close()


async def _fill(client: Client, group: NodeGroup, held: int, progress: ConsoleProgress) -> None:
    """Create the pods; running pods come first."""
    for namespace in NAMESPACES:
        await load.create_namespace(client, namespace)

    async def create(item: tuple[str, bytes]) -> None:
        await load.create_pod(client, *item)

    pods, waiting = _pods(group, held), USING + held
    for first in range(0, waiting, 10_000):
        part = list(islice(pods, 10_000))
        with progress.step(f"startup: creating pods, {first + len(part):,} of {waiting:,}"):
            await load.over(part, create, 60 + len(part) / 10)


def _pods(group: NodeGroup, held: int) -> Iterator[tuple[str, bytes]]:
    """Yield the namespace and the JSON of each pod, as Fairgate would have left it."""
    nodes = group.names()
    for i in range(USING + held):
        uses = i < USING
        namespace = NAMESPACES[i % len(NAMESPACES)]
        pod: dict[str, Any] = msgspec.json.decode(load.pod(f"pod-{i:06}", gated=False))
        pod["metadata"]["annotations"] = {
            "fairgate.io/submitter": f"user-{i % USERS:04}@example.com",
            "fairgate.io/release": f"1.{i + 1}" if uses else "0",
        }
        if uses:
            pod["metadata"]["labels"] = {"fairgate.io/pool": "default"}
            pod["spec"]["nodeName"] = nodes[i // GPUS]
        else:
            pod["spec"]["schedulingGates"] = [{"name": GATE}]
        yield namespace, msgspec.json.encode(pod)


async def _start(cluster: LocalCluster, client: Client) -> _Start:
    await asyncio.to_thread(cluster.stop_fairgate, "controller")
    await _make_room(client)
    answer = await client.request("GET", "/api/v1/pods", query=[("limit", "1")])
    version = _page.decode(answer).metadata.resource_version
    began = time.monotonic()
    leader = await asyncio.to_thread(cluster.start_fairgate, "controller", wait=False)
    released = await _first_release(client, version)
    standby = await asyncio.to_thread(cluster.start_fairgate, "controller", wait=True)
    steady, peak = _memory(leader, "VmRSS"), _memory(leader, "VmHWM")
    left = time.monotonic()
    stop = asyncio.to_thread(cluster.stop_fairgate, "controller", pid=leader.pid)
    stopping = asyncio.create_task(stop)
    await load.until(lambda: _leads(standby), "the standby does not lead", LIMIT)
    hand_over = time.monotonic() - left
    await stopping
    return _Start(released - began, peak, steady, hand_over)


async def _make_room(client: Client) -> None:
    """Delete `ROOM` running pods."""
    running = [("fieldSelector", "status.phase=Running"), ("limit", str(ROOM))]
    page = _page.decode(await client.request("GET", "/api/v1/pods", query=running))
    for item in page.items or ():
        path = load.pods_path(item.metadata.namespace, item.metadata.name)
        await client.request("DELETE", path, query=[("gracePeriodSeconds", "0")])


async def _first_release(client: Client, version: str) -> float:
    """Return when a watch saw the first pod with neither gate nor node. Raises BenchFailed."""
    query = [("watch", "true"), ("resourceVersion", version)]
    async with (
        asyncio.timeout(LIMIT),
        client.stream("/api/v1/pods", query, read_timeout=LIMIT) as lines,
    ):
        async for line in lines:
            change = _change.decode(line)
            spec = change.object.spec
            if change.type == "MODIFIED" and not spec.scheduling_gates and not spec.node_name:
                return time.monotonic()
    raise load.BenchFailed("The API server ended the watch before anything was released.")


async def _leads(process: ChildProcess) -> bool:
    """Return whether a controller reports that it leads."""

    def ask() -> str:
        with urllib.request.urlopen(f"{ops_url(process)}/metrics", timeout=10) as answer:
            return str(answer.read().decode())

    return "fairgate_leader 1.0" in await asyncio.to_thread(ask)


def _memory(process: ChildProcess, what: str) -> float:
    """Return a memory figure of a process in MiB, as reported by the kernel."""
    for line in Path(f"/proc/{process.pid}/status").read_text().splitlines():
        if line.startswith(what):
            return int(line.split()[1]) / 1024
    raise load.BenchFailed(f"The kernel does not tell {what} of process {process.pid}.")
