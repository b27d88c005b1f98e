"""Mode Observe, end to end: nothing is held or refused, and all of it is told."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from app.core.errors import ClusterError
from app.dev import folder as folders
from app.dev.cluster import Cluster
from app.dev.fairgate import CHART, NAMESPACE
from app.dev.options import Options
from app.dev.tools import Tools
from tests.chart import ROLES, Chart
from tests.e2e.stage import GATE, Stage, gates, name_of, pod, until
from tests.people import Person

POLICY = {"apiVersion": "fairgate.io/v1alpha1", "kind": "Policy", "metadata": {"name": "default"}}
TAKE_OFF = [{"op": "remove", "path": "/spec/schedulingGates"}]
OBSERVE = CHART.parents[1] / "docs" / "examples" / "observe.yaml"
DECISIONS = "fairgate_admission_requests_total"


def mode_is(stage: Stage, mode: str) -> None:
    stage.apply("default", {**POLICY, "spec": {"mode": mode}})
    wanted = ["Deny"] if mode == "Enforce" else ["Warn", "Audit"]

    def applied() -> bool:
        found = stage.get("validatingadmissionpolicybindings")["items"]
        actions = {name_of(each): each["spec"]["validationActions"] for each in found}
        # Names and weights are guarded whatever the mode.
        assert {actions.pop(name)[0] for name in ("fairgate-templates", "fairgate-tenants")} == {
            "Deny"
        }
        return all(each == wanted for each in actions.values())

    until(f"the watchdog knows the mode {mode}", applied)


@pytest.fixture
def observing(stage: Stage) -> Iterator[Stage]:
    """Nothing is enforced, but what was held before stays held."""
    ours = stage.namespace("observed")
    stage.apply(ours, pod("before", 9))
    until("it is held", lambda: stage.held(ours) == ["before"])
    try:
        mode_is(stage, "Observe")
        yield stage
    finally:
        mode_is(stage, "Enforce")
        stage.cluster.kubectl("delete", "policy", "default")


def test_who_only_observes_holds_nothing_and_says_what_would_be(observing: Stage) -> None:
    stage, ours = observing, "observed"
    counted = stage.metric("webhook", DECISIONS, 'decision="would-hold"')
    alice = stage.as_user("alice", ours)

    def applied() -> bool:  # an API server learns of a change of policies a moment later
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


def test_who_enforces_again_holds_again(observing: Stage) -> None:
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
def fresh(cluster_tools: Tools) -> Iterator[Cluster]:
    """A cluster of its own, in which Fairgate never was."""
    cluster = Cluster(folders.own_folder("fresh"))
    try:
        cluster.up(Options(nodes=1, gpus=1, fairgate=False))
        yield cluster
    finally:
        cluster.down()


def test_who_installs_to_look_only_holds_no_pod(
    fresh: Cluster, cluster_tools: Tools, tmp_path: Path
) -> None:
    """As docs/operations.md says. What helm installed has no images, so it makes way for programs
    that run beside the cluster; definitions and Policy stay."""
    helm = Chart(cluster_tools, tmp_path)
    definition = helm.template("--show-only=templates/crd-policy.yaml")
    assert definition.returncode == 0, definition.stderr
    fresh.kubectl("apply", "-f", "-", stdin=definition.stdout)
    fresh.kubectl("wait", "--for=condition=Established", "crd/policies.fairgate.io")
    fresh.kubectl("apply", "-f", str(OBSERVE))
    here = ("--namespace", NAMESPACE, "--kubeconfig", str(fresh.kubeconfig))
    installed = helm.run(
        *("install", "fairgate", str(CHART), "--create-namespace", *here),
        *("--take-ownership", "--set", "image.repository=none"),
        *("--set", "redis.url=redis://none:6379/0"),
    )
    assert installed.returncode == 0, installed.stderr
    removed = helm.run("uninstall", "fairgate", "--wait", *here)
    assert removed.returncode == 0, removed.stderr
    for role in ROLES:
        fresh.start_fairgate(role, wait=False)
    stage = Stage(fresh, folder=tmp_path)
    ours = stage.namespace("looked-at")

    def passed() -> bool:  # until the webhook has started, policies refuse
        with contextlib.suppress(ClusterError):
            stage.apply(ours, *(pod(f"gpu-{number}") for number in range(3)))
            return True
        return False

    until("device pods pass", passed)
    assert stage.held(ours) == []
    until("one runs, on the one device", lambda: len(stage.running(ours)) == 1)
    assert stage.metric("webhook", DECISIONS, 'decision="would-hold"') >= 3
