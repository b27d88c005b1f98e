"""Observe mode end to end: no pod is held or refused, and each would-be decision is reported."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from app.core.errors import ClusterError
from app.devcluster import state_dir as folders
from app.devcluster.binaries import Tools
from app.devcluster.cluster import LocalCluster
from app.devcluster.cluster_options import ClusterOptions
from app.devcluster.fairgate_install import CHART, NAMESPACE
from tests.support.chart import Chart
from tests.support.cluster_driver import GATE, Stage, gates, name_of, pod, until
from tests.support.personas import Person

POLICY = {"apiVersion": "fairgate.io/v1alpha1", "kind": "Policy", "metadata": {"name": "default"}}
TAKE_OFF = [{"op": "remove", "path": "/spec/schedulingGates"}]
DECISIONS = "fairgate_admission_requests_total"


def mode_is(stage: Stage, mode: str) -> None:
    stage.apply("default", {**POLICY, "spec": {"mode": mode}})
    wanted = ["Deny"] if mode == "Enforce" else ["Audit"]

    def applied() -> bool:
        found = stage.get("validatingadmissionpolicybindings")["items"]
        actions = {name_of(each): each["spec"]["validationActions"] for each in found}
        # The names of authors, stamps and weights are protected in every mode.
        always = ("fairgate-authors", "fairgate-templates", "fairgate-tenants")
        assert {actions.pop(name)[0] for name in always} == {"Deny"}
        return all(each == wanted for each in actions.values())

    until(f"the watchdog knows the mode {mode}", applied)


@pytest.fixture
def observing(stage: Stage) -> Iterator[Stage]:
    """Switch to Observe mode: enforcement stops, but pods already held stay held."""
    ours = stage.namespace("observed")
    stage.apply(ours, pod("before", 9))
    until("it is held", lambda: stage.held(ours) == ["before"])
    try:
        mode_is(stage, "Observe")
        yield stage
    finally:
        mode_is(stage, "Enforce")
        stage.cluster.kubectl("delete", "policy", "default")


def test_mode_observe_holds_no_pod_and_counts_would_be_decisions(observing: Stage) -> None:
    stage, ours = observing, "observed"
    counted = stage.metric("webhook", DECISIONS, 'decision="would-hold"')
    alice = stage.as_user("alice", ours)

    def applied() -> bool:  # an API server notices changed policies a moment later
        with contextlib.suppress(ClusterError):
            alice.run("apply", "-n", ours, "-f", "-", stdin=json.dumps(pod("free")))
            return True
        return False

    until("policies let it pass", applied)
    until("it runs", lambda: "free" in stage.running(ours))
    assert stage.metric("webhook", DECISIONS, 'decision="would-hold"') > counted
    until(
        "it counts as used",
        lambda: (
            next(p for p in stage.pods(ours) if p["metadata"]["name"] == "free")["metadata"]
            .get("annotations", {})
            .get("fairgate.io/release")
            == "adopted"
        ),
    )

    person = Person(stage.folder / "alice.kubeconfig")
    where = f"/api/v1/namespaces/{ours}/pods/before"
    until(
        "policies only warn",
        lambda: person.refused("PATCH", f"{where}?dryRun=All", TAKE_OFF, "json") is None,
    )


def test_pods_are_held_again_after_mode_enforce_is_set(observing: Stage) -> None:
    stage, ours = observing, "observed"
    mode_is(stage, "Enforce")

    def held_again() -> bool:
        stage.apply(ours, pod("after", 9))
        [found] = [p for p in stage.pods(ours) if p["metadata"]["name"] == "after"]
        if GATE in gates(found):
            return True
        stage.delete(ours, "after")
        return False

    until("new pods are held", held_again)


@pytest.fixture
def fresh(cluster_tools: Tools) -> Iterator[LocalCluster]:
    """A separate cluster without Fairgate."""
    cluster = LocalCluster(folders.own_folder("fresh"))
    observe = {"FAIRGATE_MODE": "Observe"}
    try:
        cluster.up(ClusterOptions(nodes=1, gpus=1, fairgate=False, environment=observe))
        yield cluster
    finally:
        cluster.down()


def test_new_installation_refuses_no_pod_before_it_can_enforce(
    fresh: LocalCluster, cluster_tools: Tools, tmp_path: Path
) -> None:
    """First with an image that cannot start and mode Enforce, then in mode Observe.

    The objects installed by helm have no images, so processes beside the cluster replace the
    Deployments.
    """
    helm, stage = Chart(cluster_tools, tmp_path), Stage(fresh, folder=tmp_path)
    here = ("--namespace", NAMESPACE, "--kubeconfig", str(fresh.kubeconfig))
    installed = helm.run(
        *("install", "fairgate", str(CHART), "--create-namespace", *here),
        *("--set", "mode=Enforce", "--set", "image.repository=none"),
        *("--set", "redis.url=redis://none:6379/0"),
    )
    assert installed.returncode == 0, installed.stderr
    blocked = stage.namespace("no-image")
    stage.apply(blocked, pod("gpu"), pod("agent", 0, hostNetwork=True))
    assert stage.held(blocked) == []
    stage.delete(blocked, "gpu", "agent")
    removed = helm.run("uninstall", "fairgate", "--wait", *here)
    assert removed.returncode == 0, removed.stderr

    for role in ("webhook", "controller"):
        fresh.start_fairgate(role, wait=False)
    until("the policies warn", lambda: warns(stage))
    ours = stage.namespace("looked-at")
    stage.apply(ours, *(pod(f"gpu-{number}") for number in range(3)))
    assert stage.held(ours) == []
    until("one runs, on the one device", lambda: len(stage.running(ours)) == 1)
    assert stage.metric("webhook", DECISIONS, 'decision="would-hold"') >= 3

    stage.cluster.kubectl(
        *("patch", "configmap", "fairgate-enforcement", "-n", NAMESPACE),
        *("--type=merge", "-p", '{"data": {"mode": "Enforce"}}'),
    )
    until("the policies deny", lambda: denies(stage))
    stage.apply(ours, pod("late"))
    assert stage.held(ours) == ["late"]


def actions(stage: Stage) -> list[str]:
    """Return the actions of the policy for new pods, empty if it does not exist."""
    found = stage.get("validatingadmissionpolicybindings")["items"]
    bound = {name_of(each): each["spec"]["validationActions"] for each in found}
    return list(bound.get("fairgate-create", []))


def warns(stage: Stage) -> bool:
    return actions(stage) == ["Audit"]


def denies(stage: Stage) -> bool:
    return actions(stage) == ["Deny"]
