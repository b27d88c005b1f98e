"""F15: weights, limits, tenants, pools and nodes change under load; the next decision uses them.

No running pod is evicted by these changes.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

from app.core.lifecycle.tenant_gaps import GAP_MS
from app.devcluster.nodes import GPU, create_nodes
from tests.faults.fault_cluster import GPUS, SMALL, Rig
from tests.faults.many_pods import finish
from tests.support.cluster_driver import Object, name_of, pod, tenant

LEASE_SECONDS = 15
LEFT, RIGHT = ("gpu-node-0", "gpu-node-1"), ("gpu-node-2", "gpu-node-3")


class Scene:
    """Two teams with more pods than free capacity; a pod uses one GPU."""

    def __init__(self, rig: Rig, backlog: int) -> None:
        self.rig = rig
        self.ended: set[str] = set()
        self.seen: set[str] = set()
        for team in ("a", "b"):
            rig.stage.namespace(team)
            rig.stage.tenant(team, "1", team)
            rig.stage.apply(team, *(pod(f"w-{number}") for number in range(backlog)))
        rig.start("controller", lease_seconds=LEASE_SECONDS)  # both wait before a leader exists
        self.until("the pool is full", a=GPUS // 2, b=GPUS // 2)

    def say(self, team: str, weight: str = "1", **spec: object) -> None:
        """Change a Tenant; return after the leader has received the change."""
        self.rig.stage.apply("default", tenant(team, weight, team, **spec))
        self.known("tenant", team)

    def known(self, kind: str, name: str) -> None:
        def is_known() -> bool:
            found = self.rig.stage.get(kind, name)
            generation = found["metadata"]["generation"]
            return bool(found.get("status", {}).get("observedGeneration") == generation)

        self.rig.until(f"the leader knows {kind} {name}", is_known)

    def running(self, team: str | None = None, nodes: tuple[str, ...] = ()) -> list[Object]:
        found = [p for p in self.rig.pods() if p["status"].get("phase") == "Running"]
        self.seen |= {p["metadata"]["uid"] for p in found}
        return [
            p
            for p in found
            if team in (None, p["metadata"]["namespace"])
            and (not nodes or p["spec"]["nodeName"] in nodes)
        ]

    def finish(self, pods: list[Object]) -> None:
        self.ended |= {p["metadata"]["uid"] for p in pods}
        finish(self.rig, pods)

    def until(self, what: str, **count: int) -> None:
        """Wait until each team has this number of running pods."""

        def is_so() -> bool:
            teams = Counter(p["metadata"]["namespace"] for p in self.running())
            return all(teams[team] == number for team, number in count.items())

        self.rig.took(what, self.rig.until(f"{what}: {count}", is_so))

    def nobody_was_evicted(self) -> None:
        there = {p["metadata"]["uid"] for p in self.running()}
        assert self.seen - self.ended <= there


def test_f15_weights_and_limits_hold_from_the_next_decision_on(rig: Rig) -> None:
    scene = Scene(rig, backlog=40)
    scene.say("a", "3")
    scene.finish(scene.running("b")[:4])
    scene.until("the heavier team gets what is free", a=20, b=12)

    scene.say("a", "3", quotas=[{"pool": "default", "limit": {GPU: 18}}])
    scene.finish(scene.running("a")[:4])
    scene.until("the limit is obeyed, though nobody is evicted", a=18, b=14)

    scene.say("a", "3")
    scene.finish(scene.running("b")[:2])
    scene.until("without the limit the weight counts again", a=20, b=12)
    scene.nobody_was_evicted()


def test_f15_paused_and_deleted_tenants_take_effect_under_load(rig: Rig) -> None:
    scene = Scene(rig, backlog=30)
    scene.say("a", "1", paused=True)
    scene.finish(scene.running("a")[:3])
    scene.until("a team that is paused gets nothing", a=13, b=19)

    rig.cluster.kubectl("delete", "tenant", "a")
    deleted = time.monotonic()
    rig.until("another Tenant could list it", lambda: time.monotonic() > deleted + GAP_MS / 1000)
    scene.finish(scene.running("b")[:4])
    scene.until("the namespace without a tenant is served again", a=16, b=16)

    rig.stage.apply("default", tenant("b", "1", "a", "b"))
    scene.known("tenant", "b")
    before = {p["metadata"]["uid"] for p in scene.running()}
    scene.finish(scene.running("a")[:3] + scene.running("b")[:3])
    full(scene)
    anew = [p for p in scene.running() if p["metadata"]["uid"] not in before]
    assert {p["metadata"]["labels"]["fairgate.io/tenant"] for p in anew} == {"b"}
    scene.nobody_was_evicted()


def test_f15_created_paused_and_deleted_pools_take_effect_under_load(rig: Rig) -> None:
    scene = Scene(rig, backlog=30)
    with sides(scene):
        gone = scene.running(nodes=LEFT)[:3] + scene.running(nodes=RIGHT)[:2]
        scene.finish(gone)
        full(scene)
        sorts = {p["metadata"]["labels"]["fairgate.io/pool"] for p in scene.running()}
        assert sorts == {"default", "left", "right"}

        rig.stage.apply("default", side("left", paused=True))
        scene.known("pool", "left")
        scene.finish(scene.running(nodes=LEFT)[:2] + scene.running(nodes=RIGHT)[:2])
        right = lambda: len(scene.running(nodes=RIGHT)) == 16  # noqa: E731
        rig.took("the other pool goes on", rig.until("the other pool goes on", right))
        assert len(scene.running(nodes=LEFT)) == 14
        rig.stage.apply("default", side("left"))
        full(scene)
    scene.finish(scene.running()[:3])
    full(scene)
    scene.nobody_was_evicted()


def test_f15_changed_and_deleted_nodes_take_effect_under_load(rig: Rig) -> None:
    scene = Scene(rig, backlog=40)
    rig.cluster.kubectl("cordon", RIGHT[1])
    scene.finish(scene.running(nodes=LEFT[:1])[:2] + scene.running(nodes=RIGHT[1:])[:2])
    filled(scene, LEFT[0], 8)
    assert len(scene.running(nodes=RIGHT[1:])) == 6
    rig.cluster.kubectl("uncordon", RIGHT[1])
    filled(scene, RIGHT[1], 8)

    resize(rig, LEFT[0], 4)
    scene.finish(scene.running(nodes=LEFT[:1])[:5] + scene.running(nodes=LEFT[1:])[:1])
    filled(scene, LEFT[1], 8)
    filled(scene, LEFT[0], 4)
    resize(rig, LEFT[0], 8)
    filled(scene, LEFT[0], 8)
    scene.nobody_was_evicted()

    lost = scene.running(nodes=RIGHT[1:])
    rig.cluster.kubectl("delete", "node", RIGHT[1])
    for each in lost:
        rig.stage.delete(each["metadata"]["namespace"], name_of(each))
    scene.ended |= {p["metadata"]["uid"] for p in lost}
    scene.finish(scene.running(nodes=LEFT)[:4])
    rig.until("the rest is full", lambda: len(scene.running(nodes=(*LEFT, RIGHT[0]))) == 24)
    with rig.admin() as api:
        create_nodes(api, SMALL.node_groups()[0])
    full(scene)
    scene.nobody_was_evicted()


def full(scene: Scene) -> None:
    took = scene.rig.until("the cluster is full", lambda: len(scene.running()) == GPUS)
    scene.rig.took("the cluster is full", took)


def filled(scene: Scene, node: str, gpus: int) -> None:
    ready = lambda: len(scene.running(nodes=(node,))) == gpus  # noqa: E731
    scene.rig.until(f"{gpus} GPUs of {node} are used", ready)


def resize(rig: Rig, node: str, gpus: int) -> None:
    offers = f'{{"nvidia.com/gpu": "{gpus}"}}'
    patch = f'{{"status": {{"capacity": {offers}, "allocatable": {offers}}}}}'
    rig.cluster.kubectl("patch", "node", node, "--subresource=status", "-p", patch)


def side(name: str, **spec: object) -> Object:
    meta = {"name": name}
    whole = {"nodeSelector": {"side": name}, **spec}
    return {
        "apiVersion": "fairgate.io/v1alpha1",
        "kind": "Pool",
        "metadata": meta,
        "spec": {"paused": False, **whole},
    }


@contextmanager
def sides(scene: Scene) -> Iterator[None]:
    """Two pools of two nodes each, until the end of the block."""
    kubectl = scene.rig.cluster.kubectl
    for name, nodes in (("left", LEFT), ("right", RIGHT)):
        kubectl("label", "node", *nodes, f"side={name}")
    try:
        scene.rig.stage.apply("default", side("left"), side("right"))
        for name in ("left", "right"):
            scene.known("pool", name)
        yield
    finally:
        kubectl("delete", "pool", "left", "right", "--ignore-not-found")
        kubectl("label", "node", *LEFT, *RIGHT, "side-")
