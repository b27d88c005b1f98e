"""The largest pods that are accepted: delay of other users, restart of the leader, and memory.

Brings up its own cluster. Pods with lists at Fairgate's bounds, and pods of the largest size that
the API server stores, are created and deleted in batches. Meanwhile another user's pod of one GPU
is released on free capacity.
"""

from __future__ import annotations

import asyncio
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass, field
from http import HTTPStatus
from pathlib import Path
from typing import Any

import msgspec
import uvloop

from app.core.errors import ClusterRefused, ClusterUnavailable
from app.core.well_known import GATE
from app.devcluster import state_dir as folders
from app.devcluster.cluster import LocalCluster
from app.devcluster.cluster_options import ClusterOptions
from app.devcluster.progress import ConsoleProgress
from app.devcluster.signals import signals_as_interrupt
from app.kube.client import Client
from loadtest import load
from loadtest.figures import Compared, Measure, Series, Target

NAME = "largest"
PODS = 5000
BATCH = 20
"""Large pods that exist at once."""

SAMPLED = 10
"""The other user's pod is created in every batch of this number."""

LARGE, OTHER = "bench-large", "bench-other"
LIMIT = CREATE_LIMIT = 120.0
DELAY, RESTART, GROWTH, FAILED = Target(most=2), Target(most=10), Target(most=50), Target(most=0)
SETTLED_SECONDS = 5.0
FAIRGATE = "Fairgate: "
"""Start of a refusal by Fairgate's admission."""

TOO_MANY = 10_000
"""GPUs of a large pod: more than any node has, so that it stays held."""

Spec = dict[str, Any]


def _expression(key: str, *values: str) -> Spec:
    return {"key": key, "operator": "NotIn" if values else "DoesNotExist", "values": list(values)}


def _node_affinity(salt: str, count: int) -> Spec:
    """Return terms with two requirements and five values each."""
    terms = [
        {
            "matchExpressions": [
                _expression(f"{salt}-a{i}", *(f"{salt}-v{i}-{j}".ljust(60, "x") for j in range(5))),
                _expression(f"{salt}-b{i}"),
            ]
        }
        for i in range(count)
    ]
    required = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}
    return {"affinity": {"nodeAffinity": required}}


def _selector(salt: str, count: int) -> Spec:
    return {"nodeSelector": {f"{salt}-{i}": "v".ljust(60, "x") for i in range(count)}}


def _tolerations(salt: str, count: int) -> Spec:
    return {"tolerations": [{"key": f"{salt}-{i}", "operator": "Exists"} for i in range(count)]}


