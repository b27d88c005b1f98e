"""Assignment of pods to the nodes of a pool, rule by rule."""

from __future__ import annotations

import pytest

from app.core.model import Amounts, NodeName, PlacementStrategy, PoolName, Resource
from app.core.placement.fragmentation import PodMix
from app.core.placement.pool_nodes import PoolNodes
from app.core.podspec.equivalence_class import Parts

GPU = Resource("nvidia.com/gpu")
CPU = Resource("cpu")
PODS = Resource("pods")
MILLE = {GPU: 1000}


def pool(
    style: PlacementStrategy = PlacementStrategy.PACK, mix: PodMix | None = None, **nodes: Amounts
) -> PoolNodes:
    made = PoolNodes(style, mix)
    for name, offer in nodes.items():
        made.set_node(NodeName(name), offer, {}, True)
    return made


def sold_in_fractions(**devices: int) -> PoolNodes:
    made = PoolNodes()
    for name, count in devices.items():
        made.set_node(NodeName(name), {GPU: 1000 * count}, MILLE, True)
    return made


def one(**amounts: int) -> Parts:
    return gang(1, **amounts)


def gang(count: int, **amounts: int) -> Parts:
    names = {"gpu": GPU, "cpu": CPU, "pods": PODS}
    return (({names.get(name, Resource(name)): v for name, v in amounts.items()}, count),)


def places(nodes: PoolNodes, parts: Parts, withheld: dict[str, Amounts] | None = None) -> list[str]:
    plan = nodes.find_assignment(
        parts, {NodeName(name): room for name, room in (withheld or {}).items()}
    )
    return [] if plan is None else list(plan.nodes)


def fill(nodes: PoolNodes, name: str, **amounts: int) -> None:
    nodes.allocate(NodeName(name), one(**amounts)[0][0])


def test_pod_fits_only_if_every_requested_resource_is_free() -> None:
    nodes = pool(a={GPU: 8, CPU: 3000}, b={GPU: 8, CPU: 4000}, c={GPU: 1, CPU: 9000})
    assert places(nodes, one(gpu=2, cpu=4000)) == ["b"]
    assert places(nodes, one(gpu=2, cpu=4001)) == []


def test_request_of_zero_fits_without_the_resource() -> None:
    nodes = pool(a={CPU: 1000}, b={CPU: 1000})
    assert places(nodes, one(gpu=0, cpu=1000)) == ["a"]


def test_resource_that_no_node_offers_fits_nowhere_until_a_node_offers_it() -> None:
    nodes = pool(a={CPU: 1000}, b={CPU: 1000})
    wanted = one(gpu=1)
    assert places(nodes, wanted) == []
    nodes.set_node(NodeName("c"), {GPU: 1}, {}, True)
    assert places(nodes, wanted) == ["c"]


@pytest.mark.parametrize("count", [1, 2])
def test_pods_on_a_node_are_counted(count: int) -> None:
    nodes = pool(**{f"n{i}": {GPU: 8, PODS: 1} for i in range(count)})
    for _ in range(count):
        nodes.allocate(NodeName(places(nodes, one(gpu=1, pods=1))[0]), one(gpu=1, pods=1)[0][0])
    assert places(nodes, one(gpu=1, pods=1)) == []


def test_closed_node_gets_no_more_pods() -> None:
    nodes = pool(a={GPU: 8}, b={GPU: 8})
    nodes.set_node(NodeName("a"), {GPU: 8}, {}, False)
    assert places(nodes, one(gpu=1)) == ["b"]
    assert places(nodes, gang(2, gpu=8)) == []


def test_dropped_node_gets_no_pods_and_loses_its_allocations() -> None:
    nodes = pool(a={GPU: 8}, b={GPU: 4})
    slot = nodes.allocate(NodeName("a"), {GPU: 3})
    nodes.drop_node(NodeName("a"))
    assert places(nodes, one(gpu=8)) == []
    nodes.set_node(NodeName("a"), {GPU: 8}, {}, True)
    nodes.release_allocation(slot)
    assert nodes.free(NodeName("a")) == {GPU: 8}


def test_allocations_remain_if_a_node_changes() -> None:
    nodes = pool(a={GPU: 8}, b={GPU: 1})
    fill(nodes, "a", gpu=3)
    nodes.set_node(NodeName("a"), {GPU: 4}, {}, True)
    assert nodes.free(NodeName("a")) == {GPU: 1}
    assert places(nodes, one(gpu=2)) == []


