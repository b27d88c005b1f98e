"""Topology of gangs: one domain if required, else as few domains as possible."""

from __future__ import annotations

import pytest

from app.core.model import Amounts, NodeName, PlacementStrategy, Resource, TopologyConstraint
from app.core.placement.pool_nodes import PoolNodes
from app.core.placement.topology import domain_nodes
from app.core.podspec.equivalence_class import GangLayout, Parts
from app.core.quantities import CPU

GPU = Resource("nvidia.com/gpu")
ZONE, RACK, CLIQUE = "zone", "rack", "nvidia.com/gpu.clique"
MUST, MAY = (
    GangLayout(topology=TopologyConstraint(RACK, True)),
    GangLayout(topology=TopologyConstraint(RACK)),
)
ONE: Amounts = {GPU: 1}


def floor(
    *nodes: tuple[str, str, int],
    levels: tuple[str, ...] = (ZONE, RACK),
    style: PlacementStrategy = PlacementStrategy.PACK,
) -> PoolNodes:
    """Return pool nodes, each written as its name, `zone/rack`, and its devices."""
    found = PoolNodes(style, topology=levels)
    for name, place, gpus in nodes:
        zone, _, rack = place.partition("/")
        labels = {key: value for key, value in ((ZONE, zone), (RACK, rack)) if value}
        found.set_node(NodeName(name), {GPU: gpus, CPU: 64_000}, {}, True, labels)
    return found


def stand(
    nodes: PoolNodes, count: int, manner: GangLayout, demand: Amounts = ONE
) -> list[str] | None:
    plan = nodes.find_assignment(((demand, count),), manner=manner)
    return None if plan is None else sorted(plan.nodes)


def test_a_gang_that_must_takes_the_tightest_domain_that_holds_it() -> None:
    nodes = floor(("a", "z/r1", 8), ("b", "z/r2", 4), ("c", "z/r3", 6), ("d", "z/r3", 1))
    assert stand(nodes, 4, MUST) == ["b"] * 4
    assert set(stand(nodes, 5, MUST) or ()) == {"c", "d"}
    assert stand(nodes, 7, MUST) == ["c"] * 6 + ["d"]
    assert stand(nodes, 8, MUST) == ["a"] * 8


def test_gang_with_a_required_domain_waits_although_the_pool_has_capacity() -> None:
    nodes = floor(("a", "z/r1", 8), ("b", "z/r2", 8))
    assert stand(nodes, 9, MUST) is None
    assert stand(nodes, 9, MAY) is not None


def test_nodes_without_the_label_are_in_no_domain() -> None:
    nodes = floor(("a", "z", 8), ("b", "z", 8), ("c", "z/r1", 4))
    assert stand(nodes, 4, MUST) == ["c"] * 4
    assert stand(nodes, 5, MUST) is None
    assert stand(nodes, 5, MAY) is not None


def test_a_label_that_the_pool_does_not_list_is_no_level_of_it() -> None:
    nodes = floor(("a", "z/r1", 8), levels=(ZONE,))
    assert stand(nodes, 2, MUST) is None
    assert stand(nodes, 2, MAY) == ["a", "a"]


def test_preferred_gang_takes_the_fewest_domains_and_the_tightest_one_last() -> None:
    nodes = floor(("a", "z/r1", 4), ("b", "z/r2", 8), ("c", "z/r3", 3), ("d", "z/r4", 6))
    assert stand(nodes, 8, MAY) == ["b"] * 8
    assert stand(nodes, 11, MAY) == ["b"] * 8 + ["c"] * 3
    assert set(stand(nodes, 15, MAY) or ()) == {"b", "c", "d"}


def test_gang_without_a_constraint_takes_the_narrowest_domain_that_fits() -> None:
    nodes = floor(("a", "z1/r1", 3), ("b", "z1/r2", 8), ("c", "z2/r3", 5), ("d", "z2/r4", 5))
    anyhow = GangLayout()
    assert stand(nodes, 3, anyhow) == ["a"] * 3
    assert stand(nodes, 5, anyhow) == ["c"] * 5
    assert stand(nodes, 9, anyhow) == ["c"] * 5 + ["d"] * 4  # one zone, and the tighter one
    assert stand(nodes, 11, anyhow) == ["a"] * 3 + ["b"] * 8


