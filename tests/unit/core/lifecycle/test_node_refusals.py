"""A node is avoided after its kubelet rejected pods. One tenant's pods close it only for itself."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import msgspec
import pytest

from app.core import events as ev
from app.core.effects import Effect, EmitEvent, EventReason, NodeRefused, Release
from app.core.engine import Engine
from app.core.explain.reasons import Rule
from app.core.lifecycle.node_refusals import FIRST_MS, LONGEST_MS, TRIAL_MS, refusal_reason
from app.core.model import Millis, Node, NodeName, Phase, Pod, ReleaseOutcome
from app.core.quantities import CPU, PODS, ManagedResources
from app.k8s_types import objects
from app.kube.convert import Pods
from tests.support.engine_bench import GPU
from tests.support.placement_bench import asks

HOST = "kubernetes.io/hostname"
REFUSED = "UnexpectedAdmissionError"


def node(name: str, gpus: int = 8) -> Node:
    room = {GPU: gpus, CPU: 64_000, PODS: 110}
    return Node(NodeName(name), {HOST: name}, room, True)


class Cluster:
    """A leading engine, and kubelets that accept or reject pods."""

    def __init__(self, *nodes: Node) -> None:
        self.engine = Engine(ManagedResources((GPU,)))
        self.now = 1000
        self.said: list[Effect] = []
        self.pods: dict[str, Pod] = {}
        self.orders: dict[str, Release] = {}
        for each in nodes:
            self.engine.handle(ev.NodeObserved(Millis(0), each))
        for source in ev.WatchedSource:
            self.engine.handle(ev.SourceFresh(Millis(0), source))
        self.hear(ev.LeadershipGained(Millis(0), 7), ev.StoreReady(Millis(0)))

    def hear(self, *events: ev.NewsEvent) -> None:
        for event in events:
            self.said += self.engine.handle(event)
        self.wait(0)

    def wait(self, ms: int) -> None:
        """Advance the time, and run cycles until no more pods are released."""
        self.now += ms
        for effect in self.engine.handle(ev.Pass(Millis(self.now))):
            self.said.append(effect)
            if isinstance(effect, Release):
                ref = effect.intent.ref
                self.orders[ref.name] = effect
                self.pods[ref.name] = replace(
                    self.pods[ref.name],
                    gates=(),
                    release_annotation=effect.stamp,
                    pool=effect.intent.pool,
                )
                answer = ev.ReleaseAnswered(Millis(self.now), ref.uid, ReleaseOutcome.RELEASED)
                self.said += self.engine.handle(answer)

    def make(self, name: str, tenant: str = "red", gpus: int = 1, **more: Any) -> None:
        self.pods[name] = asks(name, gpus, **{"namespace": tenant, "user": tenant, **more})
        self._see(name)

    def refuse(self, name: str, reason: str = REFUSED) -> None:
        """Reject a pod as its node's kubelet."""
        at, now = self.where(name), Millis(self.now)
        over = {
            "phase": Phase.FINISHED,
            "failed": True,
            "refusal_reason": reason,
            "started_at": now,
        }
        self.pods[name] = replace(self.pods[name], node=at, **over)
        self._see(name)

    def take(self, name: str) -> None:
        """Accept a pod as its node's kubelet, which starts to pull its images."""
        self.pods[name] = replace(
            self.pods[name], node=self.where(name), started_at=Millis(self.now)
        )
        self._see(name)

    def where(self, name: str) -> NodeName | None:
        return self.orders[name].node

    def _see(self, name: str) -> None:
        self.hear(ev.PodObserved(Millis(self.now), self.pods[name]))


def test_a_node_that_refused_a_pod_gets_no_other_of_that_tenant_for_a_while() -> None:
    cluster = Cluster(node("a"), node("b", gpus=1))
    cluster.make("first", gpus=2)
    cluster.refuse("first")
    cluster.make("second")
    cluster.make("third")
    assert cluster.where("second") == "b"
    cluster.take("second")
    assert "third" not in cluster.orders
    cluster.wait(FIRST_MS - 1)
    assert "third" not in cluster.orders
    cluster.wait(1)
    assert cluster.where("third") == "a"


