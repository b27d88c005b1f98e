"""Random pods on a real API server: valid pods are held or unchanged, others refused.

The API server itself decides which pods are valid, in a namespace that Fairgate leaves out. The
independent `pod_judge` decides which pods are managed. FAIRGATE_FUZZ_PODS sets the number of pods,
and FAIRGATE_SEED the random seed.
"""

from __future__ import annotations

import asyncio
import json
import os
from collections import Counter
from random import Random
from typing import Any

import pytest

from app.core.errors import ClusterRefused, ClusterUnavailable
from app.devcluster.fairgate_install import UNFAIR
from app.kube.client import Client
from tests.support import pod_judge, valid_pods
from tests.support.cluster_driver import Stage, until

PODS = int(os.environ.get("FAIRGATE_FUZZ_PODS") or 200)
SEED = int(os.environ.get("FAIRGATE_SEED") or 0)
INVALID = 0.2
CONNECTIONS = 8
MANAGED = ("nvidia.com/gpu", "amd.com/gpu", "nvidia.com/mig-*")
LEFT_ALONE = UNFAIR[0]
TEAM = "drawn"
USER = "fairgate-dev-admin"
BY_SERVER = {
    "metadata": ("namespace", "uid", "creationTimestamp", "resourceVersion", "managedFields"),
    "status": ("conditions",),
}
"""Fields that the API server writes differently in another namespace."""

Object = dict[str, Any]

pytestmark = pytest.mark.timeout(300 + PODS)


class Answer:
    """The API server's answer to a create: a pod or a refusal."""

    def __init__(self, status: int, message: str = "", pod: Object | None = None) -> None:
        self.status = status
        self.message = message
        self.pod = pod or {}


async def create(client: Client, namespace: str, pod: Object, *, dry: bool) -> Answer:
    path = f"/api/v1/namespaces/{namespace}/pods"
    query = [("dryRun", "All")] if dry else []
    try:
        body = await client.request("POST", path, body=pod, query=query, timeout=60)
    except ClusterRefused as error:
        return Answer(error.status, str(error))
    except ClusterUnavailable as error:
        return Answer(500, str(error))
    return Answer(201, pod=json.loads(body))


def drawn(number: int) -> Object:
    """Return a random pod with a unique name. Some are invalid."""
    random = Random(f"{SEED}-{number}")
    pod = valid_pods.broken(random) if random.random() < INVALID else valid_pods.draw(random)
    meta, spec = pod["metadata"], pod["spec"]
    spec["automountServiceAccountToken"] = False  # its volume has a random name
    meta.pop("finalizers", None)  # the pod would stay after the test
    if "name" in meta:
        meta["name"] = f"p{number}.{meta['name']}"[:253].rstrip(".")
    return pod


def faults(alone: Answer, managed: Answer) -> list[str]:
    """Return the errors in a pod's creation, compared with the creation without Fairgate."""
    if alone.status >= 500 or managed.status >= 500:
        return [f"{alone.status} and {managed.status}: {alone.message} {managed.message}"]
    if alone.status != 201:
        return [] if managed.status != 201 else [f"created, though: {alone.message}"]
    annotations = alone.pod["metadata"].get("annotations", {})
    is_managed = pod_judge.is_managed(alone.pod, MANAGED)
    if managed.status != 201:
        forged = "fairgate.io/release" in annotations and not is_managed
        return [] if forged and "Fairgate: " in managed.message else [managed.message]
    before, after = bare(alone.pod), bare(managed.pod)
    if is_managed:
        return pod_judge.faults_of_held(before, after, USER)
    return [] if before == after else ["a pod that is not managed was changed"]


def bare(pod: Object) -> Object:
    """Return a pod without the fields that differ between any two pods."""
    for part, keys in BY_SERVER.items():
        for key in keys:
            pod[part].pop(key, None)
    if "generateName" in pod["metadata"]:
        del pod["metadata"]["name"]
    return pod


async def run(stage: Stage) -> tuple[list[str], Counter[str]]:
    bad: list[str] = []
    seen: Counter[str] = Counter()
    numbers = iter(range(PODS))
    client = await Client.connect(stage.cluster.kubeconfig, pool_size=CONNECTIONS + 1)

    async def worker() -> None:
        for number in numbers:
            pod = drawn(number)
            alone = await create(client, LEFT_ALONE, pod, dry=True)
            managed = await create(client, TEAM, pod, dry=False)
            bad.extend(f"pod {SEED}-{number}: {each}" for each in faults(alone, managed))
            gates = managed.pod.get("spec", {}).get("schedulingGates", [])
            held = {"name": pod_judge.GATE} in gates
            seen["held" if held else "untouched" if managed.status == 201 else "refused"] += 1

    try:
        async with asyncio.TaskGroup() as group:
            for _ in range(CONNECTIONS):
                group.create_task(worker())
    finally:
        await client.close()
    return bad, seen


def test_pods_drawn_at_random_are_held_or_untouched_or_refused(stage: Stage) -> None:
    stage.namespace(LEFT_ALONE)
    stage.namespace(TEAM)
    stage.tenant(TEAM, "1", TEAM, paused=True)
    until("the leader observes the tenant", lambda: pending(stage) == 0)
    try:
        bad, seen = asyncio.run(run(stage))
        print(f"{PODS} pods: {dict(seen)}, {len(bad)} bad")
        assert bad == []
        assert min(seen[each] for each in ("held", "untouched", "refused")) > PODS // 20
        until("the leader has queued every held pod", lambda: pending(stage) == seen["held"])
    finally:
        asyncio.run(delete_all(stage))


async def delete_all(stage: Stage) -> None:
    """Delete the pods with one request, because kubectl is slow with many pods."""
    client = await Client.connect(stage.cluster.kubeconfig)
    query = [("gracePeriodSeconds", "0")]
    try:
        path = f"/api/v1/namespaces/{TEAM}/pods"
        await client.request("DELETE", path, query=query, timeout=60 + PODS)
    finally:
        await client.close()


def pending(stage: Stage) -> int:
    status = stage.get("tenant", TEAM).get("status", {})
    return int(status.get("pending", 0)) if status.get("observedGeneration") else -1
