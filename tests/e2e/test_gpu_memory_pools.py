"""Pools selected by device memory, refusals at create, and pools that grow."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from app.core.errors import ClusterError
from tests.support.cluster_driver import GPU, Object, Stage, name_of, pod, until
from tests.support.documented_lines import commands
from tests.support.terminal import terminal_on

KIND = "example.com/gpu-kind"
MEMORY, SIZE = "fairgate.io/gpu-memory", "fairgate.io/model-size"
EXAMPLES = Path(__file__).parents[2] / "docs" / "examples"


def node(name: str, kind: str, gpus: int, **labels: str) -> Object:
    room = {"cpu": "64", "memory": "256Gi", "pods": "110", GPU: str(gpus)}
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {
            "name": name,
            "labels": {"kubernetes.io/hostname": name, "type": "kwok", KIND: kind, **labels},
        },
        "status": {"capacity": room, "allocatable": room},
    }


def pool(name: str, **spec: object) -> Object:
    return {
        "apiVersion": "fairgate.io/v1alpha1",
        "kind": "Pool",
        "metadata": {"name": name},
        "spec": {"nodeSelector": {KIND: name}, **spec},
    }


def saying(name: str, gpus: int = 1, **annotations: str) -> Object:
    item = pod(name, gpus)
    item["metadata"]["annotations"] = {
        f"fairgate.io/{key.replace('_', '-')}": value for key, value in annotations.items()
    }
    return item


class MemoryPools:
    """Nodes and pools of one test, on the shared cluster."""

    def __init__(self, stage: Stage) -> None:
        self.stage = stage

    def put(self, *items: Object) -> None:
        """Apply objects that are deleted when the test ends."""
        self.stage.apply("default", *items)
        self.stage.objects += [(item["kind"].lower(), name_of(item)) for item in items]

    def known(self, *pools: str) -> None:
        """Wait until the leader has counted the nodes of the pools."""
        for name in pools:
            until(f"pool {name} is in force", lambda n=name: self.reason(n) == "InForce")  # type: ignore[misc]

    def reason(self, name: str) -> str:
        """Return the reason of a pool's condition Ready."""
        found = self.stage.get("pool", name).get("status", {}).get("conditions", [])
        return next((str(each["reason"]) for each in found if each["type"] == "Ready"), "")

    def told(self, name: str) -> str:
        """Return the message of a pool's condition Ready."""
        found = self.stage.get("pool", name)["status"]["conditions"]
        return next(str(each["message"]) for each in found if each["type"] == "Ready")

    def nodes(self, namespace: str) -> dict[str, str]:
        """Return the nodes to which the pods are bound."""
        return {name_of(p): str(p["spec"].get("nodeName", "")) for p in self.stage.pods(namespace)}


@pytest.fixture
def pools(stage: Stage) -> MemoryPools:
    return MemoryPools(stage)


@pytest.fixture
def kinds(pools: MemoryPools) -> MemoryPools:
    """Nodes with T4, A100 (40 and 80 GiB) and H100 devices, one pool per kind."""
    pools.stage.objects += [("pool", name) for name in ("t4", "a100-40", "a100-80", "h100")]
    pools.stage.cluster.kubectl("apply", "-f", str(EXAMPLES / "memory-pools.yaml"))
    pools.put(
        node("mem-t4", "t4", 2),
        node("mem-a100-40", "a100-40", 4),
        node("mem-a100-80", "a100-80", 2),
        node("mem-h100", "h100", 8),
    )
    pools.known("t4", "a100-40", "a100-80", "h100")
    return pools


def refusal(act: Callable[[], object]) -> str:
    """Return the message with which the API server refuses the pod."""
    with pytest.raises(ClusterError) as caught:
        act()
    return str(caught.value)


