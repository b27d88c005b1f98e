"""Kubernetes' own pod groups, on an API server that offers them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from app.dev import folder as folders
from app.dev.cluster import Cluster
from app.dev.options import Options
from app.dev.tools import Tools
from tests.e2e.stage import Object, Stage, pod, until
from tests.e2e.test_gang_kinds import together, told


@pytest.fixture(scope="module")
def alpha(cluster_tools: Tools) -> Iterator[Cluster]:
    """A cluster whose API server offers them; without Fairgate's API, which adds nothing here."""
    cluster = Cluster(folders.own_folder("native"))
    try:
        cluster.up(Options(nodes=2, fairgate=False, pod_groups=True))
        for role in ("webhook", "controller"):
            cluster.start_fairgate(role)
        yield cluster
    finally:
        cluster.down()


@pytest.fixture
def stage(alpha: Cluster, tmp_path: Path) -> Iterator[Stage]:
    stage = Stage(alpha, folder=tmp_path)
    # Who came before anybody led is not told that it waits.
    until("it leads", lambda: stage.metric("controller", "fairgate_leader") == 1)
    try:
        yield stage
    finally:
        stage.clear()


def group(name: str, **scheduling: Object) -> Object:
    return {
        "apiVersion": "scheduling.k8s.io/v1alpha2",
        "kind": "PodGroup",
        "metadata": {"name": name},
        "spec": {"schedulingPolicy": scheduling},
    }


def of(name: str, group_name: str) -> Object:
    return pod(name, 4, schedulingGroup={"podGroupName": group_name})


def test_a_native_pod_group_is_a_gang_once_it_is_there(stage: Stage) -> None:
    ours = stage.namespace("native")
    stage.apply(ours, of("n-0", "g"), of("n-1", "g"), pod("ordinary"))
    until("the pod beside it runs", lambda: stage.running(ours) == ["ordinary"])
    lacking = "no PodGroup (scheduling.k8s.io) g is known"
    until("it is said what is missing", lambda: lacking in told(stage, ours, "Held"))
    stage.delete(ours, "ordinary")
    stage.apply(ours, group("g", gang={"minCount": 3}))
    stage.apply(ours, of("n-2", "g"))
    together(stage, ours, 3)


def test_the_pods_of_a_native_group_without_a_gang_go_each_alone(stage: Stage) -> None:
    ours = stage.namespace("basic")
    stage.apply(ours, group("b", basic={}))
    stage.apply(ours, of("b-0", "b"))
    until("it runs", lambda: stage.running(ours) == ["b-0"])