def _anti_affinity(salt: str, count: int) -> Spec:
    """Return terms with two requirements each."""
    terms = [
        {
            "topologyKey": f"{salt}-{i}",
            "labelSelector": {"matchLabels": {"app": salt, f"k{i}": salt}},
        }
        for i in range(count)
    ]
    return {
        "affinity": {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": terms}}
    }


def _spread(salt: str, count: int) -> Spec:
    return {
        "topologySpreadConstraints": [
            {
                "maxSkew": 1,
                "topologyKey": f"{salt}-{i}",
                "whenUnsatisfiable": "DoNotSchedule",
                "labelSelector": {"matchLabels": {"app": salt}},
            }
            for i in range(count)
        ]
    }


def _gates(salt: str, count: int) -> Spec:
    return {"schedulingGates": [{"name": f"example.com/{salt}-{i}"} for i in range(count)]}


def _volumes(salt: str, count: int) -> Spec:
    """Return at most 5 000: CEL in the API server needs seconds for 30 000 (docs/limits.md)."""
    return {"volumes": [{"name": f"{salt}-{i}", "emptyDir": {}} for i in range(min(count, 5000))]}


def _resources(salt: str, count: int) -> Spec:
    return {"resources": {f"example.com/{salt}-{i}": "1" for i in range(count)}}


def _variables(salt: str, count: int) -> Spec:
    return {"env": [{"name": f"V{i}", "value": salt.ljust(1000, "x")} for i in range(count)]}


def _labels(salt: str, count: int) -> Spec:
    return {"labels": {f"{salt}-{i}": "v".ljust(60, "x") for i in range(count)}}


def _owners(salt: str, count: int) -> Spec:
    kind = {"apiVersion": "v1", "kind": "ConfigMap"}
    named = ({"name": f"{salt}-{i}", "uid": f"{salt}-{i}"} for i in range(count))
    return {"ownerReferences": [{**kind, **each} for each in named]}


def _annotations(salt: str, count: int) -> Spec:
    """Return at most as many as Kubernetes accepts: 256 KiB in all."""
    return {"annotations": {f"{salt}-{i}": "x" * 240 for i in range(min(count, 1000))}}


SHAPES: tuple[tuple[Callable[[str, int], Spec], int], ...] = (
    (_node_affinity, 50), (_selector, 50), (_tolerations, 45), (_anti_affinity, 50), (_spread, 20),
    (_gates, 19), (_volumes, 1000), (_resources, 140), (_variables, 250), (_labels, 1000),
    (_owners, 500), (_annotations, 1000),
)  # fmt: skip
"""Each field of a pod, and about the largest number of entries with which Fairgate releases it."""

MOST_BYTES = 1_000_000
"""With managed fields and defaults such a pod is close to the 1.5 MiB that etcd accepts."""


def large_pod(number: int) -> bytes:
    """Return the JSON of one large pod. No two pods have an entry in common.

    In turns its list has Fairgate's bound, or the largest size that the API server stores.
    """
    salt = f"s{number}"
    build, count = SHAPES[number // 2 % len(SHAPES)]
    if number % 2:
        count = count * MOST_BYTES // len(msgspec.json.encode(build(salt, count)))
    pod: Spec = msgspec.json.decode(load.pod(f"large-{number}", gated=False, gpus=TOO_MANY))
    [container] = pod["spec"]["containers"]
    found = build(salt, count)
    for key in ("labels", "annotations", "ownerReferences"):
        if key in found:
            pod["metadata"][key] = found.pop(key)
    container |= {key: found.pop(key) for key in ("env",) if key in found}
    container["resources"]["limits"] |= found.pop("resources", {})
    pod["spec"] |= found
    return msgspec.json.encode(pod)


@dataclass
class _Found:
    """Seconds, MiB, failed answers of /livez, and how many creations there were of each kind."""

    delays: list[float] = field(default_factory=list)
    restarts: list[float] = field(default_factory=list)
    growth: dict[str, float] = field(default_factory=dict)
    failed: int = 0
    tried: int = 0
    repeated: int = 0
    refused: int = 0


def measure(progress: ConsoleProgress, pods: int | None, rounds: int | None) -> Measure:
    """Create and delete `pods` large pods; restart `rounds` times. None means the default."""
    pods, rounds = pods or PODS, rounds or 1
    cluster = LocalCluster(folders.own_folder("bench"))
    with signals_as_interrupt():
        try:
            cluster.up(ClusterOptions(), progress)
            found = uvloop.run(_measure(cluster, pods, rounds, progress))
        finally:
            with progress.step("Taking the cluster down"):
                cluster.down()
    figures = (
        ("another user's release", "s", found.delays, DELAY),
        ("first release after a restart", "s", found.restarts, RESTART),
        ("failed answers of /livez", "", [float(found.failed)], FAILED),
        *((f"memory of the {r}", "MiB more", [v], GROWTH) for r, v in found.growth.items()),
    )
    return Measure(
        NAME,
        "The largest pods",
        (
            f"{pods:,} pods, each with one list at Fairgate's bound or of about 1 MB, in batches "
            f"of {BATCH}. Admission refused {found.refused:,} of {found.tried:,}; the rest waited. "
            f"{found.repeated:,} requests got no answer and were sent again.",
            f"In each {SAMPLED}th batch another user's 1-GPU pod, from create to release.",
            f"Then restarts of the leader with {BATCH} such pods. Memory is the resident set after "
            "the last pod is gone, less that after the first batches.",
        ),
        (),
        tuple(Compared(Series(t, u, tuple(v)), most, each=True) for t, u, v, most in figures),
    )


async def _measure(
    cluster: LocalCluster, pods: int, rounds: int, progress: ConsoleProgress
) -> _Found:
    client = await Client.connect(cluster.kubeconfig, pool_size=load.CONNECTIONS + 1)
    found = _Found()
    try:
        for namespace in (LARGE, OTHER):
            await load.create_namespace(client, namespace)
        numbers = list(range(pods + BATCH * SAMPLED))
        warm, rest = numbers[: BATCH * SAMPLED], numbers[BATCH * SAMPLED :]
        with progress.step("largest: the first batches"):
            for first in range(0, len(warm), BATCH):
                await _batch(client, warm[first : first + BATCH], found, None)
        before = await _memory(cluster)
        for part in range(0, len(rest), BATCH * SAMPLED):
            done = min(part + BATCH * SAMPLED, pods)
            with progress.step(f"largest: pods, {done:,} of {pods:,}"):
                for first in range(part, done, BATCH):
                    sampled = None if first > part else found.delays
                    await _batch(client, rest[first : first + BATCH], found, sampled)
        after = await _memory(cluster)
        found.growth = {role: after[role] - before[role] for role in before}
        for number in range(1, rounds + 1):
            with progress.step(f"largest: restart {number} of {rounds}"):
                await _restart(cluster, client, found)
    finally:
        await client.close()
    return found


async def _create(client: Client, numbers: list[int], found: _Found) -> None:
    """Create large pods. Count those that admission refuses because a list is too long.

    A busy API server may not answer in time, so a request without an answer is sent again.
    """

    async def create(number: int) -> None:
        found.tried += 1
        is_first = True
        while True:
            try:
                return await load.create_pod(client, LARGE, large_pod(number))
            except ClusterUnavailable:
                is_first = False
                found.repeated += 1
            except ClusterRefused as error:
                if error.status == HTTPStatus.CONFLICT and not is_first:
                    return None  # the earlier request has created the pod
                if FAIRGATE not in str(error):
                    raise
                found.refused += 1
                return None

    await load.over(numbers, create, CREATE_LIMIT)


async def _batch(
    client: Client, numbers: list[int], found: _Found, delays: list[float] | None
) -> None:
    """Create large pods, measure the delay of another pod if asked to, and delete all."""
    await _create(client, numbers, found)
    if delays is not None:
        delays.append(await _release(client))
    await load.clear(client, [LARGE])


async def _release(client: Client, name: str = "quick") -> float:
    """Return the seconds from the creation of a pod of one GPU to its release."""
    began = time.monotonic()
    await load.create_pod(client, OTHER, load.pod(name, gated=False))

    async def is_released() -> bool:
        return GATE not in await load.gates_of(client, OTHER, name)

    await load.until(is_released, "another user's pod is not released", LIMIT)
    took = time.monotonic() - began
    await load.clear(client, [OTHER])
    return took


async def _restart(cluster: LocalCluster, client: Client, found: _Found) -> None:
    """Restart the leader while large pods are held; poll /livez until a pod is released."""
    await asyncio.to_thread(cluster.stop_fairgate, "controller")
    await _create(client, list(range(BATCH)), found)
    began = time.monotonic()
    await asyncio.to_thread(cluster.start_fairgate, "controller", wait=False)
    watching = asyncio.create_task(_watch(cluster, found))
    await _release(client, "first")
    found.restarts.append(time.monotonic() - began)
    watching.cancel()
    await load.clear(client, [LARGE])


async def _watch(cluster: LocalCluster, found: _Found) -> None:
    """Count failed answers of /livez, from the first good one on."""
    [url] = cluster.ops_urls("controller")
    alive = False
    while True:
        answers = await asyncio.to_thread(_answers, f"{url}/livez")
        found.failed += alive and not answers
        alive = alive or answers
        await asyncio.sleep(load.POLL_SECONDS)


def _answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=3) as answer:
            return bool(answer.status == 200)
    except (urllib.error.URLError, TimeoutError):
        return False


async def _memory(cluster: LocalCluster) -> dict[str, float]:
    """Return the resident set of leader and API in MiB, when it no longer changes."""
    known: dict[str, float] = {}
    while True:
        await asyncio.sleep(SETTLED_SECONDS)
        pids = cluster.details().pids
        now = {role: _resident(pids[f"fairgate-{role}"][0]) for role in ("controller", "api")}
        if known and all(abs(now[role] - known[role]) < 1 for role in now):
            return now
        known = now


def _resident(pid: int) -> float:
    status = Path(f"/proc/{pid}/status").read_text()
    [line] = [each for each in status.splitlines() if each.startswith("VmRSS")]
    return int(line.split()[1]) / 1024
