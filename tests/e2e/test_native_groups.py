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
from app.devcluster.processes import Program
from tests.support.cluster_driver import Object, Stage, name_of, pod, until
from tests.support.gang_kinds import together, told

REFERENCE = {"workloadName": "w", "templateName": "t"}


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


def in_tree(name: str, parent: str, least: int) -> Object:
    """Return a PodGroup below a CompositePodGroup. kube-apiserver requires the reference."""
    item = pod_group("scheduling.k8s.io/v1alpha3", name, gang={"minCount": least})
    item["spec"] |= {"parentCompositePodGroupName": parent, "workloadRef": REFERENCE}
    return item


def of(name: str, group_name: str) -> Object:
    return pod(name, 4, schedulingGroup={"podGroupName": group_name})


def test_native_gang_waits_until_its_pod_group_exists(
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


def test_pods_of_a_native_group_without_a_gang_are_released_alone(
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


def test_groups_of_a_composite_group_start_together(stage: Stage, cluster_tools: Tools) -> None:
    """The scheduler counts the driver, which has no GPU, as well.

    All pods of a tree need one preemption policy, so the driver names the class of the other pods.
    """
    api_version = cluster_tools.kubernetes.composite_groups
    if api_version is None:
        pytest.skip(f"Kubernetes {cluster_tools.kubernetes.minor} has no CompositePodGroups")
    ours = stage.namespace("tree")
    policy = {"gang": {"minGroupCount": 3}}
    root = {"apiVersion": api_version, "kind": "CompositePodGroup", "metadata": {"name": "t"}}
    stage.apply(ours, {**root, "spec": {"schedulingPolicy": policy, "workloadRef": REFERENCE}})
    stage.apply(ours, *(in_tree(name, "t", 1) for name in ("d", "e", "f")))
    stage.apply(ours, of("e-0", "e"), of("e-1", "e"), pod("ordinary"))
    until("the pod beside it runs", lambda: stage.running(ours) == ["ordinary"])
    stage.delete(ours, "ordinary")
    driver = pod("d-0", 0, priority="fairgate.none", schedulingGroup={"podGroupName": "d"})
    stage.apply(ours, driver)
    until("the driver waits", lambda: "schedulingGates" not in spec_of(stage, ours, "d-0"))
    assert stage.held(ours) == ["e-0", "e-1"]
    stage.apply(ours, of("f-0", "f"))
    until("all run", lambda: stage.running(ours) == ["d-0", "e-0", "e-1", "f-0"])


def test_groups_are_followed_to_another_api_version(stage: Stage, cluster_tools: Tools) -> None:
    """The API server is started again without the version that was read until then."""
    other = cluster_tools.kubernetes.composite_groups
    if other is None:
        pytest.skip(f"Kubernetes {cluster_tools.kubernetes.minor} has one version of PodGroups")
    ours, version = stage.namespace("moved"), cluster_tools.kubernetes.pod_groups
    stage.apply(ours, pod_group(version, "m", gang={"minCount": 2}), of("m-0", "m"))
    until("the first waits", lambda: "1 of 2 pods are there" in told(stage, ours, "Held"))
    restart(stage.cluster, "kube-apiserver", f"{version}=true", f"{version}=false")
    until("the API server is back", lambda: is_ready(stage.cluster))
    stage.apply(ours, pod_group(other, "new", gang={"minCount": 1}), of("new-0", "new"))
    # kube-scheduler of this version needs v1beta1, so the pods are released but not bound.
    until("a new group is read", lambda: stage.held(ours) == ["m-0"])
    raised = json.dumps({"spec": {"schedulingPolicy": {"gang": {"minCount": 3}}}})
    resource = "podgroups.v1alpha3.scheduling.k8s.io/m"
    stage.cluster.kubectl("patch", resource, "-n", ours, "--type=merge", "-p", raised)
    stage.apply(ours, of("m-1", "m"))
    until("the new number is read", lambda: "2 of 3 pods are there" in told(stage, ours, "Held"))
    stage.apply(ours, of("m-2", "m"))
    until("all are released", lambda: stage.held(ours) == [])
    restart(stage.cluster, "kube-apiserver", f"{version}=false", f"{version}=true")
    until("the API server is back", lambda: is_ready(stage.cluster))


def test_pod_group_with_a_preempting_class_does_not_preempt(
    stage: Stage, cluster_tools: Tools
) -> None:
    """The feature gate makes kube-scheduler read the preemption policy of the group.

    A group with the twin class runs. A cluster administrator then removes the gate of the pod of
    the other group, because Fairgate does not release it.
    """
    other = cluster_tools.kubernetes.composite_groups
    if other is None:
        pytest.skip(f"Kubernetes {cluster_tools.kubernetes.minor} has no such feature gate")
    for name in ("kube-apiserver", "kube-scheduler"):
        more = "GenericWorkload=true,PodGroupPreemptionPolicy=true"
        restart(stage.cluster, name, "GenericWorkload=true", more)
        until("the API server is back", lambda: is_ready(stage.cluster))
    low, high = stage.priority_class("e2e-low", 10), stage.priority_class("e2e-high", 1000)
    until("their twins exist", lambda: {f"fairgate-{low}", f"fairgate-{high}"} <= classes(stage))
    crowd, ours = stage.namespace("crowd"), stage.namespace("attack")
    polite = pod_group(other, "polite", gang={"minCount": 2})
    polite["spec"] |= {"priorityClassName": f"fairgate-{low}", "preemptionPolicy": "Never"}
    group = {"podGroupName": "polite"}
    pods = [pod(f"crowd-{n}", 8, priority=low, schedulingGroup=group) for n in range(2)]
    stage.apply(crowd, polite, *pods)
    until("a group with the twin runs", lambda: len(stage.running(crowd)) == 2)
    before = {p["metadata"]["uid"] for p in stage.pods(crowd)}

    urgent = pod_group(other, "u", gang={"minCount": 1})
    urgent["spec"]["priorityClassName"] = high
    stage.apply(ours, urgent, pod("u-0", 8, priority=high, schedulingGroup={"podGroupName": "u"}))
    held = "has the preemption policy PreemptLowerPriority and its pods have Never"
    until("Fairgate says why it waits", lambda: held in told(stage, ours, "Held"))
    remove = '[{"op": "remove", "path": "/spec/schedulingGates"}]'
    stage.cluster.kubectl("patch", "pod", "u-0", "-n", ours, "--type=json", "-p", remove)

    refused = "should have the same preemption policy as the pod group"
    until("the scheduler refuses it", lambda: refused in str(stage.pods(ours)[0]["status"]))
    living = [p for p in stage.pods(crowd) if "deletionTimestamp" not in p["metadata"]]
    assert {p["metadata"]["uid"] for p in living} == before


def spec_of(stage: Stage, namespace: str, name: str) -> Object:
    [item] = [each for each in stage.pods(namespace) if name_of(each) == name]
    spec: Object = item["spec"]
    return spec


def classes(stage: Stage) -> set[str]:
    return {name_of(each) for each in stage.get("priorityclass")["items"]}


def restart(cluster: LocalCluster, name: str, before: str, after: str) -> None:
    """Start a program of the control plane again with a part of its arguments replaced."""
    [child] = cluster.processes.alive(name)
    arguments = tuple(each.replace(before, after) for each in child.argv)
    assert arguments != child.argv
    cluster.processes.stop([child])
    cluster.processes.start(Program(child.name, arguments, child.environment))


def is_ready(cluster: LocalCluster) -> bool:
    try:
        return cluster.kubectl("get", "--raw", "/readyz") == "ok"
    except ClusterError:
        return False