def test_node_hint_excludes_a_node_that_refused_a_pod() -> None:
    cluster = Cluster(node("a"), node("b"))
    cluster.make("first")
    bad = cluster.where("first")
    cluster.refuse("first")
    cluster.make("second")
    steer = cluster.orders["second"].node_hint
    assert steer is not None
    assert steer.excluded_hosts == (bad,)


def test_refusals_of_one_tenant_close_a_node_for_that_tenant_only() -> None:
    cluster = Cluster(node("a"))
    cluster.make("odd", "red")
    cluster.refuse("odd")
    cluster.make("other", "blue")
    assert cluster.where("other") == "a"
    cluster.take("other")
    cluster.make("again", "red")  # it accepts pods, as the other pod showed
    assert cluster.where("again") == "a"


def test_refusals_of_one_user_in_two_tenants_close_a_node_for_both_only() -> None:
    cluster = Cluster(node("a"))
    for tenant in ("red", "blue"):
        cluster.make(tenant, tenant, user="mallory")
        cluster.refuse(tenant)
    for tenant in ("red", "blue", "green"):
        cluster.make(f"{tenant}-2", tenant)
    assert "red-2" not in cluster.orders
    assert "blue-2" not in cluster.orders
    assert cluster.where("green-2") == "a"


def test_refusals_of_users_of_two_tenants_close_a_node_to_all() -> None:
    cluster = Cluster(node("a"))
    for name, tenant in (("one", "red"), ("two", "blue")):
        cluster.make(name, tenant)
        cluster.refuse(name)
    cluster.make("three", "green")
    assert "three" not in cluster.orders
    assert cluster.engine.queries.view().pools["default"].capacity.get(GPU, 0) == 0
    why = cluster.engine.queries.explain_wait(cluster.pods["three"].uid)
    assert why is not None
    assert "nodes that refused pods are left out for 30 s more: a" in why.text
    cluster.wait(FIRST_MS)
    assert cluster.where("three") == "a"


def test_one_trial_pod_follows_each_pause_and_a_refusal_doubles_the_pause() -> None:
    cluster = Cluster(node("a"))
    cluster.make("first")
    cluster.refuse("first")
    cluster.make("p0")
    cluster.make("p1")
    pause = FIRST_MS
    for number in range(6):
        cluster.wait(pause)
        tried = [f"p{number}" in cluster.orders, f"p{number + 1}" in cluster.orders]
        assert tried == [True, False]
        cluster.refuse(f"p{number}")
        cluster.make(f"p{number + 2}")
        pause = min(2 * pause, LONGEST_MS)
        cluster.wait(pause - 1 if number == 5 else 0)
    assert "p6" not in cluster.orders
    cluster.wait(1)
    assert "p7" not in cluster.orders
    cluster.take("p6")
    assert cluster.where("p7") == "a"


def test_refusals_that_were_on_their_way_count_once() -> None:
    cluster = Cluster(node("a"))
    for number in range(8):
        cluster.make(f"p{number}")
    for number in range(8):
        cluster.refuse(f"p{number}")
    cluster.make("next-1")
    cluster.wait(FIRST_MS)
    assert cluster.where("next-1") == "a"


def test_trial_without_a_result_is_followed_by_another() -> None:
    cluster = Cluster(node("a"))
    cluster.make("first")
    cluster.refuse("first")
    cluster.make("next-0")
    cluster.make("next-1")
    cluster.wait(FIRST_MS)
    assert "next-1" not in cluster.orders
    cluster.wait(TRIAL_MS)
    assert cluster.where("next-1") == "a"


def test_a_trial_that_is_deleted_opens_the_node() -> None:
    cluster = Cluster(node("a"))
    cluster.make("first")
    cluster.refuse("first")
    cluster.make("next-0")
    cluster.make("next-1")
    cluster.wait(FIRST_MS)
    cluster.hear(ev.PodGone(Millis(cluster.now), cluster.pods["next-0"].uid))
    assert cluster.where("next-1") == "a"


