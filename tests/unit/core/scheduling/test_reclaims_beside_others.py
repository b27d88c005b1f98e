"""Reclaims that reservations, refusals, half gangs and waiting pods of others must not stop."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import pytest

from app.core import events as ev
from app.core.effects import EvictForReclaim
from app.core.model import (
    Millis,
    Node,
    NodeName,
    Phase,
    Pool,
    PoolName,
    Quota,
    ReleaseOutcome,
    Tenant,
    TenantName,
)
from app.core.policy import Reclaim
from app.core.quantities import PODS
from app.core.scheduling.release_backoff import FIRST_RECLAIM_PAUSE, LONGEST_RECLAIM_PAUSE
from app.sim.cluster.virtual_cluster import held_pod
from tests.support.call_counts import calls_of
from tests.support.eviction_cluster import GPU, NODE, POOL, EvictionCluster


def guarantee(town: EvictionCluster, name: str, gpus: int, parent: str = "") -> None:
    tenant = Tenant(
        TenantName(name),
        Millis(0),
        namespaces=(name,),
        parent=TenantName(parent) if parent else None,
        quotas={POOL: Quota({GPU: gpus})},
    )
    town.hear(ev.TenantObserved(town.at, tenant))


def node(town: EvictionCluster, name: NodeName) -> None:
    town.hear(ev.NodeObserved(town.at, Node(name, {}, {GPU: 8, PODS: 110}, True)))


def place(town: EvictionCluster, name: NodeName, *pods: str) -> None:
    """Let pods of one device run on a node."""
    town.run(*pods, node=name)


def names(prefix: str, numbers: Iterable[int]) -> list[str]:
    return [f"{prefix}{number}" for number in numbers]


# --- cost of a search ---


def scattered(nodes: int, department: bool = False) -> EvictionCluster:
    """Nodes of 8 devices. The consecutive pods of b are on different nodes."""
    town = EvictionCluster()
    town.hear(ev.NodeGone(town.at, NODE))
    if department:
        guarantee(town, "top", 8)
    guarantee(town, "a", 8, "top" if department else "")
    guarantee(town, "b", 0)
    all_nodes = [NodeName(f"m{number}") for number in range(nodes)]
    for name in all_nodes:
        node(town, name)
    for number in range(8 * nodes):
        place(town, all_nodes[number % nodes], f"b{number}")
    town.lead()
    return town


@pytest.mark.parametrize("department", [False, True])
def test_search_for_a_whole_node_costs_in_proportion_to_the_pods(department: bool) -> None:
    small, large = scattered(10, department), scattered(40, department)
    cost = [calls_of(lambda town=town: town.submit("a0", 8)) for town in (small, large)]
    assert len(small.evicted()) == len(large.evicted()) == 8
    assert cost[1] < 6 * cost[0]


# --- reservations of others ---


def fragments() -> EvictionCluster:
    """Node n has 1 free device. Node m is full; b borrows 4 of its devices."""
    town, other = EvictionCluster(), NodeName("m")
    town.rule(reserve_after=Millis(1000))
    for name, gpus in (("p", 14), ("b", 0), ("c", 8)):
        guarantee(town, name, gpus)
    node(town, NODE)
    node(town, other)
    place(town, NODE, *names("p", range(7)))
    place(town, other, "p7", "p8", "p9", "a9", *names("b", range(4)))
    town.lead()
    return town


def test_reservation_does_not_stop_the_reclaim_of_another_guarantee() -> None:
    town = fragments()
    town.submit("c0", 8)  # next, and no eviction can help it
    town.wait(1000)  # its reservation on node n is active
    town.submit("a0")
    assert (town.evicted(), town.released()) == (["b3"], [])


def test_guarantee_evicts_borrowers_rather_than_take_overdue_capacity() -> None:
    town = fragments()
    town.submit("d0", 8)  # without a guarantee; it borrows least
    town.wait(1000)
    town.wait(48_000)  # overdue
    town.submit("a0")
    assert (town.evicted(), town.released()) == (["b3"], [])


def test_reserved_device_beside_a_victim_stays_reserved() -> None:
    town, other = EvictionCluster(), NodeName("m")
    town.rule(reserve_after=Millis(1000))
    for name, gpus in (("p", 14), ("b", 0), ("c", 8)):
        guarantee(town, name, gpus)
    node(town, NODE)
    node(town, other)
    place(town, NODE, *names("p", range(3)), *names("b", range(4)))  # 1 device is free
    place(town, other, *names("p", range(3, 10)), "a9")
    town.lead()
    town.submit("c0", 8)
    town.wait(1000)  # its reservation on node n is active
    town.submit("a0")
    assert (town.evicted(), town.released()) == (["b3"], [])


def test_reclaim_leaves_reserved_capacity_without_backfill_too() -> None:
    town = fragments()
    town.rule(reserve_after=Millis(1000), backfill=False)
    town.submit("c0", 8)
    town.wait(1000)
    town.submit("a0")
    assert (town.evicted(), town.released()) == (["b3"], [])


def test_capacity_of_terminating_pods_goes_to_the_overdue_owner() -> None:
    town, other = EvictionCluster(), NodeName("m")
    town.rule(reserve_after=Millis(1000))
    for name, gpus in (("p", 14), ("b", 0)):
        guarantee(town, name, gpus)
    node(town, NODE)
    node(town, other)
    leaving = town.run(*names("p", range(7)))  # on node n; 1 device is free
    place(town, other, "p7", "p8", "p9", "a9", *names("b", range(4)))
    town.lead()
    town.submit("d0", 8)
    town.wait(1000)
    town.wait(48_000)  # overdue
    town.leave(*leaving)
    town.submit("a0")
    assert (town.evicted(), town.released()) == (["b3"], [])
    town.end(*leaving)
    assert town.released() == ["d0"]


def test_owner_of_freed_capacity_takes_it_and_nothing_else() -> None:
    town = fragments()
    town.submit("c0", 8)
    town.wait(1000)
    town.submit("a0")
    [order] = town.take(EvictForReclaim)
    town.hear(ev.EvictionAccepted(town.at, order.ref.uid))
    town.wait(1000)
    assert town.released() == []
    town.hear(ev.PodGone(town.at, order.ref.uid))
    assert town.released() == ["a0"]


# --- refused releases ---


def test_refused_release_does_not_end_the_right_to_a_guarantee() -> None:
    town = EvictionCluster()
    town.run(*names("b", range(8)))
    town.lead()
    refused = town.submit("a0")
    assert town.released() == ["a0"]
    town.hear(ev.ReleaseAnswered(town.at, refused, ReleaseOutcome.HELD))
    town.run("b8")  # it takes the last device meanwhile
    town.wait(FIRST_RECLAIM_PAUSE - 1)
    assert town.evicted() == []
    town.wait(1)
    assert len(town.evicted()) == 1


def test_pod_that_is_refused_again_and_again_causes_fewer_evictions() -> None:
    assert LONGEST_RECLAIM_PAUSE == 10 * FIRST_RECLAIM_PAUSE
    town = EvictionCluster()
    town.run(*names("b", range(8)))
    town.lead()
    refused = town.submit("a0")
    for _ in range(5):
        assert town.released() == ["a0"]
        town.hear(ev.ReleaseAnswered(town.at, refused, ReleaseOutcome.HELD))
        town.wait(64_000)
    town.released()
    town.run("b8")
    town.wait(LONGEST_RECLAIM_PAUSE - 200_000)
    assert town.evicted() == []


# --- half-released gangs ---


def test_half_released_gang_does_not_stop_reclaims() -> None:
    town = EvictionCluster()
    town.run(*names("b", range(8)))
    [first] = town.run("d0", gang="g", gang_size=2)
    rest = replace(first, uid=type(first.uid)("d1"), name="d1", gates=held_pod("x", "d").gates)
    rest = replace(rest, release_annotation="0@5", node=None, phase=Phase.PENDING, started_at=None)
    town.hear(ev.PodObserved(town.at, rest))
    town.lead()
    town.submit("a0")
    [order] = town.take(EvictForReclaim)
    assert order.ref.name.startswith("b")
    town.hear(ev.EvictionAccepted(town.at, order.ref.uid))
    town.hear(ev.PodGone(town.at, order.ref.uid))
    assert (town.evicted(), town.released()) == ([], ["a0"])


def test_free_capacity_of_a_pool_that_is_gone_is_empty() -> None:
    town = EvictionCluster()
    assert town.engine._placement.free_on(PoolName("gone"), NODE) == {}


# --- released pods that wait for a lost node ---


def test_pod_that_waits_for_a_lost_node_does_not_hold_free_capacity_back() -> None:
    town, lost = EvictionCluster(), NodeName("m")
    guarantee(town, "d", 8)
    place(town, NODE, *names("b", range(5)))
    town.hear(ev.NodeObserved(town.at, Node(lost, {"zone": "z2"}, {GPU: 8, PODS: 110}, False)))
    waiting = replace(
        held_pod("d0", "d", 8, since=1),
        gates=(),
        release_annotation="5.90",
        selector={"zone": "z2"},
    )
    town.hear(ev.PodObserved(town.at, waiting))
    town.lead()
    town.submit("b5")
    assert town.released() == ["b5"]


def test_reclaim_of_one_user_delays_no_other_user_in_another_pool() -> None:
    """The pods of both users are within the guarantees. The evicted pods have not ended yet."""
    town, other = EvictionCluster(), PoolName("other")
    for pool, name in ((POOL, "n"), (other, "m")):
        kind = str(pool)
        town.hear(ev.PoolObserved(town.at, Pool(pool, {"kind": kind})))
        resources = {GPU: 8, PODS: 110}
        town.hear(ev.NodeObserved(town.at, Node(NodeName(name), {"kind": kind}, resources, True)))
    quotas = {POOL: Quota({GPU: 4}), other: Quota({GPU: 4})}
    tenant = Tenant(TenantName("a"), Millis(0), namespaces=("a",), quotas=quotas)
    town.hear(ev.TenantObserved(town.at, tenant))
    town.run(*names("b", range(8)))
    place(town, NodeName("m"), *names("d", range(8)))
    town.lead()
    town.submit("a0")  # it may use both pools
    assert [each.ref.name[0] for each in town.take(EvictForReclaim)] == ["b"]
    pod = replace(held_pod("a1", "a", user="two", since=town.now), selector={"kind": "other"})
    town.hear(ev.PodObserved(town.at, pod))
    assert [each.ref.name[0] for each in town.take(EvictForReclaim)] == ["d"]


def test_a_second_head_reclaims_only_where_it_is_guaranteed() -> None:
    """Tenant a has a guarantee in one pool. Both of its users may use both pools."""
    town, other = EvictionCluster(), PoolName("other")
    for pool, name in ((POOL, "n"), (other, "m")):
        kind, resources = str(pool), {GPU: 8, PODS: 110}
        town.hear(ev.PoolObserved(town.at, Pool(pool, {"kind": kind})))
        town.hear(ev.NodeObserved(town.at, Node(NodeName(name), {"kind": kind}, resources, True)))
    town.run(*names("b", range(8)))
    place(town, NodeName("m"), *names("d", range(8)))
    town.rule(reclaim=Reclaim.FAIR)
    town.lead()
    town.submit("a0")
    assert [each.ref.name[0] for each in town.take(EvictForReclaim)] == ["b"]
    town.hear(ev.PodObserved(town.at, held_pod("a1", "a", 2, user="two", since=town.now)))
    assert town.take(EvictForReclaim) == []
