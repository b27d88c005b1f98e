"""Creates timed pods on a cluster, and records when a watch sees each ungated, bound and ended.

The same for every arm, and independent of the scheduler.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from typing import Any

import msgspec

from app.core.errors import ClusterUnavailable
from app.core.well_known import ANNOTATION_POOLS
from app.devcluster.nodes import GPU
from app.k8s_types import objects
from app.kube.client import Client
from loadtest import load
from loadtest.occupancy import Seen
from loadtest.openb_sample import MODEL, Arrival, Shape

RUNTIME = "kwok.fairgate.dev/runtime"
READY_SECONDS, SILENCE = 90.0, 120.0
_change = msgspec.json.Decoder(objects.WatchEvent[objects.PodObject])
_page = msgspec.json.Decoder(objects.ListPage[objects.MetadataOnly])


async def until_it_binds(client: Client, namespace: str) -> None:
    """Return after a probe pod of the namespace was bound and deleted: all components work."""
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
    """Create every pod at its time, and watch the pods until `horizon`."""
    path = load.pods_path(namespace)
    page = _page.decode(await client.request("GET", path, query=[("limit", "1")]))
    began = time.monotonic()

    async def watch(version: str) -> None:
        while True:  # the API server ends a watch if its reader falls behind
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
    """Record the state of a pod from a line of the watch; return its resource version."""
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
    """Return a pod as its user would write it, the same in every arm."""
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
        notes[ANNOTATION_POOLS] = ",".join(shape.models)  # pools have the names of models
    metadata = {"name": name, "annotations": notes}
    return msgspec.json.encode(
        {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}
    )
