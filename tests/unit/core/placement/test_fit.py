"""The engine releases no pod to a node that kube-scheduler would refuse, and follows changes."""

from __future__ import annotations

from dataclasses import replace

import pytest

from app.core import events as ev
from app.core.explain.reasons import Rule
from app.core.model import Millis, NodeName, PlacementStrategy, Pool, PoolName
from app.core.placement.assignment import MAX_SINGLE_EVALUATIONS
from app.core.placement.node_filter import NodeFilter, node_constraints_of
from app.core.placement.pool_nodes import PoolNodes
from app.core.podspec.constraints import (
    NodeConstraints,
    Taint,
    Toleration,
)
from app.core.quantities import PODS
from tests.support.engine_bench import GPU, Bench
from tests.support.placement_bench import asks, near, node

ML = Taint("dedicated", "ml")
BEARS_ML = Toleration("dedicated", "Equal", "ml", "NoSchedule")
BEARS_ALL = Toleration("", "Exists")


def test_pod_gets_no_node_with_a_taint_that_it_does_not_tolerate() -> None:
    bench = Bench(node("a", ML), node("b"))
    bench.see(asks("p"), asks("q"))
    assert bench.released == {"p": "b"}
    bench.see(asks("r", tolerations=(BEARS_ML,)))
    assert bench.released == {"p": "b", "r": "a"}


def test_reason_names_the_taint_if_a_pod_tolerates_no_node() -> None:
    bench = Bench(node("a", ML), node("b", ML, Taint("x")))
    pod = asks("p")
    bench.see(pod)
    why = bench.engine.queries.explain_wait(pod.uid)
    assert why is not None
    assert why.rule is Rule.NO_POOL
    assert "it does not tolerate dedicated=ml:NoSchedule, the taint of every node" in why.text


def test_removed_taint_admits_pods_and_new_taint_excludes_them() -> None:
    bench = Bench(node("a", ML))
    bench.see(asks("p", 4))
    assert bench.released == {}
    bench.put(node("a"))
    assert bench.released == {"p": "a"}
    bench.put(node("a", ML))
    bench.see(asks("q", 4))
    assert bench.released == {"p": "a"}
    bench.put(node("a", Taint("x", "", "PreferNoSchedule")))
    assert bench.released == {"p": "a", "q": "a"}


def test_pod_stays_queued_while_its_only_node_is_not_ready() -> None:
    bench = Bench(node("a", ready=False), node("b", ML))
    pod = asks("p")
    bench.see(pod)
    assert bench.text(pod).startswith("queued: 1 of 1")
    assert "none of the nodes it may go to is ready" in bench.text(pod)
    bench.put(node("a"))
    assert bench.released == {"p": "a"}


def test_tolerations_of_a_pool_count_as_the_pods_and_are_added_at_release() -> None:
    pools = (Pool(PoolName("ml"), {"kind": "ml"}, tolerations=(BEARS_ML,)),)
    bench = Bench(node("a", ML, kind="ml"), pools=pools)
    own = Toleration("x", "Exists")
    bench.see(asks("p", 1), asks("q", 1, tolerations=(own,)), asks("r", 1, tolerations=(BEARS_ML,)))
    assert bench.released == {"p": "a", "q": "a", "r": "a"}
    added = {n: (o.tolerations, o.has_tolerations) for n, o in bench.orders.items()}
    assert added == {"p": ((BEARS_ML,), False), "q": ((BEARS_ML,), True), "r": ((), True)}


def test_new_pool_tolerations_release_a_waiting_pod() -> None:
    pool = Pool(PoolName("ml"), {"kind": "ml"})
    bench = Bench(node("a", ML, kind="ml"), pools=(pool,))
    bench.see(asks("p"))
    assert bench.released == {}
    bench.hear(ev.PoolObserved(Millis(1), replace(pool, tolerations=(BEARS_ALL,))))
    assert bench.released == {"p": "a"}


def test_affinity_and_selector_are_judged_against_each_node_not_against_the_pool() -> None:
    bench = Bench(node("a", zone="x"), node("b", zone="y"), node("c"))
    bench.see(
        asks("y", affinity=near("zone", "In", "y")),
        asks("y-too", selector={"zone": "y"}),
        asks("none", affinity=near("zone", "DoesNotExist")),
        asks("any"),
    )
    assert bench.released == {"y": "b", "none": "c", "any": "a"}


def test_pod_that_waits_for_its_nodes_does_not_delay_pods_of_other_nodes() -> None:
    bench = Bench(node("a", zone="x"), node("b", zone="y"))
    bench.see(asks("full", selector={"zone": "x"}))
    bench.see(asks("first", selector={"zone": "x"}), asks("second", selector={"zone": "y"}))
    assert bench.released == {"full": "a", "second": "b"}


def test_each_pod_of_a_gang_gets_a_node_that_its_own_constraints_allow() -> None:
    bench = Bench(node("a", ML), node("b"), node("c", zone="y"))
    gang: dict[str, object] = {"gang": "g", "gang_size": 3}
    bench.see(
        asks("bears", tolerations=(BEARS_ML,), selector={}, **gang),
        asks("in-y", affinity=near("zone", "In", "y"), **gang),
        asks("plain", **gang),
    )
    assert bench.released["in-y"] == "c"
    assert sorted(filter(None, bench.released.values())) == ["a", "b", "c"]
    assert bench.released["plain"] == "b"


