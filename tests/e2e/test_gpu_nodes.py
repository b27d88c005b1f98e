"""GPU nodes reserved for GPU pods, and filled one after another: both are opt-in."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from app.devcluster.binaries import Tools
from app.devcluster.fairgate_install import UNFAIR
from app.devcluster.go_build import SOURCE
from tests.support.chart import Chart
from tests.support.cluster_driver import Object, Stage, name_of, pod, until
from tests.support.schedulers import second_scheduler

PRODUCT = "nvidia.com/gpu.product"
PACKING = "packing-scheduler"
SCHEDULER = SOURCE / "docs" / "examples" / "scheduler-most-allocated.yaml"
ROOM = {"cpu": "64", "memory": "256Gi", "pods": "110"}


def affinity(*terms: list[Object]) -> Object:
    required = {"nodeSelectorTerms": [{"matchExpressions": term} for term in terms]}
    return {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": required}}


def expression(key: str, operator: str = "Exists") -> Object:
    return {"key": key, "operator": operator}


AWAY = expression(PRODUCT, "DoesNotExist")
AMD_AWAY = expression("amd.com/gpu.product-name", "DoesNotExist")


def required(item: Object) -> list[list[Object]]:
    """Return the expressions of each required term of a pod."""
    affinity = item["spec"].get("affinity", {}).get("nodeAffinity", {})
    terms = affinity.get("requiredDuringSchedulingIgnoredDuringExecution", {})
    return [term.get("matchExpressions", []) for term in terms.get("nodeSelectorTerms", [])]


@pytest.fixture
def kept_off(stage: Stage, cluster_tools: Tools, tmp_path: Path) -> Stage:
    """The chart's policy, installed, and one node without GPUs."""
    if cluster_tools.kubernetes.number < 36:
        pytest.skip("MutatingAdmissionPolicy is stable from Kubernetes 1.36")
    chart = Chart(cluster_tools, tmp_path)
    policy = chart.render("gpuNodes.keepOthersOff=true", "--show-only=templates/gpu-nodes.yaml")
    labels = {"type": "kwok", "kubernetes.io/hostname": "plain"}
    plain = {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": "plain", "labels": labels},
        "status": {"capacity": ROOM, "allocatable": ROOM},
    }
    stage.apply("default", *policy, plain)
    stage.objects += [(each["kind"].lower(), name_of(each)) for each in (*policy, plain)]
    probe = json.dumps(pod("probe", 0))

    def holds() -> bool:
        made = stage.cluster.kubectl(
            "create", "-n", "default", "--dry-run=server", "-o", "json", "-f", "-", stdin=probe
        )
        return any(AWAY in term for term in required(json.loads(made)))

    until("the policy holds", holds)
    return stage


def test_pods_without_gpus_are_not_bound_to_gpu_nodes(kept_off: Stage) -> None:
    ours = kept_off.namespace("kept-off")
    linux = expression("kubernetes.io/hostname")
    near: Object = {"podAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": []}}
    kept_off.apply(
        ours,
        *(pod(f"web-{number}", 0) for number in range(4)),
        pod("picky", 0, affinity=affinity([linux], [linux, expression("type")])),
        pod("soft", 0, affinity={"nodeAffinity": {}}),
        pod("near", 0, affinity=near),
    )
    until("all run", lambda: len(kept_off.running(ours)) == 7)
    found = {name_of(p): p for p in kept_off.pods(ours)}
    assert {p["spec"]["nodeName"] for p in found.values()} == {"plain"}
    assert required(found["picky"]) == [
        [linux, AWAY, AMD_AWAY],
        [linux, expression("type"), AWAY, AMD_AWAY],
    ]
    assert required(found["web-0"]) == required(found["soft"]) == [[AWAY, AMD_AWAY]]


def test_pods_that_select_gpu_nodes_and_daemonsets_run_on_gpu_nodes(kept_off: Stage) -> None:
    ours = kept_off.namespace("needs-them")
    here = {PRODUCT: "NVIDIA-H100-80GB-HBM3"}
    daemon = {
        "apiVersion": "apps/v1",
        "kind": "DaemonSet",
        "metadata": {"name": "logs"},
        "spec": {
            "selector": {"matchLabels": {"app": "x"}},
            "template": {
                "metadata": {"labels": {"app": "x"}},
                "spec": {"containers": [{"name": "c", "image": "i"}]},
            },
        },
    }
    kept_off.apply(ours, pod("train", 1), pod("monitor", 0, nodeSelector=here), daemon)
    until("all run", lambda: len(kept_off.running(ours)) == 2 + 9)
    nodes = {name_of(p): p["spec"]["nodeName"] for p in kept_off.pods(ours)}
    assert nodes.pop("train").startswith("gpu-node-")
    assert nodes.pop("monitor").startswith("gpu-node-")
    assert len(set(nodes.values())) == 9


@pytest.fixture
def packing_scheduler(stage: Stage, cluster_tools: Tools) -> Iterator[str]:
    with second_scheduler(stage, cluster_tools, SCHEDULER, PACKING) as name:
        yield name


def test_packing_profile_fills_one_node_after_another(stage: Stage, packing_scheduler: str) -> None:
    plain, packed = (stage.namespace(name) for name in UNFAIR)  # the scheduler alone decides there
    stage.apply(plain, *(pod(f"p-{number}", 1) for number in range(8)))
    until("all run", lambda: len(stage.running(plain)) == 8)
    assert len({p["spec"]["nodeName"] for p in stage.pods(plain)}) == 8, "its default spreads"
    stage.delete(plain, *(f"p-{number}" for number in range(8)))
    until("they are gone", lambda: not stage.pods(plain))

    stage.apply(
        packed, *(pod(f"p-{number}", 2, schedulerName=packing_scheduler) for number in range(8))
    )
    until("all run", lambda: len(stage.running(packed)) == 8)
    assert len({p["spec"]["nodeName"] for p in stage.pods(packed)}) == 2, "16 GPUs, 8 a node"
