"""Start with a full cluster: seconds to the first release and to a hand-over, and memory.

Thousands of pods run and many more are held when the controllers are stopped, some room is made,
and one is started again.
"""

from __future__ import annotations

import asyncio
import time
import urllib.request
from dataclasses import dataclass
from pathlib import Path

import msgspec

from app import wire
from app.dev.fairgate import ops_url
from app.dev.processes import Process
from loadtest import load
from loadtest.figures import Compared, Measure, Series, Target
from loadtest.ground import GPUS, Ground

NAME = "startup"
HELD = 100_000
ROUNDS = 2
ROOM = 100
"""Pods that end while nobody leads, so that there is something to release."""

NAMESPACES = tuple(f"bench-start-{number:02}" for number in range(50))
LIMIT = 600.0
FIRST_RELEASE, MEMORY, HAND_OVER = Target(most=30), Target(most=400), Target(most=2)

_change = msgspec.json.Decoder(wire.Change[wire.Pod])
_page = msgspec.json.Decoder(wire.Page[wire.Bare])


@dataclass(frozen=True, slots=True)
class _Start:
    """One start: seconds, and MiB of resident memory."""

    release: float
    peak: float
    steady: float
    hand_over: float


async def measure(ground: Ground, pods: int | None, rounds: int | None) -> Measure:
    """Start a controller with `pods` held pods, `rounds` times; None: as many as usual."""
    pods, rounds = pods or HELD, rounds or ROUNDS
    await _fill(ground, GPUS + pods)
    starts = []
    for number in range(1, rounds + 1):
        with ground.step(f"startup, round {number} of {rounds}"):
            starts.append(await _start(ground))
    with ground.step("startup: clearing"):
        await load.clear(ground.client, NAMESPACES)
        await load.until(ground.is_empty, "the leader still counts pods that are gone", LIMIT)
    return Measure(
        NAME,
        "Start-up of a controller",
        (
            f"{pods:,} held pods in {len(NAMESPACES)} queues and {GPUS:,} that use a GPU each; "
            f"{ROOM} end while nobody leads. {rounds} starts; scheduler, nodes, webhook and API "
            "server run on the same box.",
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


async def _fill(ground: Ground, pods: int) -> None:
    """Create the pods, and wait until as many as there is room for are released."""
    for namespace in NAMESPACES:
        await load.create_namespace(ground.client, namespace)
    bodies = [
        (NAMESPACES[i % len(NAMESPACES)], load.pod(f"pod-{i:06}", gated=False)) for i in range(pods)
    ]

    async def create(item: tuple[str, bytes]) -> None:
        await load.create_pod(ground.client, *item)

    for first in range(0, pods, 10_000):
        part = bodies[first : first + 10_000]
        with ground.step(f"startup: creating pods, {first + len(part):,} of {pods:,}"):
            await load.over(part, create, 60 + len(part) / 20)
    with ground.step("startup: filling the cluster"):
        await load.until(ground.is_full, "the leader has not filled the cluster", LIMIT)


async def _start(ground: Ground) -> _Start:
    await ground.stop_controller()
    await _make_room(ground)
    version = _page.decode(
        await ground.client.request("GET", "/api/v1/pods", query=[("limit", "1")])
    ).metadata.resource_version
    began = time.monotonic()
    leader = await ground.start_one(wait=False)
    released = await _first_release(ground, version)
    standby = await ground.start_one(wait=True)
    steady, peak = _memory(leader, "VmRSS"), _memory(leader, "VmHWM")
    left = time.monotonic()
    stopping = asyncio.create_task(ground.stop_one(leader))
    await load.until(lambda: _leads(standby), "the standby does not lead", LIMIT)
    hand_over = time.monotonic() - left
    await stopping
    return _Start(released - began, peak, steady, hand_over)


async def _make_room(ground: Ground) -> None:
    """Delete some of the pods that run."""
    running = [("fieldSelector", "status.phase=Running"), ("limit", str(ROOM))]
    page = _page.decode(await ground.client.request("GET", "/api/v1/pods", query=running))
    for item in page.items or ():
        path = load.pods_path(item.metadata.namespace, item.metadata.name)
        await ground.client.request("DELETE", path, query=[("gracePeriodSeconds", "0")])


async def _first_release(ground: Ground, version: str) -> float:
    """Return when a watch saw the first pod without a gate that no node has yet."""
    query = [("watch", "true"), ("resourceVersion", version)]
    async with (
        asyncio.timeout(LIMIT),
        ground.client.stream("/api/v1/pods", query, read_timeout=LIMIT) as lines,
    ):
        async for line in lines:
            change = _change.decode(line)
            spec = change.object.spec
            if change.type == "MODIFIED" and not spec.scheduling_gates and not spec.node_name:
                return time.monotonic()
    raise load.BenchFailed("The API server ended the watch before anything was released.")


async def _leads(process: Process) -> bool:
    """Tell whether a controller says that it leads."""

    def ask() -> str:
        with urllib.request.urlopen(f"{ops_url(process)}/metrics", timeout=10) as answer:
            return str(answer.read().decode())

    return "fairgate_leader 1.0" in await asyncio.to_thread(ask)


def _memory(process: Process, what: str) -> float:
    """Return MiB of a process, as the kernel counts them."""
    for line in Path(f"/proc/{process.pid}/status").read_text().splitlines():
        if line.startswith(what):
            return int(line.split()[1]) / 1024
    raise load.BenchFailed(f"The kernel does not tell {what} of process {process.pid}.")
