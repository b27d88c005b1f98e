"""In-place resize: the charge follows the status, and charged cpu cannot grow past the queue."""

from __future__ import annotations

from tests.support.cluster_driver import GPU, Object, Stage, pod, until
from tests.support.personas import Person

DRY_RUN = "?dryRun=All"


def change(stage: Stage, namespace: str, where: str, patch: Object) -> str:
    """Patch a subresource of a pod as the cluster administrator. Return the refusal, or ""."""
    path = f"/api/v1/namespaces/{namespace}/pods/{where}"
    return Person(stage.cluster.kubeconfig).refused("PATCH", path, patch, "strategic") or ""


def grant(stage: Stage, namespace: str, name: str, cpu: str) -> None:
    """Write the status that a kubelet writes, because nodes here have no kubelet."""
    status = {
        "name": "c",
        "image": "i",
        "imageID": "",
        "ready": True,
        "restartCount": 0,
        "allocatedResources": {"cpu": cpu},
        "resources": {"requests": {"cpu": cpu}},
    }
    patch = {"status": {"containerStatuses": [status]}}
    assert change(stage, namespace, f"{name}/status", patch) == ""


def resize(stage: Stage, namespace: str, name: str, cpu: str, query: str = "") -> str:
    container = {"name": "c", "resources": {"requests": {"cpu": cpu}}}
    return change(stage, namespace, f"{name}/resize{query}", {"spec": {"containers": [container]}})


def priced_cpu(stage: Stage) -> None:
    """Count cpu in shares and limits."""
    kind = {"apiVersion": "fairgate.io/v1alpha1", "kind": "Pool", "metadata": {"name": "default"}}
    stage.apply("default", {**kind, "spec": {"weights": {"cpu": "0.01"}}})
    stage.objects.append(("pool", "default"))


def test_a_resize_is_charged_and_cannot_take_counted_cpu_past_the_queue(stage: Stage) -> None:
    team = stage.namespace("sized")
    stage.tenant("sized", "1", team, quotas=[{"pool": "default", "limit": {"cpu": "4", GPU: 8}}])
    stage.apply(team, pod("runs"))
    until("it runs", lambda: stage.running(team) == ["runs"])
    grant(stage, team, "runs", "1")
    assert resize(stage, team, "runs", "2") == ""  # before cpu counts in shares

    priced_cpu(stage)
    # As a dry run: a growth that was accepted once would be none afterwards.
    until("cpu counts", lambda: "cpu has a weight" in resize(stage, team, "runs", "3", DRY_RUN))
    assert resize(stage, team, "runs", "1") == ""

    # A refusal without a generation, as of kubelets before 1.34, may be about an earlier spec.
    refused = {"type": "PodResizePending", "status": "True", "reason": "Infeasible"}
    refusal = {"status": {"conditions": [refused]}}
    assert change(stage, team, "runs/status", refusal) == ""
    assert "cpu has a weight" in resize(stage, team, "runs", "64")

    # The node still grants 4, which is the limit.
    grant(stage, team, "runs", "4")
    stage.apply(team, pod("waits"))
    until("the reason is seen", lambda: "limit" in told(stage, team))
    assert stage.held(team) == ["waits"]
    # The leader may release a held pod before it sees the growth.
    assert "cpu has a weight" in resize(stage, team, "waits", "2")
    grant(stage, team, "runs", "1")
    until("the limit allows it", lambda: "waits" in stage.running(team))


def told(stage: Stage, namespace: str) -> str:
    """Return all events of a namespace."""
    return stage.cluster.kubectl("get", "events", "-n", namespace)


def test_an_exchange_between_containers_raises_no_charge(stage: Stage) -> None:
    """Until its node has done it, a container is charged the larger of request and allocation."""
    team = stage.namespace("exchanged")
    stage.tenant("exchanged", "1", team)
    two = pod("two")
    [first] = two["spec"]["containers"]
    second = {"name": "d", "image": first["image"]}
    for container, cpu in ((first, "4"), (second, "1")):
        container.setdefault("resources", {}).setdefault("requests", {})["cpu"] = cpu
    two["spec"]["containers"] = [first, second]
    stage.apply(team, two)
    until("it runs", lambda: stage.running(team) == ["two"])
    allocated = [
        {"name": name, "image": "i", "imageID": "", "ready": True, "restartCount": 0}
        | {"allocatedResources": {"cpu": cpu}, "resources": {"requests": {"cpu": cpu}}}
        for name, cpu in ((first["name"], "4"), ("d", "1"))
    ]
    status = {"status": {"containerStatuses": allocated}}
    assert change(stage, team, "two/status", status) == ""

    def exchange(cpu: str, other: str, query: str = "") -> str:
        sizes = ((first["name"], cpu), ("d", other))
        wanted = [{"name": name, "resources": {"requests": {"cpu": size}}} for name, size in sizes]
        return change(stage, team, f"two/resize{query}", {"spec": {"containers": wanted}})

    priced_cpu(stage)
    until("cpu counts", lambda: "cpu has a weight" in exchange("5", "1", DRY_RUN))
    assert "raises cpu from 5 to 8" in exchange("1", "4")
    assert exchange("3", "1") == ""
