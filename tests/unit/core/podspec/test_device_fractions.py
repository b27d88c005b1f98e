"""The fraction of a device that a resource unit is, by its name and by the node labels."""

from __future__ import annotations

from fractions import Fraction

import pytest

from app.core.model import Millis, Node, NodeName, Pool, PoolName, Resource
from app.core.placement.pools import Pools
from app.core.podspec.device_fractions import (
    CORES,
    MEMORY,
    SHARED,
    WHOLE,
    device_sizes,
    prices,
    slice_price,
)
from app.core.podspec.requests import ContainerRequest, effective_requests
from app.core.pricing.share_units import with_default_sides
from app.core.quantities import ManagedResources
from app.kube.hami import ANNOTATION, add_hami_devices, device_product

MANAGED = ManagedResources(["nvidia.com/*"])
SLICE = Resource("nvidia.com/mig-1g.5gb")
HALF = Resource("nvidia.com/mig-3g.20gb")
AT = Millis(0)


def share(one: int, of: int) -> Fraction:
    return Fraction(one, of)


@pytest.mark.parametrize(
    ("profile", "memory", "price"),
    [
        ("1g.5gb", None, share(1, 7)),
        ("1g.5gb", 40960, share(1, 7)),
        ("1g.10gb", 40960, share(1, 4)),  # with twice the memory: two eighths
        ("1g.10gb", 81559, share(1, 7)),  # H100
        ("2g.10gb", None, share(2, 7)),
        ("3g.20gb", None, share(1, 2)),  # 3/7 of the compute, half of the memory
        ("4g.20gb", None, share(4, 7)),
        ("7g.40gb", None, share(1, 1)),
        ("7g.141gb", 143771, share(1, 1)),
        ("1g.18gb", 143771, share(1, 7)),
        ("1g.6gb", None, share(1, 4)),  # A30 is divided into four
        ("2g.12gb", 24576, share(1, 2)),
        ("1c.3g.20gb", None, share(1, 6)),  # a third of the compute of one half
        ("1g.5gb.me", None, share(1, 7)),
    ],
)
def test_a_slice_costs_the_larger_of_its_parts(
    profile: str, memory: int | None, price: Fraction
) -> None:
    assert slice_price(profile, memory) == price


@pytest.mark.parametrize("profile", ["", "9g.5gb", "1g", "g.5gb", "1g.5", "a-1g.5gb"])
def test_invalid_mig_profile_has_no_price(profile: str) -> None:
    assert slice_price(profile) is None


@pytest.mark.parametrize(
    ("labels", "offer", "told"),
    [
        ({}, {WHOLE: 8}, {WHOLE: share(1, 1)}),
        ({"nvidia.com/gpu.replicas": "4"}, {SHARED: 8}, {SHARED: share(1, 4)}),
        ({"nvidia.com/gpu.count": "2"}, {SHARED: 8}, {SHARED: share(1, 4)}),
        ({}, {SHARED: 8}, {}),
        ({"nvidia.com/gpu.replicas": "many"}, {SHARED: 8}, {}),
        # Time-sliced under the plain name; partitioned under the plain name; in GKE's labels.
        ({"nvidia.com/gpu.replicas": "4"}, {WHOLE: 8}, {WHOLE: share(1, 4)}),
        ({"nvidia.com/gpu.product": "NVIDIA-A100-SXM4-40GB-MIG-1g.5gb"}, {WHOLE: 7},
         {WHOLE: share(1, 7)}),
        ({"cloud.google.com/gke-gpu-partition-size": "3g.20gb"}, {WHOLE: 2}, {WHOLE: share(1, 2)}),
        ({"cloud.google.com/gke-max-shared-clients-per-gpu": "10"}, {WHOLE: 10},
         {WHOLE: share(1, 10)}),
        ({"nvidia.com/mig-1g.5gb.replicas": "2"},
         {Resource("nvidia.com/mig-1g.5gb.shared"): 14},
         {Resource("nvidia.com/mig-1g.5gb.shared"): share(1, 14)}),
        # HAMi: two devices with ten shares each.
        ({}, {WHOLE: 20, CORES: 200, MEMORY: 81920},
         {WHOLE: share(1, 10), CORES: share(1, 100), MEMORY: share(1, 40960)}),
        ({"nvidia.com/gpu.memory": "40960"}, {WHOLE: 20, MEMORY: 81920},
         {WHOLE: share(1, 10), MEMORY: share(1, 40960)}),
        ({}, {MEMORY: 81920}, {}),
        ({}, {Resource("amd.com/gpu"): 8, Resource("cpu"): 1000}, {}),
    ],
)  # fmt: skip
def test_prices_follow_from_labels_and_capacity_of_a_node(
    labels: dict[str, str], offer: dict[Resource, int], told: dict[Resource, Fraction]
) -> None:
    assert prices(labels, offer) == told


