"""Nodes with GPUs in ResourceSlices only, without any setting. The real scheduler allocates."""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import count

import pytest

from app.core.errors import ClusterError
from tests.support.cluster_driver import GPU, Object, Stage, gates, name_of, pod, until
from tests.support.dra_driver import (
    DRIVER,
    EXTENDED,
    DraNodes,
    claiming,
    gpu,
    gpus,
    resource_slice,
    template,
)
from tests.support.rest import ask

NUMBERS = count(1)
SICK = {"key": "sick", "effect": "NoSchedule"}


@pytest.fixture
def nodes(stage: Stage) -> DraNodes:
    """Two nodes with four GPUs each."""
    nodes = DraNodes(stage)
    for name in ("dra-0", "dra-1"):
        nodes.add(name, gpus(4))
    until("the GPUs of the slices are capacity", lambda: nodes.capacity() == 8)
    return nodes


@pytest.fixture
def ours(stage: Stage, nodes: DraNodes) -> Iterator[str]:
    """A namespace with its own tenant."""
    namespace = stage.namespace(f"dra-{next(NUMBERS)}")
    stage.tenant(namespace, "1", namespace)
    until("the leader knows the tenant", lambda: "pending" in status(stage, namespace))
    yield namespace
    for kind in ("pods", "resourceclaims", "resourceclaimtemplates"):
        stage.cluster.kubectl("delete", kind, "--all", "-n", namespace, "--grace-period=0")


def status(stage: Stage, tenant: str) -> Object:
    return dict(stage.get("tenant", tenant).get("status", {}))


def charged(stage: Stage, tenant: str) -> int:
    return int(status(stage, tenant).get("used", {}).get(GPU, "0"))


def runs(stage: Stage, namespace: str, *names: str) -> None:
    until(f"{names} run", lambda: set(stage.running(namespace)) == set(names))


def said(stage: Stage, namespace: str, name: str) -> str:
    """Return the answer of the REST API about a waiting pod, as its namespace may read it."""
    kubectl = stage.cluster.kubectl
    token = kubectl("create", "token", "default", "-n", namespace, "--audience=fairgate").strip()
    return json.dumps(ask(stage, f"/v1/workloads/{namespace}/{name}", token))


def devices_of(stage: Stage, namespace: str) -> dict[str, int]:
    """Return the number of allocated devices of each claim."""
    return {
        name_of(each): len(each["status"]["allocation"]["devices"]["results"])
        for each in stage.get("resourceclaims", "-n", namespace)["items"]
        if "allocation" in each.get("status", {})
    }


def test_claims_and_extended_resources_run_on_nodes_with_slices_only(
    stage: Stage, ours: str
) -> None:
    before = stage.metric("controller", "fairgate_bypassed_pods_total")
    stage.apply(ours, template("t", 3), claiming("c", resourceClaimTemplateName="t"), pod("e", 3))
    runs(stage, ours, "c", "e")
    until("6 are charged", lambda: charged(stage, ours) == 6)
    assert sorted(devices_of(stage, ours).values()) == [3, 3]
    made = [
        each
        for each in stage.get("resourceclaims", "-n", ours)["items"]
        if EXTENDED in each["metadata"].get("annotations", {})
    ]
    assert len(made) == 1
    stage.apply(ours, pod("more", 2))
    until("it waits", lambda: status(stage, ours).get("pending") == 1)
    assert [gates(p) for p in stage.pods(ours) if name_of(p) == "more"] != [[]]
    stage.delete(ours, "e")
    runs(stage, ours, "c", "more")
    until("5 are charged", lambda: charged(stage, ours) == 5)
    assert stage.metric("controller", "fairgate_bypassed_pods_total") == before


def test_user_cannot_free_the_devices_of_a_running_pod(stage: Stage, ours: str) -> None:
    """The scheduler makes the claim of an extended resource, so no pod names it."""
    eve = stage.as_user("claimer", ours)
    stage.apply(ours, pod("e", 4))
    runs(stage, ours, "e")
    [made] = devices_of(stage, ours)
    bare = json.dumps({"metadata": {"finalizers": None}})
    with pytest.raises(ClusterError, match="devices are allocated to this resource claim"):
        eve.run("patch", "resourceclaim", made, "-n", ours, "--type=merge", "-p", bare)
    eve.run("delete", "resourceclaim", made, "-n", ours, "--wait=false")
    stage.apply(ours, pod("f", 4))
    runs(stage, ours, "e", "f")
    assert sorted(devices_of(stage, ours).values()) == [4, 4]
    assert {item["spec"]["nodeName"] for item in stage.pods(ours)} == {"dra-0", "dra-1"}


