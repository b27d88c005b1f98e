"""A watch of pods while an API server creates pods as fast as possible.

The API server buffers few events per watch, and closes watches when it is busy, even those of its
own controllers. The tests check that the watch loses no event.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import uuid
from collections import defaultdict
from collections.abc import Callable

import pytest

from app.core.errors import ClusterUnavailable
from app.core.events import (
    ClusterEvent,
    PodGone,
    PodObserved,
    SourceFresh,
    SourceStale,
    WatchedSource,
)
from app.core.model import Millis, Uid
from app.core.well_known import ANNOTATION_RELEASE, GATE
from app.devcluster.cluster import LocalCluster
from app.kube.client import MERGE_PATCH, Client
from app.kube.informer import sources

PODS = int(os.environ.get("FAIRGATE_BURST") or 1500)
CONNECTIONS = 32
PATH = "/api/v1/namespaces/default/pods"
GONE = "gone"

pytestmark = pytest.mark.timeout(300 + PODS // 5)


class Ledger:
    """An `EventSink` that stores the events of each pod in order."""

    def __init__(self) -> None:
        self.pods: dict[Uid, list[str]] = defaultdict(list)
        self.gone = 0
        self.lists = 0
        self.doubts = 0
        self._changed = asyncio.Event()

    async def put(self, event: ClusterEvent, /) -> None:
        match event:
            case PodObserved(pod=pod):
                self.pods[pod.uid].append(pod.release_annotation)
            case PodGone(uid=uid):
                self.pods[uid].append(GONE)
                self.gone += 1
            case SourceFresh():
                self.lists += 1
            case SourceStale():
                self.doubts += 1
        self._changed.set()

    async def until(self, condition: Callable[[], bool]) -> None:
        while not condition():
            self._changed.clear()
            await self._changed.wait()


class Burst:
    """Creates pods, changes every third, and deletes all."""

    def __init__(self, client: Client) -> None:
        self.resource = f"example.com/{uuid.uuid4().hex[:8]}"
        self._client = client
        self._label = self.resource.rpartition("/")[2]

    async def create_and_change(self) -> None:
        numbers = iter(range(PODS))

        async def worker() -> None:
            for number in numbers:
                await self._create(number)
                if number % 3 == 0:
                    await self._change(number)

        async with asyncio.TaskGroup() as group:
            for _ in range(CONNECTIONS):
                group.create_task(worker())

    async def delete(self) -> None:
        """Delete all pods; the API server gives up on a request after a minute."""
        query = [("labelSelector", f"made-by={self._label}"), ("gracePeriodSeconds", "0")]
        for _ in range(PODS):
            with contextlib.suppress(ClusterUnavailable):
                await self._client.request("DELETE", PATH, query=query, timeout=300)
                return

    async def _create(self, number: int) -> None:
        resources = {"limits": {self.resource: "1"}}
        body = {
            "metadata": {
                "name": f"{self._label}-{number}",
                "labels": {"made-by": self._label},
                "annotations": {ANNOTATION_RELEASE: "1"},
            },
            "spec": {
                "schedulingGates": [{"name": GATE}],
                "containers": [{"name": "c", "image": "none", "resources": resources}],
            },
        }
        await self._client.request("POST", PATH, body=body, timeout=60)

    async def _change(self, number: int) -> None:
        body = {"metadata": {"annotations": {ANNOTATION_RELEASE: "2"}}}
        path = f"{PATH}/{self._label}-{number}"
        await self._client.request("PATCH", path, body=body, content_type=MERGE_PATCH, timeout=60)


async def test_watch_loses_no_event_during_a_burst_of_creates(
    cluster: LocalCluster, caplog: pytest.LogCaptureFixture
) -> None:
    interrupted: list[WatchedSource] = []
    ledger = Ledger()
    client = await Client.connect(cluster.kubeconfig, pool_size=CONNECTIONS + 1)
    burst = Burst(client)
    [watch] = sources.new_reflectors(
        client,
        ledger,
        lambda: Millis(0),
        sources=[WatchedSource.PODS],
        managed=[burst.resource],
        interrupted=interrupted.append,
    )
    running = asyncio.create_task(watch.run())
    try:
        await ledger.until(lambda: ledger.lists > 0)
        with caplog.at_level(logging.DEBUG, "fairgate.kube"):
            await burst.create_and_change()
            await burst.delete()
            await ledger.until(lambda: ledger.gone == PODS)
    finally:
        running.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await running
        await burst.delete()
        await client.close()
    print(f"{PODS} pods: the API server closed the watch {len(interrupted)} times")
    pauses = [record for record in caplog.records if record.message == "watch interrupted"]
    stories = list(ledger.pods.values())
    assert [story for story in stories if story != sorted(story)] == []
    assert all(story[0] == "1" and story[-1] == GONE for story in stories)
    assert sum("2" in story for story in stories) == -(-PODS // 3)
    assert (ledger.lists, ledger.doubts, len(pauses)) == (1, 0, 0)