def test_allocation_on_an_unknown_node_counts_when_the_node_appears() -> None:
    nodes = pool(b={GPU: 8})
    slot = nodes.allocate(NodeName("a"), {GPU: 6})
    assert nodes.free(NodeName("a")) == {}
    nodes.set_node(NodeName("a"), {GPU: 8}, {}, True)
    assert nodes.free(NodeName("a")) == {GPU: 2}
    nodes.release_allocation(slot)
    assert nodes.free(NodeName("a")) == {GPU: 8}


def test_allocation_counts_against_a_resource_that_is_offered_later() -> None:
    nodes = pool(a={CPU: 1000}, b={CPU: 1000})
    nodes.allocate(NodeName("a"), {CPU: 1, GPU: 2})
    nodes.set_node(NodeName("a"), {CPU: 1000, GPU: 3}, {}, True)
    assert nodes.free(NodeName("a")) == {CPU: 999, GPU: 1}


def test_allocations_beyond_the_capacity_count_in_full() -> None:
    nodes = pool(a={GPU: 2}, b={GPU: 1})
    slots = [nodes.allocate(NodeName("a"), {GPU: 2}) for _ in range(2)]
    assert nodes.free(NodeName("a")) == {GPU: -2}
    nodes.release_allocation(slots[0])
    assert places(nodes, one(gpu=2)) == []
    nodes.release_allocation(slots[1])
    assert places(nodes, one(gpu=2)) == ["a"]


def test_second_release_of_an_allocation_has_no_effect() -> None:
    nodes = pool(a={GPU: 2}, b={GPU: 2})
    slot = nodes.allocate(NodeName("a"), {GPU: 1})
    nodes.release_allocation(slot)
    nodes.release_allocation(slot)
    assert nodes.free(NodeName("a")) == {GPU: 2}


def test_packing_prefers_the_node_with_least_left() -> None:
    nodes = pool(a={GPU: 8}, b={GPU: 3}, c={GPU: 2})
    assert places(nodes, one(gpu=3)) == ["b"]
    assert places(nodes, gang(3, gpu=2)) == ["c", "b", "a"]


def test_spreading_prefers_the_node_with_most_free() -> None:
    nodes = pool(PlacementStrategy.SPREAD, a={GPU: 3}, b={GPU: 4}, c={GPU: 2})
    assert places(nodes, gang(4, gpu=1)) == ["b", "a", "b", "a"]


@pytest.mark.parametrize("style", list(PlacementStrategy))
def test_equal_nodes_are_taken_by_name(style: PlacementStrategy) -> None:
    nodes = pool(style, c={GPU: 4}, a={GPU: 4, CPU: 5}, b={GPU: 4})
    assert places(nodes, one(gpu=4)) == ["a"]
    assert places(nodes, gang(3, gpu=4)) == ["a", "b", "c"]


def test_pods_without_devices_leave_devices_alone() -> None:
    nodes = pool(a={GPU: 8, CPU: 8000}, b={CPU: 64000}, c={GPU: 1, CPU: 8000})
    assert places(nodes, gang(10, cpu=8000)) == ["b"] * 8 + ["c", "a"]


def test_pods_without_devices_avoid_the_cores_that_devices_need() -> None:
    mix = PodMix()
    mix.count_workload(one(gpu=1, cpu=4000))
    nodes = pool(PlacementStrategy.PACK, mix, a={GPU: 1, CPU: 8000}, b={GPU: 8, CPU: 40000})
    assert places(nodes, one(cpu=6000)) == ["b"]


def test_node_with_few_cores_per_device_is_used_first_by_pods_without_cores() -> None:
    mix = PodMix()
    mix.count_workload(one(gpu=1, cpu=10_000))
    nodes = pool(PlacementStrategy.PACK, mix, a={GPU: 4, CPU: 40_000}, b={GPU: 4, CPU: 20_000})
    assert places(nodes, gang(2, gpu=1)) == ["b", "b"]


def test_devices_that_typical_pods_cannot_use_cost_nothing() -> None:
    mix = PodMix()
    mix.count_workload(one(gpu=3))
    nodes = pool(PlacementStrategy.PACK, mix, a={GPU: 6}, b={GPU: 8})
    assert places(nodes, gang(3, gpu=1)) == ["b", "b", "a"]


def test_a_node_is_not_broken_that_larger_pods_could_use() -> None:
    wanted = one(gpu=1)
    mix = PodMix()
    nodes = pool(PlacementStrategy.PACK, mix, a={GPU: 3}, b={GPU: 2})
    assert places(nodes, wanted) == ["b"]  # best fit: no sample of other pods exists
    mix.count_workload(one(gpu=2))
    assert places(nodes, wanted) == ["a"]


