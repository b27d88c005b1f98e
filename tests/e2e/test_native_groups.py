"""The pod groups of Kubernetes, on an API server that offers them."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest

from app.core.errors import ClusterError
from app.devcluster import state_dir as folders
from app.devcluster.binaries import Tools
from app.devcluster.cluster import LocalCluster
from app.devcluster.cluster_options import ClusterOptions
from tests.support.cluster_driver import Object, Stage, pod, until
from tests.support.gang_kinds import together, told


@pytest.fixture(scope="module")
def alpha(cluster_tools: Tools) -> Iterator[LocalCluster]:
    """A cluster with pod groups enabled. Fairgate's API role is not needed and not started."""
    if cluster_tools.kubernetes.pod_groups is None:
        pytest.skip(f"Kubernetes {cluster_tools.kubernetes.minor} has no PodGroups")
    cluster = LocalCluster(folders.own_folder("native"))
    try:
        cluster.up(ClusterOptions(nodes=2, fairgate=False, pod_groups=True))
        for role in ("webhook", "controller"):
            cluster.start_fairgate(role)
        yield cluster
    finally:
        cluster.down()


@pytest.fixture
def stage(alpha: LocalCluster, tmp_path: Path) -> Iterator[Stage]:
    stage = Stage(alpha, folder=tmp_path)
    # A pod that was created before the first leader gets no event about its wait.
    until("it leads", lambda: stage.metric("controller", "fairgate_leader") == 1)
    try:
        yield stage
    finally:
        stage.clear()


@pytest.fixture
def group(cluster_tools: Tools) -> Callable[..., Object]:
    """Return a function that makes a PodGroup of the cluster's API version."""
    return partial(pod_group, cluster_tools.kubernetes.pod_groups)


def pod_group(api_version: str, name: str, **scheduling: Object) -> Object:
    return {
        "apiVersion": api_version,
        "kind": "PodGroup",
        "metadata": {"name": name},
        "spec": {"schedulingPolicy": scheduling},
    }


def of(name: str, group_name: str) -> Object:
    return pod(name, 4, schedulingGroup={"podGroupName": group_name})


def test_a_native_pod_group_is_a_gang_once_it_is_there(
    stage: Stage, group: Callable[..., Object]
) -> None:
    ours = stage.namespace("native")
    stage.apply(ours, of("n-0", "g"), of("n-1", "g"), pod("ordinary"))
    until("the pod beside it runs", lambda: stage.running(ours) == ["ordinary"])
    lacking = "no PodGroup (scheduling.k8s.io) g states its size"
    until("it is said what is missing", lambda: lacking in told(stage, ours, "Held"))
    stage.delete(ours, "ordinary")
    stage.apply(ours, group("g", gang={"minCount": 3}))
    stage.apply(ours, of("n-2", "g"))
    together(stage, ours, 3)


def test_the_pods_of_a_native_group_without_a_gang_go_each_alone(
    stage: Stage, group: Callable[..., Object]
) -> None:
    ours = stage.namespace("basic")
    stage.apply(ours, group("b", basic={}))
    stage.apply(ours, of("b-0", "b"))
    until("it runs", lambda: stage.running(ours) == ["b-0"])


def test_further_pods_of_a_native_gang_join_and_a_raised_minimum_lets_new_pods_wait(
    stage: Stage, group: Callable[..., Object], cluster_tools: Tools
) -> None:
    ours = stage.namespace("live")
    stage.apply(ours, group("l", gang={"minCount": 2}), of("l-0", "l"), of("l-1", "l"))
    together(stage, ours, 2)
    stage.apply(ours, of("l-2", "l"))
    until("the third joins", lambda: len(stage.running(ours)) == 3)
    raised = json.dumps({"spec": {"schedulingPolicy": {"gang": {"minCount": 5}}}})
    patch = ("patch", "podgroup", "l", "-n", ours, "--type=merge", "-p", raised)
    if cluster_tools.kubernetes.minor == "1.36":
        with pytest.raises(ClusterError, match="field is immutable"):
            stage.cluster.kubectl(*patch)
        return
    stage.cluster.kubectl(*patch)
    stage.apply(ours, of("l-3", "l"))
    waits = "gang podgroup/l is not complete, 4 of 5 pods are there"
    until("the next one waits", lambda: waits in told(stage, ours, "Held"))
    assert len(stage.running(ours)) == 3
