"""Pods that may use only certain nodes, like DaemonSet pods, are checked against those nodes."""

from __future__ import annotations

from dataclasses import replace

import pytest

from app.core import events as ev
from app.core.explain.reasons import Rule
from app.core.model import (
    Millis,
    Node,
    NodeName,
    NodeSet,
    Pod,
    Pool,
    PoolName,
    Quota,
    Tenant,
    TenantName,
)
from app.core.placement.pool_nodes import PoolNodes
from app.core.quantities import CPU, PODS
from app.sim.cluster.virtual_cluster import held_pod
from tests.support.engine_bench import GPU, Bench


def node(name: str, gpus: int = 8, **labels: str) -> Node:
    return Node(NodeName(name), labels, {GPU: gpus, CPU: 64_000, PODS: 110}, True)


def pinned(name: str, *nodes: str, gpus: int = 8, **more: object) -> Pod:
    pod = held_pod(name, "team", **more)  # type: ignore[arg-type]
    only = tuple(NodeName(each) for each in nodes)
    return replace(pod, demand={GPU: gpus, PODS: 1}, node_names=only)


def plain(name: str, gpus: int = 8) -> Pod:
    return replace(held_pod(name, "team"), demand={GPU: gpus, PODS: 1})


def runs(bench: Bench, name: str, where: str) -> None:
    """Add a pod of 8 GPUs that was never held and runs on a node."""
    bench.see(replace(plain(name), gates=(), node=NodeName(where)))


def test_pinned_pod_waits_for_its_own_node_although_others_are_free() -> None:
    bench = Bench(node("a"), node("b"), node("c"))
    runs(bench, "other", "b")
    bench.see(pinned("agent", "b"))
    assert bench.released == {}
    bench.gone(plain("other"))
    assert bench.released == {"agent": "b"}


def test_pinned_pod_gets_its_node_although_another_fits_better() -> None:
    bench = Bench(node("a", 2), node("b", 8))
    bench.see(pinned("agent", "b", gpus=2))
    assert bench.released == {"agent": "b"}


def test_of_several_nodes_any_will_do() -> None:
    bench = Bench(node("a"), node("b"), node("c"))
    runs(bench, "other", "b")
    bench.see(pinned("agent", "b", "c"))
    assert bench.released == {"agent": "c"}


def test_pinned_pod_that_waits_does_not_delay_other_pinned_pods() -> None:
    names = ["a", "b", "c", "d"]
    bench = Bench(*map(node, names))
    runs(bench, "other", "c")
    bench.see(*(pinned(f"agent-{each}", each) for each in names))
    assert bench.released == {"agent-a": "a", "agent-b": "b", "agent-d": "d"}


def test_pinned_pod_waits_if_its_node_is_unknown() -> None:
    bench = Bench(node("a"))
    bench.see(pinned("agent", "b"))
    assert bench.released == {}


def test_pinned_pod_uses_capacity_of_its_own_node() -> None:
    bench = Bench(node("a"), node("b"))
    bench.see(pinned("agent", "b", gpus=1))
    bench.see(plain("whole-1"), plain("whole-2"))
    assert bench.released == {"agent": "b", "whole-1": "a"}


def test_a_new_leader_expects_a_released_pinned_pod_on_its_node() -> None:
    bench = Bench(node("a"), node("b"))
    bench.see(replace(pinned("agent", "b", gpus=1), gates=(), release_annotation="6.1"))
    bench.see(plain("whole-1"), plain("whole-2"))
    assert bench.released == {"whole-1": "a"}


def test_released_pinned_pod_is_expected_on_its_node_even_if_it_is_full() -> None:
    bench = Bench(node("a"), node("b"))
    bench.see(replace(pinned("agent", "b", gpus=8), gates=(), release_annotation="6.1"))
    runs(bench, "other", "b")
    bench.see(plain("whole-1"))
    assert bench.released == {"whole-1": "a"}
    bench.gone(plain("other"))  # freed capacity is for the released pod
    bench.see(plain("whole-2"))
    assert bench.released == {"whole-1": "a"}


def test_a_node_that_does_not_exist_is_waited_for_and_named() -> None:
    bench = Bench(node("a"))
    agent = pinned("agent", "ghost")
    bench.see(agent)
    assert "it may go to node ghost only" in bench.text(agent)
    bench.hear(ev.NodeObserved(Millis(3), node("ghost")))
    assert bench.released == {"agent": "ghost"}


def test_affinity_that_names_no_node_is_never_satisfied() -> None:
    bench = Bench(node("a"))
    agent = pinned("agent")
    bench.see(agent)
    assert bench.released == {}


def test_missing_capacity_is_reported_for_the_pinned_node() -> None:
    bench = Bench(node("a"), node("b"))
    runs(bench, "other", "b")
    agent = pinned("agent", "b")
    bench.see(agent)
    why = bench.engine.queries.explain_wait(agent.uid)
    assert why is not None
    assert why.rule is Rule.CAPACITY
    assert why.numbers[f"{GPU} free on b"] == "0"
    assert "on node b of pool default" in why.text


POOLS = (
    Pool(PoolName("old"), {"kind": "old"}),
    Pool(PoolName("young"), {"kind": "young"}),
)


