"""A gang with mutual anti-affinity is refused without a search for each pod or domain."""

from __future__ import annotations

from dataclasses import replace

import pytest

from app.core.model import Node, Pod, Pool, PoolName, TopologyConstraint
from app.core.podspec.constraints import DistanceRuleKind, PodDistanceRule
from tests.support.call_counts import calls_of
from tests.support.engine_bench import Bench
from tests.support.placement_bench import asks
from tests.support.placement_bench import node as plain_node

HOST, ZONE = "kubernetes.io/hostname", "zone"
POOL = Pool(PoolName("g"), {}, topology=(ZONE, HOST))
TERMS = 5


def node(name: str, zone: str = "z") -> Node:
    return replace(plain_node(name), labels={HOST: name, ZONE: zone})


def gang(name: str, size: int, label: str = "", key: str = HOST) -> list[Pod]:
    """Return pods that exclude each other by several terms, in one domain of a label if given."""
    rules = tuple(
        PodDistanceRule(DistanceRuleKind.APART, key, f"{name}-{term}") for term in range(TERMS)
    )
    within = TopologyConstraint(label, True) if label else None
    return [
        asks(f"{name}-{i}", 1, distance_rules=rules, gang=name, gang_size=size, topology=within)
        for i in range(size)
    ]


def calls_of_later_pass(bench: Bench) -> int:
    """Return the calls of a pass after one more pod was created."""
    bench.see(asks("first", 1))
    return calls_of(lambda: bench.see(asks("second", 1)))


def test_gang_with_more_pods_than_domains_costs_little_more_the_more_pods_it_has() -> None:
    calls = []
    for size in (20, 80):
        bench = Bench(*(node(f"n{i:03}") for i in range(size)), pools=(POOL,))
        bench.see(*gang("g", size + 1))
        calls.append(calls_of_later_pass(bench))
        assert sorted(bench.released) == ["first", "second"]
    assert calls[1] < 2 * calls[0]


def test_gang_confined_to_one_node_costs_nothing_for_each_node() -> None:
    calls = []
    for nodes in (50, 100):
        bench = Bench(*(node(f"n{i:03}") for i in range(nodes)), pools=(POOL,))
        bench.see(*(pod for number in range(8) for pod in gang(f"g{number}", 2, HOST)))
        calls.append(calls_of_later_pass(bench))
        assert sorted(bench.released) == ["first", "second"]
    assert calls[1] < 1.5 * calls[0]


@pytest.mark.parametrize("label", ["", ZONE])
def test_gang_is_released_as_soon_as_a_domain_is_large_enough(label: str) -> None:
    bench = Bench(node("a1", "a"), node("b1", "b"), pools=(POOL,))
    bench.see(*gang("g", 3, label))
    assert bench.released == {}
    bench.put(node("b2", "b"))
    assert len(bench.released) == (0 if label else 3)
    bench.put(node("b3", "b"))
    assert len(bench.released) == 3


def test_nodes_without_the_label_are_in_no_domain_and_may_hold_any_number_of_pods() -> None:
    bench = Bench(plain_node("a"), pools=(POOL,))
    bench.see(*gang("g", 3, key=ZONE))
    assert len(bench.released) == 3


def test_topology_spread_that_opens_nodes_later_is_still_searched() -> None:
    bench = Bench(node("a1", "a"), node("b1", "b"), pools=(POOL,))
    even = PodDistanceRule(DistanceRuleKind.EVEN, ZONE, "even")
    pods = [replace(pod, distance_rules=(*pod.distance_rules, even)) for pod in gang("g", 2)]
    bench.see(replace(asks("zone-a", 1, distance_rules=(even,)), selector={ZONE: "a"}))
    bench.see(*pods)
    assert bench.released["zone-a"] == "a1"
    assert sorted(filter(None, (bench.released.get(pod.name) for pod in pods))) == ["a1", "b1"]
