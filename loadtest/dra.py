"""Utilisation of nodes with GPUs in ResourceSlices, next to equal nodes with a device plugin.

Both kinds of nodes are in one cluster and get the same load at the same time, each in its own pool.
A pod runs for its time after it was bound, and is then deleted.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec
import uvloop

from app.devcluster import state_dir as folders
from app.devcluster.cluster import LocalCluster
from app.devcluster.cluster_options import ClusterOptions
from app.devcluster.nodes import GPU, GPU_ROOM, NodeGroup
from app.devcluster.progress import ConsoleProgress
from app.devcluster.signals import signals_as_interrupt
from app.kube.client import Client
from loadtest import load
from loadtest.figures import Measure, Series, Target, ratio

NAME = "dra"
NODES, DEVICES = 4, 8
PODS, ROUNDS = 150, 1
SPAN_SECONDS = 100.0
LIFE_SECONDS = (15.0, 25.0)
SIZES = (1, 1, 1, 2, 4, 8)
LEAST = Target(least=0.98)
LABEL = "example.com/bench"
DRIVER = "gpu.bench.example.com"
DEVICE_API = "/apis/resource.k8s.io/v1"
FAIRGATE_API = "/apis/fairgate.io/v1alpha1"


@dataclass(slots=True)
class Arm:
    """One kind of nodes. `lives`: GPUs and seconds of each pod.

    `running`: GPUs, time of the binding and end of each bound pod. `used`: GPU seconds of others.
    """

    name: str
    lives: Sequence[tuple[int, float]]
    running: dict[str, tuple[int, float, float]] = field(default_factory=dict)
    over: set[str] = field(default_factory=set)
    used: float = 0.0


def measure(progress: ConsoleProgress, pods: int | None, rounds: int | None) -> Measure:
    """Run the load on both kinds of nodes, on a cluster of its own."""
    count = pods or PODS
    groups = tuple(
        NodeGroup(name, NODES, {**GPU_ROOM, **gpus}, {LABEL: name})
        for name, gpus in (("plugin", {GPU: str(DEVICES)}), ("dra", {}))
    )
    cluster = LocalCluster(folders.own_folder("bench"))
    shares: list[tuple[float, float]] = []
    with signals_as_interrupt():
        try:
            cluster.up(ClusterOptions(groups=groups), progress)
            for number in range(rounds or ROUNDS):
                with progress.step(f"dra, round {number + 1}"):
                    shares.append(uvloop.run(_round(cluster, count, number)))
        finally:
            with progress.step("Taking the cluster down"):
                cluster.down()
    plugin, slices = (tuple(each) for each in zip(*shares, strict=True))
    figures = (
        Series("GPUs in use, device plugin", "%", plugin),
        Series("GPUs in use, ResourceSlices only", "%", slices),
    )
    return Measure(
        NAME,
        "Utilisation of nodes with ResourceSlices only",
        (
            f"{NODES} nodes with {DEVICES} GPUs of each kind, {count} waiting pods of 1 to 8 GPUs, "
            f"{SPAN_SECONDS:.0f} s. A pod runs for 15 to 25 s.",
        ),
        figures,
        (ratio("ResourceSlices / device plugin", figures[1], figures[0], LEAST),),
    )


async def _round(cluster: LocalCluster, pods: int, seed: int) -> tuple[float, float]:
    """Return the part of the GPUs in use on each kind of nodes, in per cent."""
    client = await Client.connect(cluster.kubeconfig, pool_size=load.CONNECTIONS + 1)
    dice = random.Random(seed)
    lives = [(dice.choice(SIZES), dice.uniform(*LIFE_SECONDS)) for _ in range(pods)]
    arms = [Arm("plugin", lives), Arm("dra", lives)]
    try:
        await _publish(client)
        for arm in arms:
            await _prepare(client, arm)
        await asyncio.gather(*(_create(client, arm) for arm in arms))
        began = time.monotonic()
        while (now := time.monotonic() - began) < SPAN_SECONDS:
            await asyncio.gather(*(_step(client, arm, now) for arm in arms))
            await asyncio.sleep(load.POLL_SECONDS)
        for arm in arms:
            for size, bound, _ in arm.running.values():
                arm.used += size * (SPAN_SECONDS - bound)
        await load.clear(client, [f"bench-{arm.name}" for arm in arms])
    finally:
        await client.close()
    whole = NODES * DEVICES * SPAN_SECONDS / 100
    plugin, slices = (arm.used / whole for arm in arms)
    return plugin, slices


async def _publish(client: Client) -> None:
    """Create the DeviceClass, and the slice of each node without a device plugin."""
    selector = {"cel": {"expression": f"device.driver == '{DRIVER}'"}}
    spec: dict[str, Any] = {"selectors": [selector], "extendedResourceName": GPU}
    body = {"metadata": {"name": DRIVER}, "spec": spec}
    await load.create(client, f"{DEVICE_API}/deviceclasses", body)
    devices = [{"name": f"gpu-{number}"} for number in range(DEVICES)]
    for number in range(NODES):
        node = f"dra-{number}"
        pool = {"name": node, "generation": 1, "resourceSliceCount": 1}
        spec = {"driver": DRIVER, "nodeName": node, "pool": pool, "devices": devices}
        body = {"metadata": {"name": node}, "spec": spec}
        await load.create(client, f"{DEVICE_API}/resourceslices", body)


async def _prepare(client: Client, arm: Arm) -> None:
    """Create the pool, the tenant and the namespace of an arm. Wait until its GPUs are capacity."""
    namespace = f"bench-{arm.name}"
    pool = {"metadata": {"name": arm.name}, "spec": {"nodeSelector": {LABEL: arm.name}}}
    tenant = {
        "metadata": {"name": arm.name},
        "spec": {"namespaces": [namespace], "pools": [arm.name]},
    }
    kind = {"apiVersion": "fairgate.io/v1alpha1"}
    await load.create(client, f"{FAIRGATE_API}/pools", {**kind, "kind": "Pool", **pool})
    await load.create(client, f"{FAIRGATE_API}/tenants", {**kind, "kind": "Tenant", **tenant})
    await load.create_namespace(client, namespace)

    async def is_counted() -> bool:
        found = await load.read(client, f"{FAIRGATE_API}/pools/{arm.name}")
        free = found.get("status", {}).get("free", {})
        return bool(free.get(GPU) == str(NODES * DEVICES))

    await load.until(is_counted, f"the leader has not counted the GPUs of pool {arm.name}")


async def _create(client: Client, arm: Arm) -> None:
    names = load.names(len(arm.lives))
    bodies = [
        load.pod(name, gated=False, gpus=size)
        for name, (size, _) in zip(names, arm.lives, strict=True)
    ]
    await load.create_pods(client, f"bench-{arm.name}", bodies)


class _Spec(msgspec.Struct, rename="camel"):
    node_name: str = ""


class _Meta(msgspec.Struct):
    name: str


class _Pod(msgspec.Struct):
    metadata: _Meta
    spec: _Spec


class _Pods(msgspec.Struct):
    items: list[_Pod]


_pods = msgspec.json.Decoder(_Pods)


async def _step(client: Client, arm: Arm, now: float) -> None:
    """Record pods that were bound, and delete those whose time is over."""
    path = load.pods_path(f"bench-{arm.name}")
    query = [("fieldSelector", "spec.nodeName!=")]
    found = _pods.decode(await client.request("GET", path, query=query))
    numbers = {name: number for number, name in enumerate(load.names(len(arm.lives)))}
    for pod in found.items:
        name = pod.metadata.name
        if name not in arm.running and name not in arm.over:
            size, life = arm.lives[numbers[name]]
            arm.running[name] = size, now, now + life
    over = [name for name, (_, _, end) in arm.running.items() if end <= now]
    for name in over:
        size, bound, _ = arm.running.pop(name)
        arm.used += size * (now - bound)
        arm.over.add(name)
    body = b'{"gracePeriodSeconds":0}'
    await load.over(
        over,
        lambda name: client.request("DELETE", load.pods_path(f"bench-{arm.name}", name), body=body),
        load.REQUEST_SECONDS,
    )
