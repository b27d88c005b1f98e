"""A released pod never preempts: kube-scheduler sees twin PriorityClasses that do not preempt."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from app.core.errors import ClusterError
from app.devcluster.binaries import Tools
from app.devcluster.fairgate_install import UNFAIR
from app.devcluster.go_build import SOURCE
from tests.support.cluster_driver import GPU, Object, Stage, name_of, pod, template, until
from tests.support.schedulers import second_scheduler

SCHEDULER = SOURCE / "docs" / "examples" / "scheduler-without-preemption.yaml"
POLITE = "polite-scheduler"
HIGHEST = 1_000_000_000
"""The highest value that a user's PriorityClass may have."""

NODES = 8


def urgent(gpus: int, apart: bool) -> Object:
    """Return a pod of the highest class. `apart` excludes nodes that run a pod of the crowd."""
    item = pod("urgent", gpus, priority="e2e-urgent")
    if apart:
        term = {
            "labelSelector": {"matchLabels": {"crowd": "yes"}},
            "namespaceSelector": {},
            "topologyKey": "kubernetes.io/hostname",
        }
        required = {"requiredDuringSchedulingIgnoredDuringExecution": [term]}
        item["spec"]["affinity"] = {"podAntiAffinity": required}
    return item


def crowd(stage: Stage, gpus: int) -> str:
    """Create a released pod of low priority on every node; return their namespace."""
    where = stage.namespace("crowd")
    for name, value in (("e2e-low", 10), ("e2e-urgent", HIGHEST)):
        stage.priority_class(name, value)
    pods = [pod(f"crowd-{number}", gpus, priority="e2e-low") for number in range(NODES)]
    for item in pods:
        item["metadata"]["labels"] = {"crowd": "yes"}
    stage.apply(where, *pods)
    until("a crowd on every node", lambda: len(stage.running(where)) == NODES)
    return where


def uids(stage: Stage, namespace: str) -> set[str]:
    """Return the uids of the pods that are not terminating."""
    living = [p for p in stage.pods(namespace) if "deletionTimestamp" not in p["metadata"]]
    return {str(p["metadata"]["uid"]) for p in living}


def found(stage: Stage, namespace: str) -> str:
    """Return the scheduler's message that no node fits the urgent pod, "" if absent."""
    (item,) = stage.pods(namespace)
    for condition in item["status"].get("conditions", ()):
        if condition["type"] == "PodScheduled" and condition["reason"] == "Unschedulable":
            return str(condition["message"])
    return ""


def classes(stage: Stage, namespace: str) -> dict[str, tuple[str, int, str]]:
    return {
        name_of(p): (
            p["spec"].get("priorityClassName", ""),
            p["spec"]["priority"],
            p["spec"]["preemptionPolicy"],
        )
        for p in stage.pods(namespace)
    }


def test_released_pod_of_the_highest_class_does_not_preempt(stage: Stage) -> None:
    others = crowd(stage, 8)
    before = uids(stage, others)
    ours = stage.namespace("hurry")
    stage.apply(ours, urgent(8, apart=False))
    # Fairgate itself would never release it into a full cluster.
    remove = '[{"op": "remove", "path": "/spec/schedulingGates"}]'
    stage.cluster.kubectl("patch", "pod", "urgent", "-n", ours, "--type=json", "-p", remove)
    until("it is released and finds no node", lambda: found(stage, ours) != "")
    assert classes(stage, ours) == {"urgent": ("fairgate-e2e-urgent", HIGHEST, "Never")}
    assert "not eligible due to preemptionPolicy=Never" in found(stage, ours)
    assert len(before) == NODES
    assert uids(stage, others) == before
    assert len(stage.running(others)) == NODES
    assert stage.running(ours) == []


