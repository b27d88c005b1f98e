"""F19: a device plugin dies; for seconds its node offers devices, and its kubelet rejects pods.

The test acts as the kubelet for some pods. KWOK acts as the kubelet for the other pods and accepts
every pod.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager

from app.devcluster.kubectl import Kubectl
from tests.faults.fault_cluster import Rig
from tests.faults.many_pods import report
from tests.faults.waiting_pods import FITTING, GPUS_EACH, Crowd
from tests.support.cluster_driver import GPU, Object, gates, name_of, pod
from tests.support.pod_events import events

BAD = "bad-node"
BY_HAND = "kwok.fairgate.dev/by-hand"
"""Annotation of pods for which the test acts as the kubelet."""
ROOM = {"cpu": "64", "memory": "256Gi", "pods": "110", GPU: "8"}
STARTED = "2026-01-01T00:00:00Z"
REFUSED = {
    "phase": "Failed",
    "reason": "UnexpectedAdmissionError",
    "message": "Pod was rejected: Allocate failed due to no healthy devices present",
    "startTime": STARTED,
}
TAKEN = {"phase": "Running", "startTime": STARTED}


@contextmanager
def bad_node(rig: Rig) -> Iterator[None]:
    """Add a ready node until the end of the block."""
    labels = {"kubernetes.io/hostname": BAD}
    node = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": BAD, "labels": labels}}
    rig.cluster.kubectl("apply", "-f", "-", stdin=json.dumps(node))
    try:
        offer(rig, ROOM)
        yield
    finally:
        rig.cluster.kubectl("delete", "node", BAD)


def offer(rig: Rig, room: dict[str, str]) -> None:
    ready = {"type": "Ready", "status": "True", "reason": "KubeletReady", "message": ""}
    status = {"capacity": ROOM, "allocatable": room, "conditions": [ready]}
    change = json.dumps({"status": status})
    rig.cluster.kubectl("patch", "node", BAD, "--subresource=status", "-p", change)


class Teams:
    """Three teams of one user each, with one or two pods each."""

    def __init__(self, rig: Rig) -> None:
        self.rig = rig
        self.users: dict[str, Kubectl] = {}
        for team in ("a", "b", "c"):
            rig.stage.namespace(team)
            rig.stage.tenant(team, "1", team)
            self.users[team] = rig.stage.as_user(f"user-{team}", team)

    def make(self, team: str, name: str) -> None:
        made = pod(name, GPUS_EACH)
        made["metadata"]["annotations"] = {BY_HAND: ""}
        self.users[team].run("apply", "-n", team, "-f", "-", stdin=json.dumps(made))

    def find(self, team: str, name: str) -> Object:
        there = (p for p in self.rig.pods() if p["metadata"]["namespace"] == team)
        return next(p for p in there if name_of(p) == name)

    def bound(self, team: str, name: str) -> str:
        """Wait until a pod is bound; return its node."""
        bound = lambda: bool(self.find(team, name)["spec"].get("nodeName"))  # noqa: E731
        self.rig.until(f"{team}/{name} is bound", bound)
        return str(self.find(team, name)["spec"]["nodeName"])

    def answer(self, team: str, name: str, status: Object) -> None:
        report(self.rig, [self.find(team, name)], {"status": status})


def test_f19_node_that_refuses_pods_gets_no_more_pods(rig: Rig) -> None:
    rig.start("controller")
    crowd, teams = Crowd(rig, "crowd", FITTING), Teams(rig)
    crowd.until_full()
    before = {p["metadata"]["uid"] for p in crowd.released()}
    with bad_node(rig):
        teams.make("a", "first")
        assert teams.bound("a", "first") == BAD
        teams.answer("a", "first", REFUSED)
        leader, counted = rig.leader(), 'pool="default",reason="UnexpectedAdmissionError"'

        def refusals() -> float | None:
            return leader.metric("fairgate_node_refusals_total", counted)

        rig.until("the refusal is counted", lambda: refusals() == 1)
        teams.make("a", "second")
        teams.make("b", "other")
        assert teams.bound("b", "other") == BAD  # one user alone closes no node to others
        assert gates(teams.find("a", "second"))
        teams.answer("b", "other", REFUSED)
        rig.until("the second refusal is counted", lambda: refusals() == 2)

        teams.make("c", "third")
        crowd.leave(2)  # only this free capacity is on nodes that accept pods
        for team, name in (("a", "second"), ("c", "third")):
            assert teams.bound(team, name) != BAD
        offer(rig, {**ROOM, GPU: "0"})
        offer(rig, ROOM)
        teams.make("c", "fourth")
        assert teams.bound("c", "fourth") == BAD
        teams.answer("c", "fourth", TAKEN)
        after = {p["metadata"]["uid"] for p in crowd.released()}
        assert len(before - after) == 2  # deleted by the test
        told = events(rig, "a", "first")
        assert any(reason == "NodeRefused" and BAD in text for reason, text in told)
        rig.stage.delete("c", "fourth")