def test_every_gpu_of_the_slices_is_used(stage: Stage, ours: str) -> None:
    stage.apply(
        ours, template("t"), *(claiming(f"c{i}", resourceClaimTemplateName="t") for i in range(4))
    )
    stage.apply(ours, *(pod(f"e{i}", 1) for i in range(4)))
    until("all 8 run", lambda: len(stage.running(ours)) == 8)
    until("8 are charged", lambda: charged(stage, ours) == 8)


def test_capacity_follows_taints_generations_and_incomplete_pools(
    stage: Stage, nodes: DraNodes, ours: str
) -> None:
    tainted = [gpu("gpu-0", taints=[SICK]), *gpus(4)[1:]]
    stage.apply("default", resource_slice("dra-0", tainted, generation=2))
    until("a tainted device is no capacity", lambda: nodes.capacity() == 7)
    stage.apply("default", resource_slice("dra-0", gpus(2), generation=3, count=2))
    until("an incomplete pool is no capacity", lambda: nodes.capacity() == 4)
    nodes.put(resource_slice("dra-0", [gpu("gpu-2")], number=1, generation=3, count=2))
    until("the complete pool is capacity", lambda: nodes.capacity() == 7)
    stage.apply(ours, pod("p", 4))
    runs(stage, ours, "p")
    assert stage.pods(ours)[0]["spec"]["nodeName"] == "dra-1"


def test_devices_of_an_exempt_namespace_are_not_given_out_again(
    stage: Stage, nodes: DraNodes, ours: str
) -> None:
    system = "kube-system"
    stage.apply(system, template("agent", 3), claiming("agent", resourceClaimTemplateName="agent"))
    try:
        until("it has devices", lambda: sorted(devices_of(stage, system).values()) == [3])
        until("5 are left", lambda: nodes.capacity() == 5)
        stage.apply(ours, pod("p", 4), pod("q", 2))
        runs(stage, ours, "p")
    finally:
        stage.cluster.kubectl("delete", "pod", "agent", "-n", system, "--grace-period=0")
        stage.cluster.kubectl("delete", "resourceclaimtemplate", "agent", "-n", system)
    runs(stage, ours, "p", "q")


def test_selectors_choose_the_node_and_why_counts_the_devices(
    stage: Stage, nodes: DraNodes, ours: str
) -> None:
    big = [gpu(f"gpu-{i}", "h100" if i < 2 else "a100") for i in range(4)]
    stage.apply("default", resource_slice("dra-1", big, generation=2))
    h100 = f"device.attributes['{DRIVER}'].model == 'h100'"
    stage.apply(ours, template("t", 2, h100), claiming("p", resourceClaimTemplateName="t"))
    runs(stage, ours, "p")
    assert stage.pods(ours)[0]["spec"]["nodeName"] == "dra-1"
    stage.apply(ours, claiming("q", resourceClaimTemplateName="t"))
    words = "2 of 4 devices on dra-1 match; all are allocated"
    stage.cluster.kubectl(
        "create", "rolebinding", "look", "-n", ours, "--clusterrole=view",
        f"--serviceaccount={ours}:default",
    )  # fmt: skip
    until("why counts the devices", lambda: words in said(stage, ours, "q"))
    stage.delete(ours, "p")
    runs(stage, ours, "q")


def test_a_request_for_all_devices_takes_a_whole_node(stage: Stage, ours: str) -> None:
    stage.apply(ours, template("t", mode="All"))
    stage.apply(ours, pod("first", 1), claiming("p", resourceClaimTemplateName="t"))
    runs(stage, ours, "first", "p")
    until("5 are charged", lambda: charged(stage, ours) == 5)
    assert sorted(devices_of(stage, ours).values()) == [1, 4]
    stage.apply(ours, claiming("q", resourceClaimTemplateName="t"))
    until("it waits", lambda: status(stage, ours).get("pending") == 1)
    stage.delete(ours, "first")
    runs(stage, ours, "p", "q")