def test_a_label_that_changes_moves_pods_to_the_pool_that_can_serve_them() -> None:
    pools = (Pool(PoolName("one"), {"kind": "one"}), Pool(PoolName("two"), {"kind": "two"}))
    bench = Bench(
        node("a", gpus=4, kind="one", zone="x"), node("b", gpus=4, kind="two"), pools=pools
    )
    pod = asks("p", selector={"zone": "x"})
    bench.see(pod)
    assert "pool one" in bench.text(pod)
    bench.put(node("a", gpus=4, kind="one"), node("b", gpus=4, kind="two", zone="x"))
    assert "of pool two" in bench.text(pod)
    bench.put(node("b", gpus=8, kind="two", zone="x"))
    assert bench.orders["p"].intent.pool == "two"


def test_released_pod_is_expected_on_another_node_after_its_node_is_tainted() -> None:
    bench = Bench(node("a"), node("b"))
    bench.see(asks("p", 8))
    assert bench.released == {"p": "a"}
    bench.put(node("a", ML))
    bench.see(asks("q", 8, tolerations=(BEARS_ML,)))
    assert bench.released == {"p": "a", "q": "a"}  # p is expected on b, which has free capacity
    bench.see(asks("r", 8, tolerations=(BEARS_ML,)))
    assert "r" not in bench.released


# --- node filter: the cache equals a new computation ---


def found(reach: NodeFilter, terms: NodeConstraints, pool: str) -> tuple[str, ...] | None:
    return reach.allowed_nodes(terms, None, PoolName(pool))


@pytest.fixture
def reach() -> NodeFilter:
    made = NodeFilter()
    made.reset_pools({PoolName(p): Pool(PoolName(p)) for p in ("p", "q")})
    for name in ("a", "b"):
        made.update_node(node(name, zone="x"), PoolName("p"))
    made.update_node(node("c", ML, zone="y"), PoolName("q"))
    return made


def test_allowed_nodes_are_listed_only_if_some_ready_node_is_excluded(reach: NodeFilter) -> None:
    plain, x = NodeConstraints(), NodeConstraints((("zone", "x"),))
    assert (found(reach, plain, "p"), found(reach, plain, "q")) == (None, ())
    assert (found(reach, x, "p"), found(reach, x, "q")) == (None, ())
    reach.update_node(node("a", zone="y"), PoolName("p"))
    assert found(reach, x, "p") == ("b",)
    reach.update_node(node("a", zone="y", ready=False), PoolName("p"))
    assert found(reach, x, "p") is None
    reach.drop_node(NodeName("b"))
    assert found(reach, x, "p") == ()


def test_a_node_that_changes_without_a_difference_changes_no_answer(reach: NodeFilter) -> None:
    plain = NodeConstraints()
    found(reach, plain, "p")
    before = reach.version
    reach.update_node(node("a", zone="x", ready=False), PoolName("p"))
    reach.update_node(node("a", zone="x", more="labels"), PoolName("p"))
    assert reach.version == before
    assert reach.drain_changed_constraints() == frozenset()
    reach.update_node(node("a", ML), PoolName("p"))
    assert reach.version > before
    assert reach.drain_changed_constraints() == frozenset()  # b still matches
    reach.update_node(node("b", ML), PoolName("p"))
    assert reach.drain_changed_constraints() == {plain}


def test_a_node_is_found_by_labels_that_came_later(reach: NodeFilter) -> None:
    z = NodeConstraints(affinity=near("zone", "In", "z", "zz"))
    assert found(reach, z, "p") == ()
    reach.update_node(node("b", zone="zz"), PoolName("p"))
    assert found(reach, z, "p") == ("b",)
    fresh = NodeConstraints(affinity=near("zone", "In", "zz"))
    assert found(reach, fresh, "p") == ("b",)


def test_default_tolerations_are_no_node_constraint() -> None:
    given = Toleration("node.kubernetes.io/not-ready", "Exists", "", "NoExecute", 300)
    assert node_constraints_of(asks("p", tolerations=(given,))) == NodeConstraints()


# --- many nodes: long node sets give the same result as short ones ---


@pytest.mark.parametrize("style", list(PlacementStrategy))
@pytest.mark.parametrize("count", [1, 5])
def test_long_list_of_allowed_nodes_gives_the_same_nodes_as_a_short_one(
    style: PlacementStrategy, count: int
) -> None:
    names = [NodeName(f"n{number:03d}") for number in range(3 * MAX_SINGLE_EVALUATIONS)]
    nodes = PoolNodes(style)
    for number, name in enumerate(names):
        nodes.set_node(name, {GPU: 1 + number % 8, PODS: 110}, {}, True)
    parts = (({GPU: 2}, count),)
    only = tuple(names[number] for number in range(0, 3 * MAX_SINGLE_EVALUATIONS, 3))[
        : MAX_SINGLE_EVALUATIONS + 4
    ]
    long = only + tuple(NodeName(f"ghost-{n}") for n in range(2 * MAX_SINGLE_EVALUATIONS))
    assert len(only) <= MAX_SINGLE_EVALUATIONS < len(long)
    short, longer = (
        nodes.find_assignment(parts, pins=(only,)),
        nodes.find_assignment(parts, pins=(long,)),
    )
    assert short is not None
    assert longer is not None
    assert (short.nodes, short.cost) == (longer.nodes, longer.cost)
