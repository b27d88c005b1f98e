"""Findings about nodes with devices, and suggested labels."""

from __future__ import annotations

import pytest

from app.commands.nodes.gpu_products import Product, guess, label_of
from app.commands.nodes.label_findings import FindingKind, Inventory, ObservedNode, labellings
from app.commands.nodes.unmanaged_pods import Other, sum_by_pool
from app.core.model import PoolName, Resource
from app.core.podspec.device_fractions import LABEL_PRODUCT, SHARED, WHOLE
from app.core.quantities import ManagedResources

MANAGED = ManagedResources(["nvidia.com/gpu", "nvidia.com/gpu.shared", "amd.com/gpu"])
T4 = {LABEL_PRODUCT: "Tesla-T4"}


def node(
    name: str, labels: dict[str, str] | None = None, gpus: int = 4, plugin: str = ""
) -> ObservedNode:
    return ObservedNode(name, labels or {}, {WHOLE: gpus} if gpus else {}, plugin)


def troubles(*nodes: ObservedNode, **pools: dict[str, str]) -> list[tuple[str, FindingKind]]:
    selectors = {PoolName(name): labels for name, labels in pools.items()}
    inventory = Inventory(nodes, MANAGED, selectors)
    return [(each.node, each.trouble) for each in inventory.findings()]


def test_labelled_node_and_node_without_devices_have_no_findings() -> None:
    assert troubles(node("a", T4), node("b", gpus=0)) == []


def test_a_node_without_the_label_of_its_product_is_found() -> None:
    amd = ObservedNode("b", T4, {Resource("amd.com/gpu"): 8})
    assert troubles(node("a"), amd) == [
        ("a", FindingKind.UNLABELLED),
        ("b", FindingKind.UNLABELLED),
    ]


def test_a_label_against_the_plugins_own_word_is_found() -> None:
    assert troubles(node("a", T4, plugin="NVIDIA-NVIDIA L4")) == [("a", FindingKind.CONTRADICTED)]
    shared = {LABEL_PRODUCT: "NVIDIA-L4-SHARED"}
    assert troubles(node("a", shared, plugin="NVIDIA-NVIDIA L4")) == []


def test_a_label_without_devices_is_found() -> None:
    assert troubles(node("a", T4, gpus=0)) == [("a", FindingKind.SILENT)]


def test_node_without_a_pool_is_a_finding_only_if_pools_exist() -> None:
    assert troubles(node("a", T4)) == []
    assert troubles(node("a", T4), other={"x": "y"}) == [("a", FindingKind.NO_POOL)]


def test_a_node_of_two_pools_is_found() -> None:
    assert troubles(node("a", T4), one={}, two=T4) == [("a", FindingKind.OVERLAP)]


def test_node_that_differs_from_the_majority_of_its_pool_is_found() -> None:
    l4 = {LABEL_PRODUCT: "NVIDIA-L4"}
    some = [node("a", T4), node("b", T4), node("c", l4)]
    assert troubles(*some, all={}) == [("c", FindingKind.ODD)]
    assert troubles(*some[1:], all={}) == []


def test_a_share_of_unknown_size_is_found() -> None:
    shared = ObservedNode("a", T4, {SHARED: 8})
    told = ObservedNode("b", {**T4, "nvidia.com/gpu.replicas": "4"}, {SHARED: 8})
    assert troubles(shared, told) == [("a", FindingKind.UNPRICED)]


@pytest.mark.parametrize(
    ("labels", "plugin", "name"),
    [
        ({}, "NVIDIA-NVIDIA A100-SXM4-40GB", "NVIDIA-A100-SXM4-40GB"),
        ({}, "NVIDIA-Tesla V100-PCIE-32GB", "Tesla-V100-PCIE-32GB"),
        ({"cloud.google.com/gke-accelerator": "nvidia-h100-80gb"}, "", "NVIDIA-H100-80GB-HBM3"),
        ({"cloud.google.com/gke-accelerator": "nvidia-x9"}, "", "nvidia-x9"),
        ({"accelerator": "nvidia"}, "", None),  # the only information on AKS
        ({"node.kubernetes.io/instance-type": "p4d.24xlarge"}, "", "NVIDIA-A100-SXM4-40GB"),
        ({"node.kubernetes.io/instance-type": "p5.48xlarge"}, "", "NVIDIA-H100-80GB-HBM3"),
        ({"node.kubernetes.io/instance-type": "p5e.48xlarge"}, "", "NVIDIA-H200"),
        ({"node.kubernetes.io/instance-type": "m5.large"}, "", None),
        ({}, "!!", None),
    ],
)
def test_product_is_guessed_from_node_labels_and_device_plugin(
    labels: dict[str, str], plugin: str, name: str | None
) -> None:
    told = guess(labels, plugin)
    assert (told.name if told else None) == name


def test_product_in_node_labels_overrides_the_given_product() -> None:
    cloud = {"accelerator": "nvidia-l4"}
    inventory = Inventory([node("a", cloud), node("b"), node("c", T4)], MANAGED)
    writes, unknown = labellings(inventory, (), "Mine")
    assert [(each.node.name, each.product) for each in writes] == [
        ("a", Product("NVIDIA-L4", "label accelerator=nvidia-l4")),
        ("b", Product("Mine", "--product")),
    ]
    assert unknown == []
    assert labellings(inventory, ("b",)) == ([], ["b"])


def test_the_label_is_that_of_the_vendor() -> None:
    assert label_of("nvidia.com/mig-1g.5gb") == LABEL_PRODUCT
    assert label_of("amd.com/gpu") == "amd.com/gpu.product-name"
    assert label_of("example.com/npu") == "example.com/gpu.product"


def test_pods_that_could_run_on_other_nodes_are_summed_by_pool() -> None:
    cpu = Resource("cpu")
    others = [
        Other("x/a", "n1", {cpu: 500, Resource("pods"): 1}),
        Other("x/b", "n2", {cpu: 1500}),
        Other("x/d", "n1", {cpu: 9000}, is_node_local=True),
        Other("x/c", "elsewhere", {cpu: 9000}),
    ]
    [(pool, crowd)] = sum_by_pool(others, {"n1": "h100", "n2": "h100"}).items()
    assert (pool, crowd.pods, crowd.nodes, crowd.used) == ("h100", 2, {"n1", "n2"}, {cpu: 2000})