@pytest.mark.parametrize(
    ("each", "wanted", "apart"), [(8, 8, False), (5, 1, True)], ids=["full", "apart"]
)
def test_the_same_pod_without_a_twin_does_evict(
    stage: Stage, each: int, wanted: int, apart: bool
) -> None:
    others = crowd(stage, each)
    before = uids(stage, others)
    exempt = stage.namespace(UNFAIR[0])
    stage.apply(exempt, urgent(wanted, apart))
    until("somebody of the crowd is evicted", lambda: len(uids(stage, others) & before) < NODES)
    assert classes(stage, exempt)["urgent"][0] == "e2e-urgent"
    until("the urgent pod has that place", lambda: stage.running(exempt) == ["urgent"])


@pytest.fixture
def polite_scheduler(stage: Stage, cluster_tools: Tools) -> Iterator[str]:
    with second_scheduler(stage, cluster_tools, SCHEDULER, POLITE) as name:
        yield name


@pytest.mark.parametrize(
    ("each", "wanted", "apart"), [(8, 8, False), (5, 1, True)], ids=["full", "apart"]
)
def test_scheduler_without_preemption_does_not_preempt_without_a_twin(
    stage: Stage, polite_scheduler: str, each: int, wanted: int, apart: bool
) -> None:
    others = crowd(stage, each)
    before = uids(stage, others)
    exempt = stage.namespace(UNFAIR[0])
    item = urgent(wanted, apart)
    item["spec"]["schedulerName"] = polite_scheduler
    stage.apply(exempt, item)
    until("it finds no node", lambda: found(stage, exempt) != "")
    assert classes(stage, exempt) == {"urgent": ("e2e-urgent", HIGHEST, "PreemptLowerPriority")}
    assert "preemption" not in found(stage, exempt)
    assert uids(stage, others) == before
    assert stage.running(exempt) == []


@pytest.mark.parametrize("way", ["false", "true"], ids=["client-side", "server-side"])
def test_reapplied_pod_with_a_priority_class_is_unchanged(stage: Stage, way: str) -> None:
    ours = stage.namespace(f"again-{way}")
    high = stage.priority_class("e2e-again", 1_000)
    alice = stage.as_user("alice", ours)
    manifest = json.dumps(pod("same", priority=high))
    apply = ("apply", f"--server-side={way}", "-n", ours, "-f", "-")
    alice.run(*apply, stdin=manifest)
    until("it runs", lambda: stage.running(ours) == ["same"])

    (before,) = stage.pods(ours)
    alice.run(*apply, stdin=manifest)
    alice.run(*apply, stdin=manifest)
    (after,) = stage.pods(ours)
    assert after["spec"] == before["spec"]
    assert after["metadata"]["generation"] == before["metadata"]["generation"]
    assert classes(stage, ours) == {"same": ("fairgate-e2e-again", 1_000, "Never")}


def test_a_change_to_another_class_is_refused_as_ever(stage: Stage) -> None:
    ours = stage.namespace("switch")
    first, second = stage.priority_class("e2e-first", 1), stage.priority_class("e2e-second", 2)
    stage.apply(ours, pod("same", priority=first))
    until("it runs", lambda: stage.running(ours) == ["same"])
    with pytest.raises(ClusterError, match="pod updates may not change fields"):
        stage.apply(ours, pod("same", priority=second))
    assert classes(stage, ours)["same"][0] == "fairgate-e2e-first"


def test_each_pod_gets_the_twin_of_its_class_whatever_creates_it(stage: Stage) -> None:
    ours = stage.namespace("makers")
    high = stage.priority_class("e2e-made", 1_000)
    own = {"preemptionPolicy": "Never", "value": 7, "metadata": {"name": "e2e-polite"}}
    stage.apply("default", {"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", **own})
    stage.objects.append(("priorityclass", "e2e-polite"))
    job: Object = {"parallelism": 1, "template": template(1, priority=high)}
    kind = {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "job"}}
    stage.apply(ours, {**kind, "spec": job}, pod("bare"), pod("polite", priority="e2e-polite"))
    until("all run", lambda: len(stage.running(ours)) == 3)
    assert sorted(classes(stage, ours).values()) == [
        ("e2e-polite", 7, "Never"),
        ("fairgate-e2e-made", 1_000, "Never"),
        ("fairgate.none", 0, "Never"),
    ]