def test_a_model_runs_on_the_smallest_devices_that_hold_it(
    kinds: MemoryPools, stage: Stage, tmp_path: Path
) -> None:
    ours = stage.namespace("models")
    stage.apply(
        ours,
        saying("m7b", model_size="7B"),
        saying("m13b", model_size="13B"),
        saying("state", gpu_memory="60Gi"),
        saying("pair", 2, gpu_memory="30Gi"),
    )
    terminal = terminal_on(stage.cluster, tmp_path)
    terminal.replace["kubectl apply"] = f"kubectl apply -n {ours}"
    for line in commands("docs/placement.md", "may serve the pod, but comes last. An example:"):
        terminal.show(line)
    terminal.show(*commands("docs/placement.md", "", "kubectl get pools"), varies="ml web Paused")
    terminal.close()
    until("all run", lambda: len(stage.running(ours)) == 5)
    where = {name.partition("70b")[0]: node for name, node in kinds.nodes(ours).items()}
    assert where["m7b"] == "mem-t4"
    assert where["m13b"] == "mem-a100-40"
    assert {where["serve-"], where["state"]} <= {"mem-a100-80", "mem-h100"}
    assert where["pair"] in ("mem-t4", "mem-a100-40")


def test_small_model_uses_larger_devices_if_small_ones_are_in_use(
    kinds: MemoryPools, stage: Stage
) -> None:
    ours = stage.namespace("overflow")
    for number in range(4):
        stage.apply(ours, saying(f"m{number}", model_size="7B"))
        until("it runs", lambda n=number: len(stage.running(ours)) == n + 1)  # type: ignore[misc]
    where = kinds.nodes(ours)
    assert [where[f"m{n}"] for n in range(4)] == ["mem-t4"] * 2 + ["mem-a100-40"] * 2


def test_model_too_large_for_every_device_is_refused_with_the_reason(
    kinds: MemoryPools, stage: Stage
) -> None:
    ours = stage.namespace("too-large")
    sentence = refusal(lambda: stage.apply(ours, saying("m70b", model_size="70B")))
    assert "no pool can ever serve this pod (fairgate.io/model-size: 70B)" in sentence
    assert "pool h100: it needs 140Gi of device memory, and asks for 1 device of 80Gi" in sentence
    assert "ask for more devices or state less memory" in sentence
    tried = lambda: stage.cluster.kubectl(  # noqa: E731
        "create", "-n", ours, "--dry-run=server", "-f", "-",
        stdin=json.dumps(saying("m70b", model_size="70B")),
    )  # fmt: skip
    assert "no pool can ever serve this pod" in refusal(tried)
    assert stage.pods(ours) == []
    stage.apply(ours, saying("m70b", 2, model_size="70B"))
    until("it runs", lambda: stage.running(ours) == ["m70b"])


def test_events_of_a_job_show_why_its_pods_are_refused(kinds: MemoryPools, stage: Stage) -> None:
    ours = stage.namespace("job-too-large")
    template = saying("x", model_size="405B")
    del template["metadata"]["name"], template["apiVersion"], template["kind"]
    job = {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "j"}}
    stage.apply(ours, {**job, "spec": {"template": template}})

    def said() -> list[str]:
        found = stage.get("events", "-n", ours, "--field-selector=reason=FailedCreate")["items"]
        return [str(event["message"]) for event in found]

    until("the job says it", lambda: any("can ever serve" in text for text in said()))


@pytest.mark.parametrize(
    ("annotations", "sentence"),
    [
        ({"gpu_memory": "40GB"}, "fairgate.io/gpu-memory: '40GB' is not an amount of memory"),
        ({"gpu_memory": "40"}, "is less than 1Mi"),
        ({"model_size": "huge"}, "fairgate.io/model-size: 'huge' is not a number of parameters"),
        ({"pools": "h200"}, "fairgate.io/pools names h200, and there is no such pool"),
        (
            {"pools": "t4", "model_size": "13B"},
            "pool t4: it needs 26Gi of device memory, and asks for 1 device of 16Gi",
        ),
    ],
    ids=["unit", "no-unit", "size", "no-pool", "named-pool"],
)
def test_invalid_memory_and_pool_annotations_are_refused(
    kinds: MemoryPools, stage: Stage, annotations: dict[str, str], sentence: str
) -> None:
    ours = stage.namespace("bad-input")
    assert sentence in refusal(lambda: stage.apply(ours, saying("p", **annotations)))
    assert stage.pods(ours) == []


