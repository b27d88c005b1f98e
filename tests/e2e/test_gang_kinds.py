"""Every kind of gang on a real API server, including incomplete gangs.

JobSets and pod groups have the form that their controllers write. The tests install simplified CRDs
for them.
"""

from __future__ import annotations

import json
import subprocess
import threading
import time
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any, Self

import pytest

from app.core.errors import ClusterError
from app.devcluster.cluster import LocalCluster
from tests.support.cluster_driver import (
    Object,
    Stage,
    create_crds,
    gates,
    name_of,
    pod,
    template,
    until,
)
from tests.support.custom_kinds import custom
from tests.support.gang_kinds import together, told
from tests.support.operator_crds import CRDS, read_crd, required_crd_files
from tests.support.shares import policy
from tests.support.unschedulable import NOWHERE
from tests.support.workloads import deployment

EXAMPLE = Path(__file__).parents[2] / "docs/examples/gang-job.yaml"
BY_JOB = {"fairgate.io/gang": "job"}


def own(name: str, gang: str, size: int | str, gpus: int = 1, **more: Any) -> Object:
    """Return a pod of a gang that Fairgate's annotations define."""
    item = pod(name, gpus, **more.pop("spec", {}))
    words = {"fairgate.io/gang": gang, "fairgate.io/gang-size": str(size)}
    item["metadata"]["annotations"] = words | more
    return item


def named(name: str, labels: Object, annotations: Object | None = None, gpus: int = 8) -> Object:
    """Return a pod with labels and annotations as written by a controller."""
    item = pod(name, gpus)
    item["metadata"] |= {"labels": labels, "annotations": annotations or {}}
    return item


