"""Pods older than the installation, pods that bypass the gate, and pods that find no node."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from app.devcluster import state_dir as folders
from app.devcluster.binaries import Tools
from app.devcluster.cluster import LocalCluster
from app.devcluster.cluster_options import ClusterOptions
from tests.support.cluster_driver import (
    Object,
    Stage,
    gates,
    name_of,
    next_second,
    pod,
    stamp,
    until,
)
from tests.support.shares import policy
from tests.support.unschedulable import NOWHERE
from tests.support.workloads import deployment

UNGATE = '[{"op": "remove", "path": "/spec/schedulingGates"}]'


@dataclass(frozen=True)
class Grown:
    """A cluster, and the uids of its pods from before the installation."""

    cluster: LocalCluster
    uids: list[str]


@pytest.fixture(scope="module")
def grown(cluster_tools: Tools) -> Iterator[Grown]:
    """A cluster with two pods older than Fairgate, which is set to evict bypass pods."""
    cluster = LocalCluster(folders.own_folder("life"))
    try:
        evict = {"FAIRGATE_EVICT_BYPASSED": "true"}
        cluster.up(ClusterOptions(nodes=2, fairgate=False, environment=evict))
        stage = Stage(cluster)
        old = stage.namespace("old")
        stage.apply(old, pod("old-0"), pod("old-1", 2))
        until("they run", lambda: len(stage.running(old)) == 2)
        uids = [uid_of(item) for item in stage.pods(old)]
        for role in ("webhook", "controller"):
            cluster.start_fairgate(role)
        until("they are adopted", lambda: all(map(stamp, stage.pods(old))))
        next_second()
        yield Grown(cluster, uids)
    finally:
        cluster.down()


@pytest.fixture
def stage(grown: Grown, tmp_path: Path) -> Iterator[Stage]:
    stage = Stage(grown.cluster, folder=tmp_path)
    try:
        yield stage
    finally:
        stage.clear()


def told(stage: Stage, namespace: str, reason: str) -> list[str]:
    """Return the events of a reason, each with the name of its pod."""
    found = stage.get("events", "-n", namespace, f"--field-selector=reason={reason}")["items"]
    return [f"{event['involvedObject']['name']}: {event['message']}" for event in found]


def held_in(stage: Stage, name: str) -> str:
    """Create a namespace with a paused tenant, and a held pod in it."""
    ours = stage.namespace(name)
    stage.tenant(name, "1", ours, paused=True)
    until("the leader knows the tenant", lambda: "status" in stage.get("tenant", name))
    stage.apply(ours, pod("p"))
    until("it is held", lambda: bool(told(stage, ours, "Held")))
    assert stage.held(ours) == ["p"]
    return ours


def take_the_gate_off(stage: Stage, namespace: str) -> None:
    """Remove the gate with the rights of a cluster administrator."""
    stage.cluster.kubectl("patch", "pod", "p", "-n", namespace, "--type=json", "-p", UNGATE)


def strays(stage: Stage) -> float:
    return stage.metric("controller", "fairgate_bypassed_pods_total")


def used(stage: Stage, tenant: str) -> float:
    return stage.metric("controller", "fairgate_used_resources", f'tenant="{tenant}"')


def uid_of(item: Object) -> str:
    return str(item["metadata"]["uid"])


def test_pods_that_ran_before_are_adopted_counted_and_left_running(
    stage: Stage, grown: Grown
) -> None:
    ours = stage.namespace("new")
    stage.apply(ours, *(pod(f"new-{number}") for number in range(15)))
    until("what fits besides them runs", lambda: len(stage.running(ours)) == 13)
    assert len(stage.held(ours)) == 2
    until("both are adopted", lambda: [stamp(p) for p in stage.pods("old")] == ["adopted"] * 2)
    assert [uid_of(item) for item in stage.pods("old")] == grown.uids
    for item in stage.pods("old"):
        labels = item["metadata"]["labels"]
        assert labels["fairgate.io/tenant"] == "ns.old"
        assert labels["fairgate.io/pool"] == "default"
        assert labels["fairgate.io/user"] == "unknown"
        assert item["status"]["phase"] == "Running"
    until("they are counted", lambda: used(stage, "ns.old") == 3)
    assert strays(stage) == 0
    since = stage.get("configmap", "fairgate-installation", "-n", "fairgate-system")["data"]
    assert since["since"].endswith("Z")


def test_new_leader_does_not_adopt_or_report_pods_again(stage: Stage) -> None:
    until("both are adopted", lambda: [stamp(p) for p in stage.pods("old")] == ["adopted"] * 2)
    before = {name_of(p): p["metadata"]["resourceVersion"] for p in stage.pods("old")}
    ours = stage.namespace("between")
    stage.apply(ours, pod("released"))
    until("it runs", lambda: stage.running(ours) == ["released"])
    stage.cluster.stop_fairgate("controller")
    stage.cluster.start_fairgate("controller")
    stage.apply(ours, pod("another"))
    until("the new leader releases", lambda: len(stage.running(ours)) == 2)
    assert {name_of(p): p["metadata"]["resourceVersion"] for p in stage.pods("old")} == before
    assert strays(stage) == 0


def test_bypassing_pod_is_reported_once_and_evicted(stage: Stage) -> None:
    ours = held_in(stage, "round")
    before = strays(stage)
    take_the_gate_off(stage, ours)
    until("it is evicted", lambda: not stage.pods(ours))
    assert strays(stage) == before + 1
    until("its owner is told", lambda: bool(told(stage, ours, "Reclaimed")))
    until("and what it did", lambda: bool(told(stage, ours, "Refused")))
    [message] = told(stage, ours, "Refused")
    assert message.startswith("p: it was never released by Fairgate")


def test_bypassing_pod_is_adopted_in_mode_observe(stage: Stage) -> None:
    ours = held_in(stage, "observed")
    before = strays(stage)
    policy(stage, mode="Observe")
    take_the_gate_off(stage, ours)
    until("it is adopted", lambda: stamp(stage.pods(ours)[0]) == "adopted")
    until("it runs", lambda: stage.running(ours) == ["p"])
    assert strays(stage) == before


def lost() -> Object:
    """Return a Deployment with a pod that fits no node; only kube-scheduler detects that."""
    manifest = deployment("lost", 1)
    manifest["spec"]["template"]["spec"]["volumes"] = NOWHERE
    return manifest


def test_unbound_pod_is_evicted_and_its_replacement_waits(stage: Stage) -> None:
    ours = stage.namespace("lost")
    policy(stage, schedulingTimeout="3s")
    stage.apply(ours, lost())
    until("one is evicted", lambda: bool(told(stage, ours, "Reclaimed")))
    [message] = told(stage, ours, "Reclaimed")[:1]
    assert "it was not bound within 3 s" in message
    waiting = lambda: [m for m in told(stage, ours, "Held") if "no node took it" in m]  # noqa: E731
    until("another is kept waiting", lambda: bool(waiting()))
    stage.apply(ours, pod("other", 4))
    until("what is not like it runs", lambda: stage.running(ours) == ["other"])
    until("it is tried again, and fails", lambda: len(told(stage, ours, "Reclaimed")) > 1)
    policy(stage, schedulingTimeout="0s")
    until("it is left alone", lambda: any(not gates(p) for p in stage.pods(ours)))
    until("no node takes it", lambda: "Unschedulable" in json.dumps(stage.pods(ours)))
