"""Topology spread with a scheduler that binds pods in any order, and to other nodes than assumed.

Zone x has 8 devices and zone y has 2, so at most three and two of eight equal pods may run.
"""

from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest

from app.core import events as ev
from app.core.effects import Release
from app.core.engine import Engine
from app.core.model import Millis, Node, NodeName, Phase, Pod, ReleaseOutcome, Resource, Uid
from app.core.podspec.constraints import DistanceRuleKind, PodDistanceRule
from app.core.policy import Policy
from app.core.quantities import PODS, ManagedResources
from app.sim.cluster.virtual_cluster import held_pod
from tests.support.depth import cases

GPU = Resource("nvidia.com/gpu")
RULE = PodDistanceRule(DistanceRuleKind.EVEN, "zone", "web")
STEPS = 60


class SpreadCluster:
    """A leader, some pods, and a scheduler that binds them at random where the rule allows."""

    def __init__(self, random: Random, pods: int = 8, in_y: int = 2) -> None:
        self.random, self.now = random, 1000
        self.engine = Engine(ManagedResources([GPU]))
        self.devices, self.ready = {"x": 8, "y": in_y}, {"x": True, "y": True}
        self.pods: dict[Uid, Pod] = {}
        self.unbound: list[Uid] = []
        self.hear(ev.PolicyObserved(self.at, Policy()), *map(self.node, "xy"))
        self.hear(*(ev.SourceFresh(self.at, source) for source in ev.WatchedSource))
        self.hear(ev.Installed(self.at, Millis(0)), ev.LeadershipGained(self.at, 7))
        self.hear(ev.StoreReady(self.at))
        for _ in range(pods):
            self.create()

    def create(self, **selector: str) -> None:
        name = f"w{len(self.pods)}"
        pod = replace(held_pod(name, "a", since=1000), distance_rules=(RULE,), selector=selector)
        self.pods[pod.uid] = pod
        self.hear(ev.PodObserved(self.at, pod))

    @property
    def at(self) -> Millis:
        return Millis(self.now)

    def node(self, zone: str) -> ev.NodeObserved:
        room = {GPU: self.devices[zone], PODS: 110}
        return ev.NodeObserved(
            self.at, Node(NodeName(zone), {"zone": zone}, room, self.ready[zone])
        )

    def hear(self, *events: ev.Event) -> None:
        for event in (*events, ev.Pass(self.at)):
            for effect in self.engine.handle(event):
                if isinstance(effect, Release):
                    uid = effect.intent.ref.uid
                    released = {"gates": (), "release_annotation": effect.stamp}
                    self.pods[uid] = replace(self.pods[uid], **released)
                    self.unbound.append(uid)

    def in_zone(self, zone: str) -> int:
        return sum(pod.node == zone for pod in self.pods.values())

    def schedule_one(self) -> None:
        """Bind a released pod, as planned or elsewhere. It stays unbound if no zone may have it."""
        uid = self.unbound.pop(self.random.randrange(len(self.unbound)))
        self.hear(ev.ReleaseAnswered(self.at, uid, ReleaseOutcome.RELEASED))
        lowest = min(map(self.in_zone, "xy"))
        allowed = [
            zone
            for zone in "xy"
            if self.ready[zone] and self.in_zone(zone) < self.devices[zone]
            if self.in_zone(zone) <= lowest
        ]
        if allowed:
            node = NodeName(self.random.choice(allowed))
            self.pods[uid] = replace(self.pods[uid], node=node, phase=Phase.RUNNING)
        else:
            self.unbound.append(uid)
        self.hear(ev.PodObserved(self.at, self.pods[uid]))

    def play(self, flaps: float) -> None:
        for _ in range(STEPS):
            self.now += 200
            if self.random.random() < flaps:
                zone = self.random.choice("xy")
                self.ready[zone] = not self.ready[zone]
                self.hear(self.node(zone))
            elif self.unbound:
                self.schedule_one()
        self.ready = {"x": True, "y": True}
        self.hear(*map(self.node, "xy"))
        for _ in range(STEPS):
            if self.unbound:
                self.schedule_one()
        assert not self.unbound, "more pods were released than may be bound"


@pytest.mark.parametrize("flaps", [0, 0.1, 0.3])
@pytest.mark.parametrize("seed", range(cases(20, 300)))
def test_no_pod_is_released_that_the_scheduler_cannot_bind(seed: int, flaps: float) -> None:
    """`flaps`: how often a node becomes ready or not ready."""
    cluster = SpreadCluster(Random(seed))
    cluster.play(flaps)
    assert (cluster.in_zone("x"), cluster.in_zone("y")) == (3, 2)
    cluster.devices["y"] = 8
    cluster.hear(cluster.node("y"))
    cluster.play(flaps)
    assert (cluster.in_zone("x"), cluster.in_zone("y")) == (4, 4)


def test_uneven_bound_pods_hold_back_no_others() -> None:
    """Pods that ended left four in x and one in y. Three more fit into y, and then one into x."""
    cluster = SpreadCluster(Random(0), in_y=8)
    while cluster.unbound:
        cluster.schedule_one()
    ended = [uid for uid, pod in cluster.pods.items() if pod.node == "y"][1:]
    cluster.hear(*(ev.PodGone(cluster.at, uid) for uid in ended))
    for _ in range(4):
        cluster.create()
    assert len(cluster.unbound) == 4


def test_pod_whose_node_is_not_ready_holds_back_no_others() -> None:
    cluster = SpreadCluster(Random(0), pods=0)
    cluster.create(zone="y")
    cluster.ready["y"] = False
    cluster.hear(cluster.node("y"))
    cluster.create(zone="x")
    assert len(cluster.unbound) == 2