def job(
    name: str, pods: int, gpus: int = 8, annotations: Object | None = None, **spec: Any
) -> Object:
    """Return a Job that forms one gang."""
    body = template(gpus)
    body["metadata"]["annotations"] = BY_JOB if annotations is None else annotations
    whole = {"parallelism": pods, "completions": pods, "template": body, **spec}
    return {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": name}, "spec": whole}


@pytest.fixture(scope="module")
def crds(fairgate_cluster: LocalCluster) -> Iterator[None]:
    """Install the CRDs of other projects that define the size of a gang."""
    job_sets = required_crd_files({"jobsets": CRDS["jobsets"]})["jobsets"]
    made = [
        custom("scheduling.x-k8s.io", "v1alpha1", "PodGroup", "podgroups"),
        read_crd(job_sets),
    ]
    names = create_crds(fairgate_cluster, made)
    yield
    fairgate_cluster.kubectl("delete", *names, "--wait=false")


def released(stage: Stage, namespace: str) -> list[str]:
    return sorted(name_of(p) for p in stage.pods(namespace) if not gates(p))


def fail(stage: Stage, namespace: str, name: str) -> None:
    """Set a pod to Failed as its kubelet does. RBAC allows its node only this status update."""
    [item] = [p for p in stage.pods(namespace) if name_of(p) == name]
    item["status"]["phase"] = "Failed"
    stage.cluster.kubectl(
        "replace", "--raw", f"/api/v1/namespaces/{namespace}/pods/{name}/status", "-f", "-",
        f"--as=system:node:{item['spec']['nodeName']}", "--as-group=system:nodes",
        stdin=json.dumps(item),
    )  # fmt: skip


def uids(stage: Stage, namespace: str) -> set[str]:
    return {str(p["metadata"]["uid"]) for p in stage.pods(namespace)}


# The pods that form a gang.


def test_gang_of_a_job_starts_completely_or_not_at_all(stage: Stage) -> None:
    wall, ours = stage.namespace("wall"), stage.namespace("by-job")
    blockers = stage.block(wall)
    stage.apply(ours, job("train", 3))
    until("its pods are held", lambda: len(stage.held(ours)) == 3)
    for blocker in blockers[:2]:
        stage.delete(wall, blocker)
    stage.apply(ours, pod("small"))
    until("another pod goes ahead", lambda: released(stage, ours) == ["small"])
    assert len(stage.held(ours)) == 3
    stage.delete(wall, blockers[2])
    stage.delete(ours, "small")
    together(stage, ours, 3)


def test_the_example_of_the_documentation_is_released_together(stage: Stage) -> None:
    ours = stage.namespace("example")
    stage.cluster.kubectl("apply", "-n", ours, "-f", str(EXAMPLE))
    together(stage, ours, 4)


def test_a_jobs_changed_parallelism_changes_its_gang(stage: Stage) -> None:
    wall, ours = stage.namespace("wall"), stage.namespace("live")
    blockers = stage.block(wall)
    stage.apply(ours, job("train", 3, completionMode="Indexed"))
    until("its pods are held", lambda: len(stage.held(ours)) == 3)
    fewer = json.dumps({"spec": {"parallelism": 2, "completions": 2}})
    stage.cluster.kubectl("patch", "job", "train", "-n", ours, "--type=merge", "-p", fewer)
    until("one of its pods is gone", lambda: len(stage.pods(ours)) == 2)
    for blocker in blockers:
        stage.delete(wall, blocker)
    together(stage, ours, 2)


def test_elastic_job_starts_at_its_minimum_and_grows_pod_by_pod(stage: Stage) -> None:
    wall, ours = stage.namespace("wall"), stage.namespace("elastic")
    blockers = stage.block(wall)
    words = {**BY_JOB, "fairgate.io/gang-min": "2"}
    stage.apply(ours, job("train", 4, annotations=words))
    until("its pods are held", lambda: len(stage.held(ours)) == 4)
    stage.delete(wall, blockers[0])
    until("a node is free", lambda: len(stage.running(wall)) == len(blockers) - 1)
    assert released(stage, ours) == []
    stage.delete(wall, blockers[1])
    until("its minimum runs", lambda: len(stage.running(ours)) == 2)
    stage.delete(wall, blockers[2])
    until("a third joins", lambda: len(stage.running(ours)) == 3)
    assert len(stage.held(ours)) == 1


def test_a_kueue_pod_group_is_a_gang(stage: Stage) -> None:
    ours = stage.namespace("kueue")
    labels = {"kueue.x-k8s.io/pod-group-name": "g"}
    count = {"kueue.x-k8s.io/pod-group-total-count": "3"}
    stage.apply(ours, *(named(f"k-{n}", labels, count) for n in range(2)), pod("ordinary"))
    until("the pod beside it runs", lambda: stage.running(ours) == ["ordinary"])
    assert len(stage.held(ours)) == 2
    missing = "gang kueue/g is not complete, 2 of 3"
    until("it is reported", lambda: missing in told(stage, ours, "Held"))
    stage.delete(ours, "ordinary")
    stage.apply(ours, named("k-2", labels, count))
    together(stage, ours, 3)


def test_coscheduling_gang_waits_until_its_pod_group_exists(stage: Stage, crds: None) -> None:
    ours = stage.namespace("plugin")
    labels = {"scheduling.x-k8s.io/pod-group": "g"}
    stage.apply(ours, *(named(f"c-{n}", labels) for n in range(3)), pod("ordinary"))
    until("the pod beside it runs", lambda: stage.running(ours) == ["ordinary"])
    assert len(stage.held(ours)) == 3
    missing = "no PodGroup (scheduling.x-k8s.io) g states its size"
    until("it is reported", lambda: missing in told(stage, ours, "Held"))
    group = {"apiVersion": "scheduling.x-k8s.io/v1alpha1", "kind": "PodGroup"}
    stage.delete(ours, "ordinary")
    stage.apply(ours, {**group, "metadata": {"name": "g"}, "spec": {"minMember": 3}})
    together(stage, ours, 3)


def test_the_older_labels_of_the_coscheduling_plugin_are_read(stage: Stage) -> None:
    ours, prefix = stage.namespace("older"), "pod-group.scheduling.sigs.k8s.io/"
    labels = {f"{prefix}name": "g", f"{prefix}min-available": "2"}
    stage.apply(ours, named("o-0", labels), pod("ordinary"))
    until("the pod beside it runs", lambda: stage.running(ours) == ["ordinary"])
    stage.delete(ours, "ordinary")
    stage.apply(ours, named("o-1", labels))
    together(stage, ours, 2)


def test_job_set_is_one_gang_with_the_pods_of_all_jobs(stage: Stage, crds: None) -> None:
    ours = stage.namespace("set")
    stage.apply(ours, job_set(replicated("w", 2, 2)), of_the_set("w", 0, 2))
    until("the first Job's pods are held", lambda: len(stage.held(ours)) == 2)
    until(
        "their number is known",
        lambda: _why(stage, ours).startswith("not queued: its gang jobset/js"),
    )
    stage.apply(ours, of_the_set("w", 1, 2))
    together(stage, ours, 4)


def test_a_replicated_job_of_an_ordered_job_set_starts_in_the_place_of_the_first(
    stage: Stage, crds: None
) -> None:
    """The workers are created when the driver runs, as the controller of JobSets does it.

    Another gang of the user is older than the workers, and it is as large.
    """
    wall, ours = stage.namespace("wall"), stage.namespace("ordered")
    blockers = stage.block(wall)
    order = {"startupPolicy": {"startupPolicyOrder": "InOrder"}}
    stage.apply(ours, job_set(replicated("driver", 1, 1), replicated("worker", 1, 2), **order))
    stage.apply(ours, of_the_set("driver", 0, 1))
    until("the driver is held", lambda: len(stage.held(ours)) == 1)
    stage.delete(wall, blockers[0])
    until("the driver runs", lambda: len(stage.running(ours)) == 1)
    made = created(stage.get("jobset", "js", "-n", ours))
    until("another second has begun", lambda: time.time() > made + 1)
    stage.apply(ours, *(own(f"other-{n}", "other", 2, 8) for n in range(2)))
    until("the other gang is held", lambda: len(stage.held(ours)) == 2)
    stage.apply(ours, of_the_set("worker", 0, 2))
    until("the workers are held", lambda: len(stage.held(ours)) == 4)
    for blocker in blockers[1:3]:
        stage.delete(wall, blocker)
    until("two more run", lambda: len(stage.running(ours)) == 3)
    assert stage.held(ours) == ["other-0", "other-1"]


def created(item: Object) -> float:
    """Return the second in which an object was created."""
    return datetime.fromisoformat(item["metadata"]["creationTimestamp"]).timestamp()


def replicated(name: str, replicas: int, pods: int) -> Object:
    return {"name": name, "replicas": replicas, "template": {"spec": job("x", pods)["spec"]}}


def job_set(*jobs: Object, **spec: Any) -> Object:
    """Return the JobSet `js`."""
    about = {"apiVersion": "jobset.x-k8s.io/v1alpha2", "kind": "JobSet"}
    return {**about, "metadata": {"name": "js"}, "spec": {"replicatedJobs": jobs, **spec}}


def of_the_set(part: str, number: int, pods: int) -> Object:
    """Return a Job of the JobSet `js`, as the controller of JobSets creates it."""
    item, prefix = job(f"js-{part}-{number}", pods), "jobset.sigs.k8s.io/"
    labels = {f"{prefix}jobset-name": "js", f"{prefix}replicatedjob-name": part}
    item["metadata"]["labels"] = labels
    item["spec"]["template"]["metadata"]["labels"] |= labels
    return item


def events_of(stage: Stage, namespace: str, prefix: str) -> int:
    """Return the number of events `Held` of pods whose name begins with a prefix."""
    texts = told(stage, namespace, "Held").splitlines()
    return sum(text.startswith(prefix) for text in texts)


def wait_with_gang(stage: Stage, namespace: str) -> None:
    """Create a gang of six nodes, and wait for the events of its pods that say why they wait.

    Events of earlier tests do not count. By then the gang has its reservation.
    """
    earlier = events_of(stage, namespace, "g-")
    stage.apply(namespace, *(own(f"g-{n}", "g", 6, 8) for n in range(6)))
    until(
        "the gang is told that it waits",
        lambda: events_of(stage, namespace, "g-") >= earlier + 6,
    )


def _why(stage: Stage, namespace: str) -> str:
    texts = told(stage, namespace, "Held").splitlines() or [""]
    return texts[0].partition(": ")[2]


# Warnings about invalid gangs.


def warned(stage: Stage, namespace: str, item: Object) -> str:
    kubectl, text = stage.cluster.details(), json.dumps(item)
    arguments = [kubectl.kubectl, "--kubeconfig", kubectl.kubeconfig, "apply", "-n", namespace]
    found = subprocess.run(
        [*arguments, "-f", "-"], input=text, capture_output=True, text=True, check=True
    )
    return found.stderr


def test_pod_with_an_invalid_gang_gets_a_warning_and_waits_alone(stage: Stage) -> None:
    ours = stage.namespace("bad-input")
    kueue = {"kueue.x-k8s.io/pod-group-name": "g"}
    cases = {
        "by-nobody": (named("by-nobody", {}, BY_JOB, 1), "no Job made this pod"),
        "uncounted": (named("uncounted", kueue, {}, 1), "is not the number of pods of the group"),
        "nonsense": (own("nonsense", "g", "-4"), "is not a whole number"),
        "vast": (own("vast", "g", "99999999999999999999"), "is not a whole number"),
        "whatever": (
            own("whatever", "g", 1, **{"fairgate.io/gang-failure": "retry"}),
            "neither keep",
        ),
    }
    for item, words in cases.values():
        assert words in warned(stage, ours, item)
    until("each runs by itself", lambda: sorted(stage.running(ours)) == sorted(cases))


def test_a_gangs_annotations_are_frozen_when_its_pod_is_created(stage: Stage) -> None:
    ours = stage.namespace("kept")
    stage.apply(ours, own("p", "g", 2))
    until("it is held", lambda: stage.held(ours) == ["p"])
    for change in ("gang-size=1", "gang-failure=restart", "gang-"):
        with pytest.raises(ClusterError, match="are immutable"):
            stage.as_user(f"eve-{change[:6]}", ours).run(
                "annotate", "--overwrite", "pod", "p", "-n", ours, f"fairgate.io/{change}"
            )


# Incomplete gangs.


def test_an_incomplete_gang_is_reported_after_its_time_out(stage: Stage) -> None:
    ours = stage.namespace("missing")
    policy(stage, gangTimeout="2s")
    stage.apply(ours, own("a-0", "g", 3), own("a-1", "g", 3))
    late = "2 of 3 pods are there, for more than 2 s now"
    # The event `Held` says it if it is sent after the time-out.
    both = ("Held", "Waiting")
    until("both pods are told", lambda: sum(told(stage, ours, e).count(late) for e in both) >= 2)
    assert sorted(stage.held(ours)) == ["a-0", "a-1"]


def half(stage: Stage, namespace: str, **words: str) -> None:
    """Release a gang with one pod that finds no node."""
    stage.apply(
        namespace,
        *(own(f"m-{n}", "g", 3, **words) for n in range(2)),
        own("stuck", "g", 3, spec={"volumes": NOWHERE}, **words),
    )
    until("two run", lambda: sorted(stage.running(namespace)) == ["m-0", "m-1"])
    assert stage.held(namespace) == []


def test_incomplete_gang_is_evicted_after_the_timeout(stage: Stage) -> None:
    ours = stage.namespace("given-back")
    policy(stage, gangTimeout="2s", evictUnowned=True)
    half(stage, ours)
    stage.delete(ours, "stuck")
    until("the others are evicted", lambda: stage.pods(ours) == [])
    until("they are told why", lambda: told(stage, ours, "Reclaimed").count("only 2 of the 3") == 2)


def test_failed_member_evicts_the_rest_of_a_gang_with_restart(stage: Stage) -> None:
    ours = stage.namespace("anew")
    policy(stage, evictUnowned=True)
    half(stage, ours, **{"fairgate.io/gang-failure": "restart"})
    fail(stage, ours, "m-0")
    until("the others are evicted", lambda: [name_of(p) for p in stage.pods(ours)] == ["m-0"])
    until(
        "they are told", lambda: told(stage, ours, "Reclaimed").count("starts the whole gang") == 2
    )


def test_incomplete_gang_keeps_running_and_takes_a_replacement_pod(stage: Stage) -> None:
    ours = stage.namespace("going-on")
    half(stage, ours)
    before = uids(stage, ours)
    stage.delete(ours, "stuck")
    stage.apply(ours, own("instead", "g", 3))
    until("all run", lambda: sorted(stage.running(ours)) == ["instead", "m-0", "m-1"])
    assert len(before & uids(stage, ours)) == 2


def test_owner_recreates_all_members_of_a_gang_with_restart(stage: Stage) -> None:
    """Nine pods request the same host port on eight nodes. The last pod is unschedulable, so all
    go.

    The test uses a Deployment, because a Job backs off longer each time it replaces failed pods.
    """
    ours = stage.namespace("ports")
    policy(stage, schedulingTimeout="3s")
    whole = deployment("train", 9)
    body = whole["spec"]["template"]
    body["spec"]["containers"][0]["ports"] = [{"containerPort": 1, "hostPort": 8471}]
    words = {"gang": "train", "gang-size": "9", "gang-failure": "restart"}
    body["metadata"]["annotations"] = {f"fairgate.io/{key}": word for key, word in words.items()}
    stage.apply(ours, whole)
    until("eight run", lambda: len(stage.running(ours)) == 8)
    first = uids(stage, ours)
    until("all are made anew", lambda: len(uids(stage, ours) - first) >= 9)
    until("they are told", lambda: "starts the whole gang" in told(stage, ours, "Reclaimed"))


# Gangs next to other pods.


def test_two_gangs_that_do_not_fit_together_run_one_after_another(stage: Stage) -> None:
    """Each gang needs six of eight nodes. Pod by pod, both gangs would hold four nodes for ever."""
    wall = stage.namespace("wall")
    spaces = [stage.namespace(f"gang-{n}") for n in range(2)]
    blockers = stage.block(wall)
    for space in spaces:
        stage.apply(space, *(own(f"m-{n}", "g", 6, 8) for n in range(6)))
    until("both wait", lambda: all(len(stage.held(space)) == 6 for space in spaces))
    for blocker in blockers:
        stage.delete(wall, blocker)
    until("one runs", lambda: any(len(stage.running(space)) == 6 for space in spaces))
    first, second = sorted(spaces, key=lambda space: len(stage.held(space)))
    assert len(stage.held(second)) == 6
    stage.delete(first, *(f"m-{n}" for n in range(6)))
    together(stage, second, 6)


def test_reservation_of_a_gang_lets_small_pods_use_other_nodes(stage: Stage) -> None:
    """The gang needs six of eight nodes. Two of four later small pods run on the other nodes.

    The reservation covers the first six nodes by name, which are freed first. Only the engine has
    the reservation. kube-scheduler, which places the small pods, does not see it.
    """
    wall, ours = stage.namespace("wall"), stage.namespace("ours")
    policy(stage, reserveAfter="0s")
    blockers = stage.block(wall)
    wait_with_gang(stage, ours)
    stage.apply(ours, *(pod(f"small-{n}", 8) for n in range(4)))
    until("all wait", lambda: len(stage.held(ours)) == 10)
    nodes = {name_of(p): p["spec"]["nodeName"] for p in stage.pods(wall)}
    blockers.sort(key=nodes.__getitem__)
    for number, blocker in enumerate(blockers[:5], start=1):
        stage.delete(wall, blocker)
        until("it is gone", lambda n=number: len(stage.running(wall)) == 8 - n)
    stage.apply(ours, pod("another", 1))
    until("it waits too", lambda: "another: queued" in told(stage, ours, "Held"))
    assert released(stage, ours) == []
    stage.delete(ours, "another")
    stage.delete(wall, blockers[5])
    until("the gang runs", lambda: len(stage.running(ours)) == 6)
    assert released(stage, ours) == [f"g-{n}" for n in range(6)]
    stage.delete(wall, *blockers[6:])
    until("two go beside it", lambda: len(stage.running(ours)) == 8)
    assert len(stage.held(ours)) == 2


def test_small_pods_do_not_use_nodes_reserved_for_a_gang(stage: Stage) -> None:
    """Reserved and other nodes are freed alternately. kube-scheduler does not see reservations."""
    wall, ours = stage.namespace("wall"), stage.namespace("ours")
    policy(stage, reserveAfter="0s")
    blockers = stage.block(wall)
    wait_with_gang(stage, ours)
    stage.apply(ours, *(pod(f"small-{n}", 8) for n in range(4)))
    until("all wait", lambda: len(stage.held(ours)) == 10)
    nodes = {name_of(p): p["spec"]["nodeName"] for p in stage.pods(wall)}
    blockers.sort(key=nodes.__getitem__)
    for number in (0, 7, 1, 6, 2, 3, 4, 5):
        stage.delete(wall, blockers[number])
        if number > 5:  # else a slow leader sees six free nodes, and the gang starts on these
            beside = 8 - number
            until("a small pod runs there", lambda n=beside: len(stage.running(ours)) == n)  # type: ignore[misc]
    until("the gang and two beside it run", lambda: len(stage.running(ours)) == 8)
    assert released(stage, ours)[:6] == [f"g-{n}" for n in range(6)]
    small = {p["spec"].get("nodeName") for p in stage.pods(ours) if name_of(p).startswith("small")}
    assert small - {None} == {nodes[blockers[6]], nodes[blockers[7]]}


def test_a_gang_of_64_is_released_at_once(stage: Stage) -> None:
    """A gang of 64 starts as fast as a single pod in a crowd. The test prints the figure."""
    ours = stage.namespace("sixty-four")
    with Arrivals(stage.cluster, ours) as watch:
        stage.apply(ours, *(own(f"g-{n}", "g", 64) for n in range(64)))
        together(stage, ours, 64)
        until("the watch has shown all of them", lambda: len(watch.times) == 64)
        times = watch.times
    print(f"64 released within {max(times.values()) - min(times.values()):.3f} s")


class Arrivals:
    """Records the time at which a watch reports each pod of a namespace as released.

    A busy API server closes watches. kubectl then ends and is started again.
    """

    def __init__(self, cluster: LocalCluster, namespace: str) -> None:
        details = cluster.details()
        self.times: dict[str, float] = {}
        self._command = [
            details.kubectl, "--kubeconfig", details.kubeconfig, "get", "pods", "-n", namespace,
            "--watch", "--no-headers", "-o",
            "custom-columns=N:.metadata.name,G:.spec.schedulingGates[*].name",
        ]  # fmt: skip
        self._lock = threading.Lock()
        self._is_over = False
        self._process = self._start()
        self._reader = threading.Thread(target=self._read)

    def __enter__(self) -> Self:
        self._reader.start()
        return self

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._is_over = True
            self._process.terminate()
        self._reader.join()

    def _start(self) -> subprocess.Popen[str]:
        return subprocess.Popen(self._command, stdout=subprocess.PIPE, text=True)

    def _read(self) -> None:
        while True:
            with self._process as process:
                assert process.stdout is not None
                for line in process.stdout:
                    name, gate = line.split()
                    if gate == "<none>":
                        self.times.setdefault(name, time.monotonic())
            with self._lock:
                if self._is_over:
                    return
                self._process = self._start()