def test_small_pool_is_spared_for_pods_that_can_use_no_other() -> None:
    few, many = PoolName("few"), PoolName("many")
    mix = PodMix()
    pools = {name: PoolNodes(PlacementStrategy.PACK, mix, name) for name in (few, many)}
    pools[few].set_node(NodeName("f"), {GPU: 4}, {}, True)
    for name in ("m1", "m2", "m3"):
        pools[many].set_node(NodeName(name), {GPU: 8}, {}, True)
    anywhere = one(gpu=1)
    for allowed, count in (((few, many), 3), ((many,), 2), ((few,), 1)):
        mix.count_workload(gang(count, gpu=1), allowed)
    costs = {name: plan.cost for name in pools if (plan := pools[name].find_assignment(anywhere))}
    assert costs[many] < costs[few]


def test_costs_of_pools_compare_the_fit() -> None:
    mix = PodMix()
    mix.count_workload(one(gpu=4))
    tight, wide = (
        pool(PlacementStrategy.PACK, mix, a={GPU: 1}),
        pool(PlacementStrategy.PACK, mix, b={GPU: 4}, c={GPU: 4}),
    )
    plans = [nodes.find_assignment(one(gpu=1)) for nodes in (tight, wide)]
    assert plans[0] is not None
    assert plans[1] is not None
    assert plans[0].cost < plans[1].cost


def test_a_gang_is_placed_whole_or_not_at_all() -> None:
    nodes = pool(a={GPU: 4}, b={GPU: 4}, c={GPU: 1})
    assert places(nodes, gang(2, gpu=3)) == ["a", "b"]
    assert places(nodes, gang(3, gpu=3)) == []


def test_the_largest_pods_of_a_gang_choose_first() -> None:
    nodes = pool(PlacementStrategy.SPREAD, a={GPU: 4}, b={GPU: 3})
    mixed = (({GPU: 1}, 1), ({GPU: 4}, 1))
    assert places(nodes, mixed) == ["b", "a"]


def test_finding_an_assignment_allocates_nothing() -> None:
    nodes = pool(a={GPU: 4}, b={GPU: 4})
    assert [places(nodes, gang(2, gpu=4)) for _ in range(2)] == [["a", "b"]] * 2
    assert nodes.free(NodeName("a")) == {GPU: 4}


@pytest.mark.parametrize("others", [{}, {"z": {CPU: 1}}])
def test_withheld_capacity_is_left_free(others: dict[str, Amounts]) -> None:
    nodes = pool(a={GPU: 4}, **others)
    assert places(nodes, gang(2, gpu=1), {"a": {GPU: 2}}) == ["a", "a"]
    assert places(nodes, gang(3, gpu=1), {"a": {GPU: 2}}) == []
    assert places(nodes, gang(4, gpu=1), {"elsewhere": {GPU: 2}}) == ["a"] * 4


def test_pod_gets_another_node_if_capacity_is_withheld() -> None:
    nodes = pool(a={GPU: 2}, b={GPU: 4})
    assert places(nodes, one(gpu=2)) == ["a"]
    assert places(nodes, one(gpu=2), {"a": {GPU: 1}}) == ["b"]


def test_withheld_capacity_can_exceed_the_capacity_of_the_node() -> None:
    nodes = sold_in_fractions(a=2, b=1)
    assert places(nodes, one(gpu=500), {"a": {GPU: 2500}}) == ["b"]


def test_capacity_of_a_released_allocation_is_found() -> None:
    nodes = pool(a={GPU: 2}, b={GPU: 1})
    wanted = one(gpu=2)
    slot = nodes.allocate(NodeName("a"), {GPU: 1})
    assert places(nodes, wanted) == []
    nodes.release_allocation(slot)
    assert places(nodes, wanted) == ["a"]


def test_fraction_is_allocated_on_a_single_device() -> None:
    nodes = sold_in_fractions(a=2)
    for _ in range(2):
        fill(nodes, "a", gpu=600)
    assert nodes.free(NodeName("a")) == {GPU: 800}
    assert places(nodes, one(gpu=500)) == []
    assert places(nodes, gang(2, gpu=400)) == ["a", "a"]


def test_fraction_is_allocated_on_the_device_with_the_least_free_capacity() -> None:
    nodes = sold_in_fractions(a=3)
    demands = ({GPU: 700}, {GPU: 500}, {GPU: 300}, {GPU: 500})
    slots = [nodes.allocate(NodeName("a"), demand) for demand in demands]
    assert [slot.devices(GPU) for slot in slots] == [
        [(0, 700)],
        [(1, 500)],
        [(0, 300)],
        [(1, 500)],
    ]