def test_pod_beyond_the_limit_of_every_pool_is_refused(kinds: MemoryPools, stage: Stage) -> None:
    ours = stage.namespace("limited-kinds")
    limit = {GPU: 1}
    every = ("t4", "a100-40", "a100-80", "h100")
    stage.tenant("limited-kinds", "1", ours, quotas=[{"pool": p, "limit": limit} for p in every])
    stage.apply(ours, saying("fits", 1))
    until("it runs", lambda: stage.running(ours) == ["fits"])
    stage.apply(ours, saying("waits", 1))  # within the limit, after the other pod has ended

    def refused() -> bool:  # the webhook receives a Tenant from its watch
        try:
            stage.apply(ours, saying("never", 2))
        except ClusterError as error:
            return "the limit of tenant limited-kinds is 1" in str(error)
        stage.delete(ours, "never")
        return False

    until("it is refused", refused)


def test_device_memory_is_read_from_node_labels(pools: MemoryPools, stage: Stage) -> None:
    label = {"nvidia.com/gpu.memory": "15360"}
    pools.put(pool("found"), node("mem-found-0", "found", 8, **label))
    pools.known("found")
    ours = stage.namespace("labelled")
    stage.apply(ours, saying("small", model_size="7B"), saying("large", model_size="13B"))
    until("the small one runs", lambda: stage.running(ours) == ["small"])
    assert stage.held(ours) == ["large"]  # held, not refused: new nodes may appear
    large = {"nvidia.com/gpu.memory": "40960"}
    stage.delete(ours, "small")
    stage.cluster.kubectl("delete", "node", "mem-found-0")
    pools.put(node("mem-found-1", "found", 8, **large))
    until("the large one runs", lambda: stage.running(ours) == ["large"])
    assert pools.nodes(ours) == {"large": "mem-found-1"}


def test_pod_is_released_into_an_autoscaled_pool_before_its_node_exists(
    pools: MemoryPools, stage: Stage
) -> None:
    pools.put(pool("auto", maxCapacity={GPU: 16}), node("mem-auto-0", "auto", 8))
    pools.known("auto")
    ours = stage.namespace("auto")
    stage.apply(ours, pod("a", 8))
    until("the first runs", lambda: stage.running(ours) == ["a"])
    stage.apply(ours, pod("b", 8))
    until("the second is released", lambda: len(stage.using(ours)) == 2)
    stage.apply(ours, pod("c", 8))
    until("the pool says so", lambda: pools.reason("auto") == "NodesAwaited")
    assert stage.held(ours) == ["c"]
    assert pools.nodes(ours)["b"] == ""
    pools.put(node("mem-auto-1", "auto", 8))
    until("it is bound", lambda: pools.nodes(ours)["b"] == "mem-auto-1")
    until("the pool has what it waited for", lambda: pools.reason("auto") == "InForce")
    assert stage.held(ours) == ["c"]


def test_pod_is_evicted_and_the_pool_reports_it_if_no_node_appears(
    pools: MemoryPools, stage: Stage
) -> None:
    spec = {"schedulingTimeout": "15s", "evictUnowned": True}
    kind = {"apiVersion": "fairgate.io/v1alpha1", "kind": "Policy", "spec": spec}
    pools.put({**kind, "metadata": {"name": "default"}})
    pools.put(pool("auto", maxCapacity={GPU: 24}), node("mem-auto-0", "auto", 8))
    pools.known("auto")
    ours = stage.namespace("in-vain")
    stage.apply(ours, pod("a", 8))
    until("the first runs", lambda: stage.running(ours) == ["a"])
    theirs = stage.namespace("in-vain-too")
    stage.apply(ours, pod("b", 8))
    other = stage.as_user("somebody-else", theirs)  # one user would close it only for itself
    other.run("apply", "-n", theirs, "-f", "-", stdin=json.dumps(pod("b", 8)))
    until("the pool says that none came", lambda: pools.reason("auto") == "NodesMissing")
    until("its place is given back", lambda: set(pools.nodes(ours)) == {"a"})
    until("and the other's", lambda: not pools.nodes(theirs))
    assert re.search(r"until \d{4}-\S+ only existing nodes are used", pools.told("auto"))
    assert stage.running(ours) == ["a"]
    stage.apply(ours, pod("c", 8), pod("d", 8))
    until("one of them tries in its turn", lambda: len(stage.using(ours)) == 2)
    assert len(stage.held(ours)) == 1  # one at a time, until a node appears
    pools.put(node("mem-auto-1", "auto", 8), node("mem-auto-2", "auto", 8))
    until("both are bound", lambda: len(stage.running(ours)) == 3)
    until("all is well again", lambda: pools.reason("auto") == "InForce")
