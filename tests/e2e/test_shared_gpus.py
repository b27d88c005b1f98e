"""Fractions of GPUs on a real API server: MIG, time-slicing and HAMi, next to whole devices."""

from __future__ import annotations

from collections import Counter

import pytest

from tests.support.cluster_driver import GPU, Object, Stage, gates, name_of, until

SLICE, SHARED = "nvidia.com/mig-1g.5gb", "nvidia.com/gpu.shared"
CORES, MEMORY = "nvidia.com/gpucores", "nvidia.com/gpumem"
ROOM = {"cpu": "64", "memory": "256Gi", "pods": "110"}
KIND = "example.com/kind"


def node(name: str, capacity: dict[str, str], **labels: str) -> Object:
    """Return a node that KWOK simulates. The caller escapes dots and slashes of labels."""
    own = {"kubernetes.io/hostname": name, "type": "kwok", KIND: name, **labels}
    offer = {**ROOM, **capacity}
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name, "labels": own},
        "status": {"capacity": offer, "allocatable": offer},
    }


def pool(name: str, *, paused: bool = True) -> Object:
    spec = {"nodeSelector": {KIND: name}, "paused": paused}
    meta = {"apiVersion": "fairgate.io/v1alpha1", "kind": "Pool"}
    return {**meta, "metadata": {"name": name}, "spec": spec}


def asking(name: str, asked: dict[str, int], priority: str = "", where: str = "") -> Object:
    spec: Object = {
        "restartPolicy": "Never",
        "containers": [{"name": "c", "image": "i", "resources": {"limits": asked}}],
    }
    if priority:
        spec["priorityClassName"] = priority
    about: Object = {"name": name}
    if where:
        about["annotations"] = {"fairgate.io/pools": where}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": about, "spec": spec}


def several(count: int, name: str, asked: dict[str, int], **more: str) -> list[Object]:
    return [asking(f"{name}-{number}", asked, **more) for number in range(count)]


class Ground:
    """Nodes of several kinds, each in a separate pool, paused at first. `open` unpauses a pool."""

    def __init__(self, stage: Stage) -> None:
        self._stage = stage
        self._pools: list[str] = []

    def add(self, name: str, capacity: dict[str, str], **labels: str) -> None:
        self._stage.apply("default", node(name, capacity, **labels), pool(name))
        self._stage.objects += [("pool", name), ("node", name)]
        self._pools.append(name)

    def open(self, *names: str) -> None:
        chosen = names or self._pools
        self._stage.apply("default", *(pool(name, paused=False) for name in chosen))


@pytest.fixture
def ground(stage: Stage) -> Ground:
    return Ground(stage)


def on_nodes(stage: Stage, namespace: str) -> Counter[str]:
    """Return the number of pods that run on each node."""
    return Counter(
        p["spec"]["nodeName"]
        for p in stage.pods(namespace)
        if p["status"].get("phase") == "Running"
    )


def test_tenants_with_fractions_and_whole_gpus_get_equal_shares(
    stage: Stage, ground: Ground
) -> None:
    ground.add("cards", {GPU: "4"})
    ground.add("mig", {SLICE: "14"})  # two devices
    ground.add("shared", {SHARED: "8"}, **{"nvidia.com/gpu.replicas": "4"})  # two
    ground.add("hami", {GPU: "20", CORES: "200", MEMORY: "81920"})  # two, with ten shares each
    a, b = stage.namespace("parts-a"), stage.namespace("parts-b")
    stage.tenant("parts-a", "1", a)
    stage.tenant("parts-b", "1", b)
    first = stage.priority_class("parts-first", 1000)
    until(
        "its twin exists",
        lambda: f"fairgate-{first}" in map(name_of, stage.get("priorityclass")["items"]),
    )
    quarter = {GPU: 1, CORES: 10, MEMORY: 10240}  # of the memory, a larger fraction than of compute
    stage.apply(
        a,
        *several(14, "slice", {SLICE: 1}, priority=first),
        *several(8, "turn", {SHARED: 1}, priority=first),
        *several(4, "card", {GPU: 1}, where="cards"),
    )
    stage.apply(
        b,
        *several(8, "part", quarter, priority=first),
        *several(4, "card", {GPU: 1}, where="cards"),
    )
    until("all are held", lambda: len(stage.held(a)) == 26 and len(stage.held(b)) == 12)

    ground.open("mig", "shared", "hami")
    parts = Counter(mig=14, shared=8, hami=8)
    until("all parts run", lambda: on_nodes(stage, a) + on_nodes(stage, b) == parts)
    ground.open("cards")
    cards = Counter(cards=4)
    until("the cards are in use", lambda: on_nodes(stage, a) + on_nodes(stage, b) == parts + cards)

    assert on_nodes(stage, a) == Counter(mig=14, shared=8, cards=1)  # 2 + 2 + 1 devices
    assert on_nodes(stage, b) == Counter(hami=8, cards=3)  # 2 + 3
    for tenant in ("parts-a", "parts-b"):
        until(
            "half of ten devices are told",
            lambda tenant=tenant: float(stage.get("tenant", tenant)["status"]["share"]) == 0.5,
        )


def test_fraction_is_released_if_a_single_device_has_enough_left(
    stage: Stage, ground: Ground
) -> None:
    ground.add("hami", {GPU: "20", CORES: "200"})
    ours = stage.namespace("sixty")
    stage.tenant("sixty", "1", ours)
    stage.apply(ours, *several(3, "part", {GPU: 1, CORES: 60}))
    until("all are held", lambda: len(stage.held(ours)) == 3)
    ground.open()
    until("two run", lambda: on_nodes(stage, ours) == Counter(hami=2))
    # 80 of the 200 percent are free, 40 on each device: one more such pod fits.
    stage.apply(ours, asking("smaller", {GPU: 1, CORES: 40}))
    until("the smaller one runs", lambda: "smaller" in stage.running(ours))
    [waiting] = stage.held(ours)
    assert waiting.startswith("part-")
    stage.delete(ours, next(name for name in stage.running(ours) if name.startswith("part-")))
    until("the third takes its place", lambda: waiting in stage.running(ours))


def test_invalid_replicas_label_does_not_stop_releases(stage: Stage, ground: Ground) -> None:
    ground.add("shared", {SHARED: "4"}, **{"nvidia.com/gpu.replicas": "many"})
    ours = stage.namespace("unpriced")
    stage.tenant("unpriced", "1", ours)
    stage.apply(ours, *several(5, "turn", {SHARED: 1}))
    ground.open()
    until("four run", lambda: on_nodes(stage, ours) == Counter(shared=4))
    [held] = [p for p in stage.pods(ours) if gates(p)]
    assert name_of(held).startswith("turn-")