def test_device_memory_can_be_given_from_outside() -> None:
    offer = {MEMORY: 81920}
    assert prices({}, offer, 40960 << 20) == {MEMORY: share(1, 40960)}
    assert device_sizes({}, offer, 40960 << 20) == {MEMORY: 40960}


@pytest.mark.parametrize(
    ("offer", "told"),
    [
        ({CORES: 102_400}, {CORES: 100}),
        ({CORES: 102_500}, {}),
        ({CORES: 400, MEMORY: 1024}, {CORES: 100, MEMORY: 1}),
        ({CORES: 400, MEMORY: 1025}, {CORES: 100}),
    ],
)
def test_a_resource_of_more_than_1024_devices_has_no_device_size(
    offer: dict[Resource, int], told: dict[Resource, int]
) -> None:
    assert device_sizes({"nvidia.com/gpu.memory": "1"}, offer) == told


def nodes(*written: tuple[str, dict[str, str], dict[Resource, int]]) -> Pools:
    pools = Pools(MANAGED)
    for name, labels, offer in written:
        pools.put_node(Node(NodeName(name), labels, offer, True))
    pools.rebuild_if_stale()
    return pools


DEFAULT = PoolName("default")


def test_slices_and_whole_devices_count_in_one_column() -> None:
    scale = nodes(("a", {}, {WHOLE: 8}), ("b", {}, {SLICE: 14})).scale()
    assert scale.size == {WHOLE: 10}
    seven = scale.usage_in_grains(DEFAULT, {SLICE: 7})
    assert seven == scale.usage_in_grains(DEFAULT, {WHOLE: 1}) == {WHOLE: scale.total_grains // 10}


def test_cluster_without_fractions_has_no_columns_and_no_default_sides() -> None:
    pools = nodes(("a", {}, {WHOLE: 8, Resource("amd.com/gpu"): 4, Resource("cpu"): 9}))
    pools.put_pool(Pool(DEFAULT, weights={Resource("cpu"): Fraction(2)}))
    pools.rebuild_if_stale()
    scale = pools.scale()
    assert scale.size == {WHOLE: 8, "cpu": 18}  # priced resources count, managed or not
    assert (scale.columns, scale.default_sides) == ({}, {})


def test_an_unpriced_share_is_measured_against_itself_alone() -> None:
    scale = nodes(("a", {}, {WHOLE: 8, SLICE: 7}), ("b", {}, {SHARED: 10})).scale()
    assert scale.size == {WHOLE: 9, SHARED: 10}
    assert scale.usage_in_grains(DEFAULT, {SHARED: 5}) == {SHARED: scale.total_grains // 2}


def test_fraction_has_the_weight_of_its_device() -> None:
    pools = Pools(MANAGED)
    pools.put_pool(Pool(PoolName("big"), {"p": "big"}, {WHOLE: Fraction(4)}))
    pools.put_pool(Pool(PoolName("small"), {"p": "small"}))
    pools.put_node(Node(NodeName("a"), {"p": "big"}, {SLICE: 7}, True))
    pools.put_node(Node(NodeName("b"), {"p": "small"}, {WHOLE: 4, SLICE: 7}, True))
    pools.rebuild_if_stale()
    scale = pools.scale()
    assert scale.size == {WHOLE: 9}
    dear, cheap = (scale.grains_per_unit(PoolName(p))[SLICE] for p in ("big", "small"))
    assert dear == 4 * cheap


def test_the_dearest_node_of_a_pool_sets_its_price_and_takes_it_with_it() -> None:
    pools = nodes(("b", {"nvidia.com/gpu.replicas": "10"}, {SHARED: 10}))
    assert pools.scale().size == {WHOLE: 1}
    pools.put_node(Node(NodeName("a"), {"nvidia.com/gpu.replicas": "2"}, {SHARED: 2}, True))
    assert pools.scale().size == {WHOLE: 6}
    pools.drop_node(NodeName("a"))
    assert pools.scale().size == {WHOLE: 1}


def test_of_compute_and_memory_the_larger_counts() -> None:
    hami = {WHOLE: 20, CORES: 200, MEMORY: 81920}
    scale = nodes(("a", {}, hami)).scale()
    assert set(scale.size.values()) == {Fraction(2)}
    held = scale.usage_in_grains(DEFAULT, {WHOLE: 1, CORES: 10, MEMORY: 10240})
    assert max(held.values()) == scale.total_grains // 8


def test_a_pod_that_names_no_part_has_the_whole_of_a_device() -> None:
    pools = nodes(("a", {}, {WHOLE: 20, CORES: 200, MEMORY: 81920}))
    scale = pools.scale()
    assert {r: v for r, v, _, _ in scale.cost(DEFAULT, {WHOLE: 1})} == {
        WHOLE: 1, CORES: 100, MEMORY: 40960,
    }  # fmt: skip
    floor = pools.nodes_by_pool[DEFAULT]
    floor.allocate(NodeName("a"), {WHOLE: 1, CORES: 60, MEMORY: 1024})
    assert floor.find_assignment((({WHOLE: 1}, 1),)) is not None
    assert floor.find_assignment((({WHOLE: 1}, 2),)) is None  # one of the two is in use


def test_two_parts_of_sixty_per_cent_do_not_share_a_device() -> None:
    floor = nodes(("a", {}, {WHOLE: 20, CORES: 200})).nodes_by_pool[DEFAULT]
    asked = {WHOLE: 1, CORES: 60}
    assert floor.find_assignment(((asked, 2),)) is not None
    assert floor.find_assignment(((asked, 3),)) is None  # 180 of 200, and yet no device has 60 left


def test_request_per_device_counts_for_each_requested_device() -> None:
    one = ContainerRequest(limits={WHOLE: "2", CORES: "30", MEMORY: "1000"})
    assert effective_requests([one]) == {WHOLE: 2, CORES: 60, MEMORY: 2000, "pods": 1}
    assert effective_requests([one, ContainerRequest(limits={CORES: "5"})])[CORES] == 65


def test_default_sides_are_added_only_to_device_requests_without_sides() -> None:
    fill = (WHOLE, ((CORES, 100),))
    assert with_default_sides({WHOLE: 2}, fill) == {WHOLE: 2, CORES: 200}
    assert with_default_sides({WHOLE: 2, CORES: 60}, fill) == {WHOLE: 2, CORES: 60}
    assert with_default_sides({SLICE: 2}, fill) == {SLICE: 2}


OLD = "GPU-1,10,32768,100,NVIDIA-Tesla V100,0,true:GPU-2,10,32768,100,NVIDIA-Tesla V100,0,false:"
NEW = (
    '[{"id":"GPU-1","count":10,"devmem":32768,"devcore":100,"type":"NVIDIA-Tesla V100",'
    '"numa":0,"health":true}]'
)


@pytest.mark.parametrize("written", [OLD, NEW], ids=["fields", "json"])
def test_healthy_devices_in_the_hami_annotation_are_offered(written: str) -> None:
    offer = add_hami_devices("n1", {WHOLE: 10}, {ANNOTATION: written})
    assert offer == {WHOLE: 10, CORES: 100, MEMORY: 32768}
    assert device_product({ANNOTATION: written}) == "NVIDIA-Tesla V100"


@pytest.mark.parametrize(
    "written", ['[{"x":' + "[" * 5000, "[", "GPU-1,10", '[{"devmem":-1}]', "a,b,c,d,e,f,g:", "{}"]
)
def test_invalid_hami_annotation_offers_nothing(written: str) -> None:
    assert add_hami_devices("n1", {WHOLE: 10}, {ANNOTATION: written}) == {WHOLE: 10}


def test_plain_nodes_and_hami_nodes_can_be_in_one_pool() -> None:
    hami = {WHOLE: 20, CORES: 200, MEMORY: 81920}
    pools = nodes(("plain", {}, {WHOLE: 8}), ("hami", {}, hami))
    scale = pools.scale()
    assert set(scale.size.values()) == {Fraction(10)}
    for pod in ({WHOLE: 1}, {WHOLE: 1, CORES: 100, MEMORY: 40960}):
        assert max(scale.demand_in_grains(DEFAULT, pod).values()) == scale.total_grains // 10
    floor = pools.nodes_by_pool[DEFAULT]
    assert floor.find_assignment((({WHOLE: 1}, 10),)) is not None
    assert floor.find_assignment((({WHOLE: 1}, 11),)) is None
    assert floor.find_assignment((({WHOLE: 1, CORES: 10}, 20),)) is not None
    pools.drop_node(NodeName("hami"))
    scale = pools.scale()
    assert (scale.size, scale.columns) == ({WHOLE: 8}, {})
    assert pools.nodes_by_pool[DEFAULT].find_assignment((({WHOLE: 1}, 8),)) is not None


def test_resource_without_ready_capacity_is_not_counted() -> None:
    pools = nodes(("a", {}, {SLICE: 7}))
    there = pools.scale()
    pools.put_node(Node(NodeName("a"), {}, {SLICE: 7}, False))
    away = pools.scale()
    assert (there.counted_resources, away.counted_resources) == ({SLICE}, frozenset())
    assert not there.counts_same_amounts(away), "what was noted meanwhile must be counted anew"


def test_a_node_of_parts_may_become_ready_after_it_was_seen() -> None:
    offer = {WHOLE: 20, CORES: 200}
    pools = Pools(MANAGED)
    pools.put_node(Node(NodeName("a"), {}, offer, False))
    pools.rebuild_if_stale()
    assert pools.scale().size == {}
    pools.put_node(Node(NodeName("a"), {}, offer, True))
    assert set(pools.scale().size.values()) == {Fraction(2)}
    asked = {WHOLE: 1, CORES: 60}
    assert pools.nodes_by_pool[DEFAULT].find_assignment(((asked, 2),)) is not None
    assert pools.nodes_by_pool[DEFAULT].find_assignment(((asked, 3),)) is None
