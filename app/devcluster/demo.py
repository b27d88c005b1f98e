"""The demo: two teams of equal weight, one greedy, first without Fairgate, then with it.

It submits Jobs to a real API server and reads the pods from there. `demo_simulated` plays the same
demo in virtual time if there is no cluster.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from app.core.errors import ClusterRefused, FairgateError
from app.k8s_types import objects
from app.kube.client import Client

RESOURCE = "nvidia.com/gpu"
RUNTIME_ANNOTATION = "kwok.fairgate.dev/runtime"
RUNTIME_SECONDS = 25
GREEDY_PODS = 400
GREEDY_JOBS = 8
MODEST_PODS = 60
WAITED_SECONDS = 20.0
"""Seconds for which both teams must have had waiting pods before usage is measured."""

PATIENCE_SECONDS = 240.0
POLL_SECONDS = 0.5
SLOW_SECONDS = 60.0
"""Timeout to delete hundreds of pods in one request. The API server answers after the last one."""

URGENT = "demo-most-urgent"
URGENT_VALUE = 1_000_000_000
"""The highest value allowed for a PriorityClass of a user."""


class DemoFailed(FairgateError):
    """The demo ended without a result."""


@dataclass(frozen=True, slots=True)
class Count:
    """Pods of one team at a moment: GPUs in use, waiting pods, ended pods."""

    using: int = 0
    waiting: int = 0
    ended: int = 0


@dataclass(frozen=True, slots=True)
class DemoMoment:
    """State of one moment of a round."""

    round: str
    seconds: float
    greedy: Count
    modest: Count
    note: str


@dataclass(frozen=True, slots=True)
class DemoResult:
    """GPUs in use by each team, without and with Fairgate."""

    without: dict[str, int]
    fair: dict[str, int]
    seconds: float

    def as_json(self) -> dict[str, Any]:
        """Return the stable form of `fairgate dev demo --output json`."""
        return {"without": self.without, "with": self.fair, "seconds": round(self.seconds, 1)}


Show = Callable[[DemoMoment], None]


@dataclass(slots=True)
class _Pods:
    """The pods of one namespace as last read."""

    using: set[str] = field(default_factory=set)
    waiting: set[str] = field(default_factory=set)
    ended: set[str] = field(default_factory=set)

    def count(self) -> Count:
        return Count(len(self.using), len(self.waiting), len(self.ended))


class _PodList(msgspec.Struct):
    items: list[objects.PodObject]


class Demo:
    """Plays both rounds on a cluster with Fairgate."""

    def __init__(self, client: Client, show: Show, capacity: int) -> None:
        self._client = client
        self._show = show
        self._capacity = capacity
        self._started = time.monotonic()

    async def play(self) -> DemoResult:
        """Play both rounds; return the GPUs that each team used."""
        await self._apply_cluster_objects()
        without = await self._round("without Fairgate", "unfair-greedy", "unfair-modest")
        await self._clear("unfair-greedy", "unfair-modest")
        fair = await self._round("with Fairgate", "greedy", "modest")
        return DemoResult(without, fair, time.monotonic() - self._started)

    async def _round(self, title: str, greedy: str, modest: str) -> dict[str, int]:
        await self._clear(greedy, modest)
        share, rest = divmod(GREEDY_PODS, GREEDY_JOBS)
        for number in range(GREEDY_JOBS):
            await self._submit(greedy, f"urgent-{number}", share + (number < rest), URGENT)
        await self._watch(title, greedy, modest, "greedy fills the cluster", self._is_full)
        early = (await self._read(greedy)).using
        await self._submit(modest, "ordinary", MODEST_PODS, None)
        since = time.monotonic()

        def settled(mine: _Pods, theirs: _Pods) -> bool:
            nonlocal since
            if not (mine.waiting and theirs.waiting):
                since = time.monotonic()
            waited = time.monotonic() - since >= WAITED_SECONDS
            gone = not (early & mine.using)
            return waited and gone and self._is_full(mine, theirs)

        note = "modest came; the pods started before it end one by one"
        mine, theirs = await self._watch(title, greedy, modest, note, settled)
        return {"greedy": len(mine.using), "modest": len(theirs.using)}

    def _is_full(self, mine: _Pods, theirs: _Pods) -> bool:
        return len(mine.using) + len(theirs.using) == self._capacity

    async def _watch(
        self,
        title: str,
        greedy: str,
        modest: str,
        note: str,
        enough: Callable[[_Pods, _Pods], bool],
    ) -> tuple[_Pods, _Pods]:
        """Poll the pods of both teams until `enough` returns true. Raises DemoFailed."""
        deadline = time.monotonic() + PATIENCE_SECONDS
        while time.monotonic() < deadline:
            mine, theirs = await asyncio.gather(self._read(greedy), self._read(modest))
            elapsed = time.monotonic() - self._started
            self._show(DemoMoment(title, elapsed, mine.count(), theirs.count(), note))
            if enough(mine, theirs):
                return mine, theirs
            await asyncio.sleep(POLL_SECONDS)
        raise DemoFailed(
            f"The demo {title} did not come to a result in {PATIENCE_SECONDS:.0f} s; "
            "look at `kubectl get pods -A` and the logs that `fairgate dev status` names."
        )

    async def _read(self, namespace: str) -> _Pods:
        path = f"/api/v1/namespaces/{namespace}/pods"
        body = await self._client.request("GET", path, timeout=SLOW_SECONDS)
        pods = _Pods()
        for pod in msgspec.json.decode(body, type=_PodList).items:
            if pod.status.phase in ("Succeeded", "Failed"):
                pods.ended.add(pod.metadata.uid)
            elif pod.spec.node_name:
                pods.using.add(pod.metadata.uid)
            else:
                pods.waiting.add(pod.metadata.uid)
        return pods

    async def _apply_cluster_objects(self) -> None:
        await self._create(
            "/apis/scheduling.k8s.io/v1/priorityclasses",
            {
                "apiVersion": "scheduling.k8s.io/v1",
                "kind": "PriorityClass",
                "metadata": {"name": URGENT},
                "value": URGENT_VALUE,
            },
        )
        for name in ("unfair-greedy", "unfair-modest", "greedy", "modest"):
            body = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}}
            await self._create("/api/v1/namespaces", body)
        for name in ("greedy", "modest"):
            tenant = {
                "apiVersion": "fairgate.io/v1alpha1",
                "kind": "Tenant",
                "metadata": {"name": name},
                "spec": {"weight": "1", "namespaces": [name]},
            }
            await self._create("/apis/fairgate.io/v1alpha1/tenants", tenant)

    async def _submit(self, namespace: str, name: str, pods: int, priority: str | None) -> None:
        path = f"/apis/batch/v1/namespaces/{namespace}/jobs"
        await self._client.request("POST", path, body=job(name, pods, priority))

    async def _clear(self, *namespaces: str) -> None:
        """Delete all Jobs and pods of an earlier round, and wait until they are gone."""
        for namespace in namespaces:
            jobs = f"/apis/batch/v1/namespaces/{namespace}/jobs"
            pods = f"/api/v1/namespaces/{namespace}/pods"
            for path, how in (
                (jobs, ("propagationPolicy", "Background")),
                (pods, ("gracePeriodSeconds", "0")),
            ):
                await self._client.request("DELETE", path, query=[how], timeout=SLOW_SECONDS)
        deadline = time.monotonic() + PATIENCE_SECONDS
        for namespace in namespaces:
            while (await self._read(namespace)).count() != Count():
                if time.monotonic() > deadline:
                    raise DemoFailed(f"Pods of namespace {namespace} did not go away.")
                await asyncio.sleep(POLL_SECONDS)

    async def _create(self, path: str, body: dict[str, Any]) -> None:
        try:
            await self._client.request("POST", path, body=body)
        except ClusterRefused as error:
            if error.status != 409:  # it exists from an earlier run
                raise


def job(name: str, pods: int, priority: str | None) -> dict[str, Any]:
    """Return an ordinary Job of one-GPU pods, independent of Fairgate."""
    container = {"name": "train", "image": "train", "resources": {"limits": {RESOURCE: 1}}}
    spec: dict[str, Any] = {"restartPolicy": "Never", "containers": [container]}
    if priority is not None:
        spec["priorityClassName"] = priority
    template = {
        "metadata": {"annotations": {RUNTIME_ANNOTATION: f"{RUNTIME_SECONDS}s"}},
        "spec": spec,
    }
    # A preempted pod counts as a failure. The default limit of six would end the whole Job.
    counts = {"parallelism": pods, "completions": pods, "backoffLimit": pods}
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": name},
        "spec": {**counts, "template": template},
    }


async def play(kubeconfig: Path, show: Show, capacity: int) -> DemoResult:
    """Play the demo with the user of a kubeconfig."""
    client = await Client.connect(kubeconfig)
    try:
        return await Demo(client, show, capacity).play()
    finally:
        await client.close()