def test_gang_in_a_wide_domain_uses_the_fewest_narrow_domains() -> None:
    nodes = floor(*((f"n{i}", f"z/r{i // 2}", 4) for i in range(8)))
    manner = GangLayout(topology=TopologyConstraint(ZONE, True))
    taken = stand(nodes, 16, manner)
    assert taken is not None
    assert {int(name[1:]) // 2 for name in taken} == {0, 1}


def test_an_nvlink_domain_is_a_level_like_any_other() -> None:
    nodes = PoolNodes(topology=(RACK, CLIQUE))
    for number in range(4):
        labels = {RACK: "r", CLIQUE: f"cluster.{number // 2}"}
        nodes.set_node(NodeName(f"n{number}"), {GPU: 4, CPU: 64_000}, {}, True, labels)
    nodes.allocate(NodeName("n0"), {GPU: 4})
    assert (
        stand(nodes, 8, GangLayout(topology=TopologyConstraint(CLIQUE, True)))
        == ["n2"] * 4 + ["n3"] * 4
    )


def test_domains_follow_allocations_releases_labels_and_dropped_nodes() -> None:
    nodes = floor(("a", "z/r1", 4), ("b", "z/r2", 4))
    assert stand(nodes, 4, MUST) == ["a"] * 4
    slot = nodes.allocate(NodeName("a"), {GPU: 1})
    assert stand(nodes, 4, MUST) == ["b"] * 4
    assert stand(nodes, 5, MUST) is None
    nodes.set_node(NodeName("b"), {GPU: 4, CPU: 64_000}, {}, True, {RACK: "r1"})
    assert set(stand(nodes, 5, MUST) or ()) == {"a", "b"}
    nodes.release_allocation(slot)
    assert stand(nodes, 8, MUST) is not None
    nodes.drop_node(NodeName("b"))
    assert stand(nodes, 5, MUST) is None
    assert stand(nodes, 4, MUST) == ["a"] * 4


def test_closed_node_does_not_count_in_its_domain() -> None:
    nodes = floor(("a", "z/r1", 4), ("b", "z/r1", 4))
    assert stand(nodes, 8, MUST) is not None
    nodes.set_node(NodeName("b"), {GPU: 4, CPU: 64_000}, {}, False, {RACK: "r1"})
    assert stand(nodes, 5, MUST) is None


def test_withheld_capacity_does_not_count_in_a_domain() -> None:
    nodes = floor(("a", "z/r1", 4), ("b", "z/r2", 8))
    parts: Parts = ((ONE, 4),)
    plan = nodes.find_assignment(parts, {NodeName("a"): {GPU: 1}}, manner=MUST)
    assert plan is not None
    assert set(plan.nodes) == {"b"}
    assert (
        nodes.find_assignment(parts, {NodeName("a"): ONE, NodeName("b"): {GPU: 5}}, manner=MUST)
        is None
    )


def test_pinned_pods_stay_in_one_domain_with_the_rest_of_the_gang() -> None:
    nodes = floor(("a", "z/r1", 4), ("b", "z/r2", 4))
    parts: Parts = (({GPU: 2}, 1), ({GPU: 1}, 2))
    plan = nodes.find_assignment(parts, pins=((NodeName("b"),), None), manner=MUST)
    assert plan is not None
    assert plan.nodes == ("b", "b", "b")


def test_unlike_pods_of_a_gang_stay_in_one_domain() -> None:
    nodes = floor(("a", "z/r1", 6), ("b", "z/r2", 4), ("c", "z/r2", 4))
    plan = nodes.find_assignment((({GPU: 4}, 1), ({GPU: 1}, 4)), manner=MUST)
    assert plan is not None
    assert set(plan.nodes) == {"b", "c"}


def test_rest_of_a_gang_gets_the_domain_of_its_running_pods() -> None:
    nodes = floor(("a", "z/r1", 8), ("b", "z/r2", 2))
    beside = GangLayout(topology=TopologyConstraint(RACK, True), gang_nodes=(NodeName("a"),))
    assert stand(nodes, 1, beside) == ["a"]
    nodes.allocate(NodeName("a"), {GPU: 8})
    assert stand(nodes, 1, beside) is None


def test_rest_of_a_gang_waits_if_its_required_domain_is_unknown() -> None:
    nodes = floor(("a", "z/r1", 8), ("b", "z/r2", 2))
    lost = NodeName("gone")
    assert (
        stand(nodes, 1, GangLayout(topology=TopologyConstraint(RACK, True), gang_nodes=(lost,)))
        is None
    )
    assert (
        domain_nodes(
            nodes.domains, GangLayout(topology=TopologyConstraint(RACK, True), gang_nodes=(lost,))
        )
        == []
    )
    assert stand(nodes, 1, GangLayout(topology=TopologyConstraint(RACK), gang_nodes=(lost,))) == [
        "b"
    ]
    some = GangLayout(topology=TopologyConstraint(RACK, True), gang_nodes=(lost, NodeName("a")))
    assert stand(nodes, 1, some) == ["a"]
    assert domain_nodes(nodes.domains, some) == [frozenset({"a"})]


def test_a_spread_gang_is_spread_within_its_domain() -> None:
    nodes = floor(("a", "z/r1", 4), ("b", "z/r2", 4), ("c", "z/r2", 4))
    spread = GangLayout(PlacementStrategy.SPREAD, TopologyConstraint(RACK, True))
    assert stand(nodes, 2, spread) == ["b", "c"]
    assert stand(nodes, 3, GangLayout(PlacementStrategy.SPREAD)) == ["a", "b", "c"]


def test_a_spread_gang_takes_racks_in_turn_and_nodes_in_turn_within_them() -> None:
    nodes = floor(*((f"a{i}", "z/r1", 8) for i in range(4)), ("b", "z/r2", 8), ("c", "y/r3", 1))
    assert stand(nodes, 2, GangLayout(PlacementStrategy.SPREAD)) == ["a0", "c"]
    assert stand(nodes, 5, GangLayout(PlacementStrategy.SPREAD)) == ["a0", "a1", "b", "b", "c"]
    assert stand(nodes, 41, GangLayout(PlacementStrategy.SPREAD)) is not None
    assert stand(nodes, 42, GangLayout(PlacementStrategy.SPREAD)) is None


def test_spread_gang_leaves_withheld_capacity_free() -> None:
    nodes = floor(("a", "z/r1", 4), ("b", "z/r2", 4))
    plan = nodes.find_assignment(
        ((ONE, 4),), {NodeName("a"): {GPU: 3}}, manner=GangLayout(PlacementStrategy.SPREAD)
    )
    assert plan is not None
    assert sorted(plan.nodes) == ["a", "b", "b", "b"]
    assert (
        nodes.find_assignment(
            ((ONE, 6),), {NodeName("a"): {GPU: 3}}, manner=GangLayout(PlacementStrategy.SPREAD)
        )
        is None
    )


@pytest.mark.parametrize("pool", PlacementStrategy)
def test_placement_strategy_of_the_pod_overrides_that_of_the_pool(pool: PlacementStrategy) -> None:
    nodes = floor(("a", "", 4), ("b", "", 8), levels=(), style=pool)
    nodes.allocate(NodeName("a"), {GPU: 1})
    assert stand(nodes, 1, GangLayout(PlacementStrategy.PACK)) == ["a"]
    assert stand(nodes, 1, GangLayout(PlacementStrategy.SPREAD)) == ["b"]


def test_figures_of_domains_that_are_gone_are_dropped() -> None:
    floor = PoolNodes(topology=("host",))
    for number in range(100):
        name = NodeName(f"n{number}")
        floor.set_node(name, {GPU: 8}, {}, True, {"host": name})
        floor.drop_node(NodeName(f"n{number - 5}"))
        assert floor.find_assignment((({GPU: 1}, 2),)) is not None
    [figures] = floor.domains._figures.values()
    assert len(figures.by_domain) == 5


def test_cached_numbers_of_pods_are_bounded_by_the_present_states() -> None:
    floor = PoolNodes()
    for number in range(20):
        floor.set_node(NodeName(f"n{number}"), {GPU: 8, CPU: 10**9}, {}, True)
    running = []
    for number in range(1000):
        plan = floor.find_assignment((({GPU: 1}, 1),))
        assert plan is not None
        [name] = plan.nodes
        assert name is not None
        running.append(floor.allocate(name, {GPU: 1, CPU: 1 + number * number}))
        if len(running) > 100:
            floor.release_allocation(running.pop(number * 7 % 100))
        assert floor.find_assignment((({GPU: 1}, 2),)) is not None
    assert max(len(ranking._capacities) for ranking in floor._rankings.values()) < 320