def test_a_pinned_pod_belongs_to_the_pool_of_its_node() -> None:
    bench = Bench(node("a", kind="old"), node("b", kind="young"), pools=POOLS)
    bench.see(pinned("agent", "b"))
    assert bench.pools == {"agent": "young"}


def test_a_limit_of_another_pool_does_not_hold_up_a_pinned_pod() -> None:
    bench = Bench(node("a", kind="old"), node("b", kind="young"), pools=POOLS)
    quotas = {PoolName("young"): Quota(limit={GPU: 0})}
    team = Tenant(TenantName("t"), Millis(0), namespaces=("team",), quotas=quotas)
    bench.hear(ev.TenantObserved(Millis(0), team, 0))
    bench.see(pinned("to-a", "a"), pinned("to-b", "b"))
    assert bench.released == {"to-a": "a"}


def test_a_pinned_pod_follows_its_node_into_another_pool() -> None:
    bench = Bench(node("a", kind="old"), node("b", 4, kind="young"), pools=POOLS)
    agent = pinned("agent", "b")
    bench.see(agent)
    assert "pool young" in bench.text(agent)
    bench.hear(ev.NodeObserved(Millis(3), node("b", 4, kind="old")))
    assert "pool old" in bench.text(agent)
    bench.hear(ev.NodeObserved(Millis(4), node("b", 8, kind="old")))
    assert bench.pools == {"agent": "old"}


def test_pinned_pod_waits_until_its_deleted_node_returns() -> None:
    bench = Bench(node("a"), node("b", 4))
    agent = pinned("agent", "b")
    bench.see(agent)
    bench.hear(ev.NodeGone(Millis(3), NodeName("b")))
    assert bench.text(agent).startswith("not queued")
    bench.hear(ev.NodeObserved(Millis(4), node("b", 8)))
    assert bench.released == {"agent": "b"}


def test_reservation_for_a_pinned_pod_is_on_its_node() -> None:
    bench = Bench(node("a"), node("b"))
    bench.see(*(replace(plain(f"half-{n}", 4), gates=(), node=NodeName("b")) for n in "xy"))
    agent = pinned("agent", "b", priority=10)
    bench.see(agent)
    hour = Millis(3_600_000)
    bench.hear(ev.SourceFresh(hour, ev.WatchedSource.NODES))
    bench.hear(ev.PodGone(hour, held_pod("half-x", "team").uid))
    bench.hear(ev.PodObserved(hour, replace(plain("small", 4), created_at=hour)))
    assert bench.released == {"small": "a"}  # although half of b would be the better place
    bench.hear(ev.PodGone(hour, held_pod("half-y", "team").uid))
    assert bench.released["agent"] == "b"


def test_each_pinned_pod_of_a_gang_gets_its_own_node() -> None:
    bench = Bench(node("a"), node("b"), node("c"))
    gang = [
        replace(pinned(f"m-{each}", each, gpus=5), gang="g", gang_size=3) for each in ("b", "c")
    ]
    gang.append(replace(plain("m-any", 5), gang="g", gang_size=3))
    runs(bench, "other", "c")
    bench.see(*gang)
    assert bench.released == {}
    bench.gone(plain("other"))
    assert bench.released == {"m-b": "b", "m-c": "c", "m-any": "a"}


def places(nodes: PoolNodes, *parts: tuple[int, int, NodeSet]) -> list[str]:
    asked = tuple(({GPU: gpus}, count) for gpus, count, _ in parts)
    plan = nodes.find_assignment(asked, pins=tuple(pin for _, _, pin in parts))
    return [] if plan is None else list(plan.nodes)


@pytest.fixture
def three() -> PoolNodes:
    nodes = PoolNodes()
    for name in ("a", "b", "c"):
        nodes.set_node(NodeName(name), {GPU: 8}, {}, True)
    return nodes


B = (NodeName("b"),)


def test_equal_pinned_pods_fill_their_node_and_no_other(three: PoolNodes) -> None:
    assert places(three, (4, 2, B)) == ["b", "b"]
    assert places(three, (4, 3, B)) == []


def test_pinned_pods_are_placed_before_larger_pods_without_a_pin(three: PoolNodes) -> None:
    three.allocate(NodeName("a"), {GPU: 8})
    three.allocate(NodeName("c"), {GPU: 1})
    assert places(three, (7, 1, None), (2, 1, B)) == ["c", "b"]


def test_a_pin_to_a_node_that_is_closed_or_unknown_fits_nowhere(three: PoolNodes) -> None:
    assert places(three, (1, 1, (NodeName("x"),))) == []
    assert places(three, (1, 1, ())) == []
    three.set_node(NodeName("b"), {GPU: 8}, {}, False)
    assert places(three, (1, 1, B)) == []


def test_the_same_parts_with_other_pins_are_another_question(three: PoolNodes) -> None:
    parts = (({GPU: 8}, 1),)
    three.allocate(NodeName("b"), {GPU: 1})
    assert three.find_assignment(parts, pins=(B,)) is None
    found = three.find_assignment(parts)
    assert found is not None
    assert found.nodes == ("a",)


def test_withheld_capacity_on_a_pinned_node_is_not_used(three: PoolNodes) -> None:
    kept = {NodeName("b"): {GPU: 8}}
    parts = (({GPU: 1}, 1),)
    assert three.find_assignment(parts, kept, (B,)) is None
    assert three.find_assignment(parts, {NodeName("a"): {GPU: 8}}, (B,)) is not None