def test_whole_devices_are_allocated_from_unused_devices() -> None:
    nodes = sold_in_fractions(a=2)
    fill(nodes, "a", gpu=10)
    assert places(nodes, one(gpu=1000)) == ["a"]
    assert places(nodes, one(gpu=2000)) == []
    assert places(nodes, one(gpu=1990)) == ["a"]
    assert places(nodes, one(gpu=1991)) == []


def test_released_devices_are_whole_again() -> None:
    nodes = sold_in_fractions(a=2)
    slots = [nodes.allocate(NodeName("a"), {GPU: value}) for value in (300, 1200, 400)]
    assert places(nodes, one(gpu=1000)) == []
    for slot in slots:
        nodes.release_allocation(slot)
    assert places(nodes, one(gpu=2000)) == ["a"]


def test_a_pod_that_overfills_gets_its_devices_as_others_leave() -> None:
    nodes = sold_in_fractions(a=1)
    first, second = (nodes.allocate(NodeName("a"), {GPU: 700}) for _ in range(2))
    assert (first.has_fitting_devices, second.has_fitting_devices) == (True, False)
    nodes.release_allocation(first)
    assert second.has_fitting_devices
    assert nodes.free(NodeName("a")) == {GPU: 300}
    assert places(nodes, one(gpu=300)) == ["a"]


def test_a_node_may_gain_devices_while_pods_sit_on_it() -> None:
    nodes = sold_in_fractions(a=1)
    slots = [nodes.allocate(NodeName("a"), {GPU: 700}) for _ in range(2)]
    nodes.set_node(NodeName("a"), {GPU: 2000}, MILLE, True)
    assert [slot.has_fitting_devices for slot in slots] == [True, True]
    assert places(nodes, one(gpu=600)) == []
    assert places(nodes, gang(2, gpu=300)) == ["a", "a"]


def test_an_odd_remainder_is_a_small_device() -> None:
    nodes = PoolNodes()
    nodes.set_node(NodeName("a"), {GPU: 1500}, MILLE, True)
    assert places(nodes, one(gpu=1500)) == ["a"]
    assert places(nodes, gang(2, gpu=600)) == []


def test_kinds_beyond_the_cached_rankings_get_the_right_node() -> None:
    nodes = pool(a={CPU: 10**6}, b={CPU: 10**6})
    fill(nodes, "b", cpu=1)
    kinds = [one(cpu=value) for value in range(1, PoolNodes.RANKINGS + 20)]
    assert [places(nodes, kind) for kind in kinds + kinds[:3]] == [["b"]] * (len(kinds) + 3)


def test_only_pods_with_devices_make_the_mix() -> None:
    mix = PodMix()
    mix.count_workload(one(cpu=1000, pods=1))
    mix.count_workload((({CPU: 1, PODS: 1}, 1), ({GPU: 2}, 3)))
    assert mix.renew_sample()
    assert [(kind[0], count) for kind, count in mix.sample] == [(((GPU, 2),), 3)]


def test_sample_is_renewed_when_the_number_of_pods_has_doubled() -> None:
    mix = PodMix()
    wanted = one(gpu=1)
    drawn = []
    for _ in range(16):
        mix.count_workload(wanted)
        drawn.append(mix.renew_sample())
    assert [number for number, new in enumerate(drawn, 1) if new] == [1, 2, 4, 8, 16]


def test_mix_gives_recent_pods_more_weight() -> None:
    mix = PodMix()
    for size in (1, 2):
        parts = gang(PodMix.MEMORY, gpu=size)
        for _ in range(4):
            mix.count_workload(parts)
            mix.renew_sample()
    mix.count_workload(gang(PodMix.MEMORY, gpu=2))
    mix.renew_sample()
    (newest, count), (oldest, before) = mix.sample
    assert (newest[0], oldest[0]) == (((GPU, 2),), ((GPU, 1),))
    assert count > 4 * before


def test_the_mix_remembers_a_bounded_number_of_kinds() -> None:
    mix = PodMix()
    for size in range(1, 10 * PodMix.KINDS):
        mix.count_workload(gang(1 + (size == 7), gpu=size))
    mix.renew_sample()
    assert len(mix.sample) == PodMix.SAMPLE
    assert mix.kinds <= 4 * PodMix.KINDS


@pytest.mark.parametrize(("pods", "left"), [(0, 0), (1000, 600)])
def test_requests_of_deleted_pods_are_dropped(pods: int, left: int) -> None:
    nodes = pool(a={GPU: 8})
    kept = [one(gpu=1) for _ in range(600)]
    for parts in kept:
        nodes.find_assignment(parts)
    nodes.trim_caches(pods)
    assert len(nodes._requests) == left
