"""Replays timed jobs on a cluster as the users of a log, and records a timeline from a watch.

Every user has a client certificate, so the API server identifies the submitter. The timeline has
the form of the simulator's, so that the same code evaluates both.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec

from app.core.errors import ClusterUnavailable
from app.core.model import Millis, UserName
from app.core.well_known import ANNOTATION_GANG, ANNOTATION_GANG_SIZE
from app.k8s_types import objects
from app.kube.client import Client
from app.sim.cluster.workload import SimulatedWorkload, TimelineEntry, TimelineStep, rigid_entry
from app.sim.replay.trace_files import DEVICE
from tests.faults.load import RUNTIME

SILENCE = 120.0
REQUEST_SECONDS = 30.0
LABEL = "example.com/job"

_change = msgspec.json.Decoder(objects.WatchEvent[objects.PodObject])
_page = msgspec.json.Decoder(objects.ListPage[objects.MetadataOnly])


class Diary:
    """Job states from a watch on pods. `timeline` is in the order of observation.

    A job of several pods is released when its last gate is gone, and ended when its last pod has
    ended.
    """

    def __init__(self, works: Sequence[SimulatedWorkload]) -> None:
        self.timeline: list[TimelineEntry] = []
        self._works = {work.name: work for work in works}
        self._open: dict[str, set[str]] = {name: set() for name in self._works}
        self._over: dict[str, set[str]] = {name: set() for name in self._works}

    def submitted(self, work: SimulatedWorkload, at: Millis) -> None:
        """Record that the pods of a job are being created."""
        self.timeline.append(rigid_entry(at, TimelineStep.SUBMITTED, work))

    def hear(self, change: objects.WatchEvent[objects.PodObject], at: Millis) -> str:
        """Process one line of the watch; return its resource version."""
        if change.type == "ERROR":
            raise ClusterUnavailable("the watch was ended by the API server")
        pod = change.object
        work = self._works.get((pod.metadata.labels or {}).get(LABEL, ""))
        if work is not None and change.type in ("ADDED", "MODIFIED"):
            if not pod.spec.scheduling_gates:
                self._note(TimelineStep.RELEASED, work, pod.metadata.name, at)
            if pod.status.phase in ("Succeeded", "Failed"):
                self._note(TimelineStep.ENDED, work, pod.metadata.name, at)
        return pod.metadata.resource_version

    def _note(self, step: TimelineStep, work: SimulatedWorkload, pod: str, at: Millis) -> None:
        pods = (self._open if step is TimelineStep.RELEASED else self._over)[work.name]
        if pod not in pods:
            pods.add(pod)
            if len(pods) == work.pods:
                self.timeline.append(rigid_entry(at, step, work))


async def play(
    works: Sequence[SimulatedWorkload], admin: Path, people: Mapping[UserName, Path], until: Millis
) -> list[TimelineEntry]:
    """Submit every job at its time; return the timeline at the end.

    `admin` and `people` are kubeconfigs. A job that cannot be created and a broken watch are
    errors.
    """
    diary = Diary(works)
    async with AsyncExitStack() as stack:
        watcher = await stack.enter_async_context(_client(admin))
        clients = {
            user: await stack.enter_async_context(_client(path)) for user, path in people.items()
        }
        page = _page.decode(await watcher.request("GET", "/api/v1/pods", query=[("limit", "1")]))
        began = time.monotonic()

        def now() -> Millis:
            return Millis(int((time.monotonic() - began) * 1000))

        async def submit(work: SimulatedWorkload) -> None:
            diary.submitted(work, now())
            path = f"/api/v1/namespaces/{work.tenant}/pods"
            for body in bodies(work):
                await clients[work.user].request("POST", path, body=body, timeout=REQUEST_SECONDS)

        async with asyncio.TaskGroup() as group:
            following = group.create_task(
                _follow(watcher, diary, page.metadata.resource_version, now)
            )
            for work in works:
                await asyncio.sleep(max(0, work.at - now()) / 1000)
                group.create_task(submit(work))
            await asyncio.sleep(max(0, until - now()) / 1000)
            following.cancel()
    return diary.timeline


def bodies(work: SimulatedWorkload) -> list[dict[str, Any]]:
    """Return the pods of a job as a user would write them."""
    limits = {DEVICE: work.demand.get(DEVICE, 0)}
    container = {"name": "train", "image": "train", "resources": {"limits": limits}}
    notes = {RUNTIME: f"{work.duration}ms"}
    if work.pods > 1:
        notes |= {ANNOTATION_GANG: work.name, ANNOTATION_GANG_SIZE: str(work.pods)}
    return [
        {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {
                "name": f"{work.name}-{number}",
                "labels": {LABEL: work.name},
                "annotations": notes,
            },
            "spec": {"restartPolicy": "Never", "containers": [container]},
        }
        for number in range(work.pods)
    ]


async def _follow(client: Client, diary: Diary, version: str, now: Any) -> None:
    while True:  # a watch that ends in time is silent only if the API server is
        query = [("watch", "true"), ("timeoutSeconds", "60"), ("resourceVersion", version)]
        async with client.stream("/api/v1/pods", query, read_timeout=SILENCE) as lines:
            async for line in lines:
                version = diary.hear(_change.decode(line), now())


@asynccontextmanager
async def _client(kubeconfig: Path) -> AsyncIterator[Client]:
    client = await Client.connect(kubeconfig, pool_size=8)
    try:
        yield client
    finally:
        await client.close()