def test_a_pod_without_a_class_gets_the_twin_of_the_clusters_default(stage: Stage) -> None:
    ours = stage.namespace("defaulted")
    own = {"globalDefault": True, "value": 5, "metadata": {"name": "e2e-default"}}
    stage.objects.append(("priorityclass", "e2e-default"))
    stage.apply("default", {"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", **own})
    until("the API server knows the default", lambda: tried(stage, ours) == "fairgate-e2e-default")
    stage.apply(ours, pod("bare"))
    assert classes(stage, ours) == {"bare": ("fairgate-e2e-default", 5, "Never")}


def tried(stage: Stage, namespace: str) -> str:
    """Return the class that a dry run assigns to a pod without one."""
    args = ("create", "--dry-run=server", "-n", namespace, "-o", "json", "-f", "-")
    said = stage.cluster.kubectl(*args, stdin=json.dumps(pod("tried")))
    return str(json.loads(said)["spec"].get("priorityClassName", ""))


def test_a_pod_may_not_take_a_class_of_the_system(stage: Stage) -> None:
    ours = stage.namespace("pretender")
    with pytest.raises(ClusterError, match="system-node-critical is reserved for system pods"):
        stage.apply(ours, pod("important", priority="system-node-critical"))
    assert stage.pods(ours) == []


def test_twins_follow_their_classes(stage: Stage) -> None:
    twin = "fairgate-e2e-followed"

    def kept() -> list[tuple[int, str]]:
        items = stage.get("priorityclass")["items"]
        return [(p["value"], p["preemptionPolicy"]) for p in items if name_of(p) == twin]

    name = stage.priority_class("e2e-followed", 3)
    until("the twin is made", lambda: kept() == [(3, "Never")])
    stage.cluster.kubectl("delete", "priorityclass", twin)
    until("it is made again", lambda: kept() == [(3, "Never")])
    stage.cluster.kubectl("delete", "priorityclass", name)
    until("it goes with its class", lambda: kept() == [])
    stage.priority_class(name, 4)
    until("its value is the new one", lambda: kept() == [(4, "Never")])


def test_a_quota_by_priority_class_counts_twins_if_it_names_them(stage: Stage) -> None:
    ours = stage.namespace("rationed")
    high = stage.priority_class("e2e-rationed", 1_000)
    stage.apply(ours, quota("original", high), quota("both", high, f"fairgate-{high}"))
    ready = lambda: len(used(stage, ours)) == 2  # noqa: E731
    until("the quotas are counted", ready)
    stage.apply(ours, pod("one", priority=high))
    until("one pod is counted", lambda: used(stage, ours) == {"original": "0", "both": "1"})
    with pytest.raises(ClusterError, match="exceeded quota: both"):
        stage.apply(ours, pod("two", priority=high))
    assert [name_of(p) for p in stage.pods(ours)] == ["one"]


def quota(name: str, *names: str) -> Object:
    """Return a quota of one GPU for pods with certain classes."""
    scope = {"scopeName": "PriorityClass", "operator": "In", "values": list(names)}
    return {
        "apiVersion": "v1",
        "kind": "ResourceQuota",
        "metadata": {"name": name},
        "spec": {
            "hard": {f"requests.{GPU}": "1"},
            "scopeSelector": {"matchExpressions": [scope]},
        },
    }


def used(stage: Stage, namespace: str) -> dict[str, str]:
    """Return the number of GPUs that each quota counts."""
    return {
        name_of(each): each["status"]["used"][f"requests.{GPU}"]
        for each in stage.get("resourcequota", "-n", namespace)["items"]
        if "used" in each.get("status", {})
    }