def test_node_is_open_again_if_its_devices_change() -> None:
    cluster = Cluster(node("a"))
    for name, tenant in (("one", "red"), ("two", "blue")):
        cluster.make(name, tenant)
        cluster.refuse(name)
    cluster.make("three")
    at = Millis(cluster.now)
    cluster.hear(ev.NodeObserved(at, replace(node("a"), labels={HOST: "a", "new": "label"})))
    assert "three" not in cluster.orders
    cluster.hear(ev.NodeObserved(at, node("a", gpus=0)))
    assert "three" not in cluster.orders
    cluster.hear(ev.NodeObserved(at, node("a")))
    assert cluster.where("three") == "a"


def test_recreated_node_is_open() -> None:
    cluster = Cluster(node("a"))
    cluster.make("one")
    cluster.refuse("one")
    at = Millis(cluster.now)
    cluster.hear(ev.NodeGone(at, NodeName("a")), ev.NodeObserved(at, node("a")))
    cluster.make("two")
    assert cluster.where("two") == "a"


def test_failure_of_a_pod_that_ran_does_not_close_its_node() -> None:
    cluster = Cluster(node("a"))
    cluster.make("first")
    cluster.take("first")
    cluster.refuse("first")
    cluster.make("second")
    assert cluster.where("second") == "a"


def test_failure_without_a_refusal_reason_does_not_close_the_node() -> None:
    cluster = Cluster(node("a"))
    cluster.make("first")
    cluster.refuse("first", "")
    cluster.make("second")
    assert cluster.where("second") == "a"


def test_it_is_reported_once_with_node_and_reason() -> None:
    cluster = Cluster(node("a"))
    cluster.make("first")
    cluster.refuse("first")
    [found] = [each for each in cluster.said if isinstance(each, NodeRefused)]
    assert (found.node, found.reason, found.pool) == ("a", REFUSED, "default")
    notices = [each for each in cluster.said if isinstance(each, EmitEvent)]
    [told] = [each for each in notices if each.reason is EventReason.NODE_REFUSED]
    assert told.ref.name == "first"
    assert "node a refused it (UnexpectedAdmissionError)" in told.message
    assert "for 30 s" in told.message


def test_reason_of_a_held_pod_mentions_nodes_that_refused_its_tenant() -> None:
    cluster = Cluster(node("a"))
    cluster.make("first")
    cluster.refuse("first")
    cluster.make("second")
    why = cluster.engine.queries.explain_wait(cluster.pods["second"].uid)
    assert why is not None
    assert why.rule is Rule.CAPACITY
    assert "nodes that refused pods of its tenant are left out for a while" in why.text


@pytest.mark.parametrize(
    ("phase", "reason", "refused"),
    [
        ("Failed", "UnexpectedAdmissionError", "UnexpectedAdmissionError"),
        ("Failed", "OutOfcpu", "OutOfcpu"),
        ("Failed", "OutOfnvidia.com/gpu", "OutOfResource"),
        ("Failed", "NodeShutdown", "NodeShutdown"),
        ("Failed", "Evicted", ""),
        ("Failed", "DeadlineExceeded", ""),
        ("Failed", None, ""),
        ("Running", "UnexpectedAdmissionError", ""),
    ],
)
def test_the_reason_is_read_of_failed_pods(phase: str, reason: str | None, refused: str) -> None:
    document = {
        "metadata": {"uid": "u"},
        "spec": {"containers": [{"resources": {"limits": {"nvidia.com/gpu": "1"}}}]},
        "status": {"phase": phase, "reason": reason},
    }
    pods = Pods(ManagedResources((GPU,)), frozenset())
    read = pods.read(msgspec.convert(document, objects.PodObject), Millis(1))
    assert isinstance(read, ev.PodObserved)
    assert read.pod.refusal_reason == refused


def test_no_reason_is_no_refusal() -> None:
    assert refusal_reason("") == ""
