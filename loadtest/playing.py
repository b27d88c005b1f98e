"""Plays a load of timed pods on a cluster, and notes what a watch sees of each: bound, ended.

The same for every arm of a comparison; knows nothing of who binds the pods.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from typing import Any

import msgspec

from app import wire
from app.core.errors import ClusterUnavailable
from app.core.model import ANNOTATION_POOLS
from app.dev.nodes import GPU
from app.kube.client import Client
from loadtest import load
from loadtest.occupancy import Seen
from loadtest.openb import MODEL, Arrival, Shape

RUNTIME = "kwok.fairgate.dev/runtime"
READY_SECONDS, SILENCE = 90.0, 120.0
_change = msgspec.json.Decoder(wire.Change[wire.Pod])
_page = msgspec.json.Decoder(wire.Page[wire.Bare])


async def until_it_binds(client: Client, namespace: str) -> None:
    """Return once a pod of the namespace was bound, and is gone again: everything works."""
    small = Arrival(Shape(1, 100, 0), 1.0)
    await load.create_pod(client, namespace, pod("probe", small))

    async def bound() -> bool:
        found = await load.read(client, load.pods_path(namespace, "probe"))
        return bool(found["spec"].get("nodeName"))

    await load.until(bound, f"no pod of {namespace} is bound", READY_SECONDS)
    await load.clear(client, [namespace])


async def play(
    client: Client, namespace: str, arrivals: Sequence[Arrival], seen: list[Seen], horizon: float
) -> None:
    """Create every pod in its time, and watch them until the horizon."""
    path = load.pods_path(namespace)
    page = _page.decode(await client.request("GET", path, query=[("limit", "1")]))
    began = time.monotonic()

    async def watch(version: str) -> None:
        while True:  # the API server ends a watch whose reader falls behind
            query = [("watch", "true"), ("resourceVersion", version)]
            async with client.stream(path, query, read_timeout=SILENCE) as lines:
                async for line in lines:
                    version = hear(line, seen, time.monotonic() - began)

    async def create(number: int) -> None:
        seen[number].created = time.monotonic() - began
        await load.create_pod(client, namespace, pod(f"pod-{number:05}", arrivals[number]))

    async with load.together() as group:
        watching = group.create_task(watch(page.metadata.resource_version))
        for number, arrival in enumerate(arrivals):
            await asyncio.sleep(max(0.0, began + arrival.at - time.monotonic()))
            group.create_task(create(number))
        await asyncio.sleep(max(0.0, began + horizon - time.monotonic()))
        watching.cancel()


def hear(line: bytes, seen: list[Seen], now: float) -> str:
    """Note what a line of the watch tells of a pod; return how far the watch has come."""
    change = _change.decode(line)
    if change.type == "ERROR":
        raise ClusterUnavailable("the watch of the measure was ended by the API server.")
    told = change.object
    _, _, number = told.metadata.name.partition("-")
    if number.isdigit() and change.type in ("ADDED", "MODIFIED"):
        one = seen[int(number)]
        if not told.spec.scheduling_gates and one.opened is None:
            one.opened = now
        if told.spec.node_name and one.bound is None:
            one.bound, one.node = now, told.spec.node_name
        if told.status.phase in ("Succeeded", "Failed") and one.ended is None:
            one.ended = now
    return told.metadata.resource_version


def pod(name: str, arrival: Arrival) -> bytes:
    """Return a pod as its owner would write it, the same in every arm."""
    shape = arrival.shape
    requests = {"cpu": f"{shape.cpu}m", "memory": str(shape.memory)}
    resources = {"requests": requests, "limits": {GPU: shape.gpus}}
    spec: dict[str, Any] = {
        "restartPolicy": "Never",
        "containers": [{"name": "train", "image": "train", "resources": resources}],
    }
    notes = {RUNTIME: f"{arrival.runs:.3f}s"}
    if shape.models:
        wanted = [{"key": MODEL, "operator": "In", "values": list(shape.models)}]
        terms = {"nodeSelectorTerms": [{"matchExpressions": wanted}]}
        required = {"requiredDuringSchedulingIgnoredDuringExecution": terms}
        spec["affinity"] = {"nodeAffinity": required}
        notes[ANNOTATION_POOLS] = ",".join(shape.models)  # pools are called like models
    metadata = {"name": name, "annotations": notes}
    return msgspec.json.encode(
        {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}
    )
