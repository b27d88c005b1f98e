"""Pools that grow: pods are released before their nodes exist, and evicted if no node appears."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from app.core import events as ev
from app.core.effects import EventReason
from app.core.model import (
    Millis,
    Node,
    NodeName,
    Quota,
    Resource,
    Tenant,
    TenantName,
    UserName,
)
from app.core.placement.scheduler_hints import HOSTNAME
from app.core.podspec.constraints import Taint, Toleration
from app.core.policy import Mode, Policy
from app.core.quantities import CPU, PODS
from tests.support.autoscaled_pool import AUTO, GPU, LABELS, OFFER, TIMEOUT, Farm, fail, owed
from tests.support.host_ports import PORTS


def test_pods_are_released_up_to_the_maximum_capacity_of_the_pool() -> None:
    farm = Farm(24)
    for number in range(5):
        farm.create(f"p{number}")
    assert farm.where == {"p0": "auto-0", "p1": None, "p2": None}
    assert "may grow to 24 nvidia.com/gpu, and that is given out" in farm.why("p3")
    assert farm.pool().pods_awaiting_nodes == 2


def test_release_event_states_that_the_pod_waits_for_new_nodes() -> None:
    farm = Farm(16)
    farm.create("p0")
    farm.create("p1")
    released = [t.message for t in farm.told if t.reason is EventReason.RELEASED]
    # The first pod did not wait for anything, so it gets no event.
    assert released == ["to pool auto after 0 s; it waits for nodes that the autoscaler may add"]
    uid = farm.pods["p1"].uid
    view = farm.engine.queries.released_view(uid)
    assert view is not None
    assert view.awaits_node


def test_a_pool_without_it_is_filled_no_further_than_its_nodes() -> None:
    farm = Farm(0)
    farm.create("p0")
    farm.create("p1")
    assert farm.where == {"p0": "auto-0"}


def test_empty_pool_serves_only_pods_that_match_its_own_labels() -> None:
    farm = Farm(8, nodes=0)
    farm.create("plain")
    farm.create("labelled", selector=LABELS)
    farm.create("elsewhere", selector={"zone": "b"})
    assert farm.where == {"plain": None}
    assert "may grow to 8" in farm.why("labelled")
    assert "no pool has a node that it may go to" in farm.why("elsewhere")


def test_new_node_is_left_to_the_pod_that_waits_for_it() -> None:
    farm = Farm(24)
    farm.create("p0")
    farm.create("p1")
    node = farm.add(1)
    farm.create("p2")  # the new node is for the pod that waits for it
    assert farm.where["p2"] is None
    farm.bind("p1", node)
    assert farm.pool().pods_awaiting_nodes == 1
    assert farm.pool().used == {GPU: 24}
    farm.wait(TIMEOUT - 1)
    assert not farm.evicted


def test_small_pods_use_free_capacity_while_a_large_pod_awaits_a_node() -> None:
    farm = Farm(16)
    farm.create("small", 4)
    farm.create("large", 8)
    farm.create("other", 4)
    assert farm.where == {"small": "auto-0", "large": None, "other": "auto-0"}


def test_fragmented_capacity_does_not_count_as_future_nodes() -> None:
    """16 of 24 devices exist, and half of each node is in use. Only one more node may appear."""
    farm = Farm(24, nodes=2)
    farm.create("a", 5)
    farm.create("b", 5)
    assert set(farm.where.values()) == {"auto-0", "auto-1"}
    farm.create("c", 8)
    farm.create("d", 8)
    farm.create("e", 3)
    assert farm.where["c"] is None
    assert "d" not in farm.where
    assert farm.where["e"] in ("auto-0", "auto-1")


def test_gang_may_use_existing_and_future_nodes() -> None:
    farm = Farm(24)
    for number in range(3):
        farm.create(f"m{number}", gang="g", gang_size=3)
    assert sorted(farm.where) == ["m0", "m1", "m2"]
    assert [node for node in farm.where.values() if node] == ["auto-0"]


def test_a_gang_larger_than_the_pool_may_grow_to_is_not_begun() -> None:
    farm = Farm(24)
    for number in range(4):
        farm.create(f"m{number}", gang="g", gang_size=4)
    assert not farm.where


def test_a_pod_larger_than_any_node_of_the_pool_waits() -> None:
    farm = Farm(64)
    farm.create("huge", 9)
    assert not farm.where
    assert "its largest has 8" in farm.why("huge")


def test_other_resources_than_those_named_are_bounded_by_a_node() -> None:
    farm = Farm(64, nodes=0)
    farm.add(0, {GPU: 8, CPU: 16_000, PODS: 110})
    farm.create("first")
    farm.create("hungry", demand={GPU: 1, CPU: 16_001, PODS: 1})
    farm.create("modest", demand={GPU: 1, CPU: 16_000, PODS: 1})
    assert farm.where == {"first": "auto-0", "modest": None}


def test_pod_pinned_to_a_node_does_not_await_a_new_node() -> None:
    farm = Farm(64)
    farm.create("first")
    farm.create("daemon", 1, node_names=(NodeName("auto-0"),))
    assert farm.where == {"first": "auto-0"}


def test_limits_hold_beyond_the_nodes() -> None:
    farm = Farm(64)
    quota = {AUTO: Quota(limit={GPU: 16})}
    team = Tenant(TenantName("t"), Millis(0), namespaces=("a",), quotas=quota)
    farm.hear(ev.TenantObserved(farm.at, team))
    for number in range(3):
        farm.create(f"p{number}")
    assert sorted(farm.where) == ["p0", "p1"]


def test_limits_apply_even_if_the_pool_has_no_nodes() -> None:
    farm = Farm(64, nodes=0)
    team = Tenant(
        TenantName("t"), Millis(0), namespaces=("a",), quotas={AUTO: Quota(limit={GPU: 8})}
    )
    farm.hear(ev.TenantObserved(farm.at, team))
    farm.create("p0")
    farm.create("p1")
    assert sorted(farm.where) == ["p0"]


def test_shares_are_relative_to_the_maximum_capacity_of_the_pool() -> None:
    farm = Farm(32)
    farm.create("p0")
    scale = farm.engine.queries.scale()
    assert scale.size == {GPU: 32}
    farm.add(1)
    assert farm.engine.queries.scale().size == scale.size


def test_growth_pauses_and_pods_are_evicted_if_no_node_appears() -> None:
    farm = Farm(24)
    farm.create("p0")
    fail(farm, "ann", "bob")
    assert sorted(farm.evicted) == ["vain-ann", "vain-bob"]
    told = [t.message for t in farm.told if t.reason is EventReason.RECLAIMED]
    assert told[0].startswith("no new node of pool auto came within 300 s")
    farm.create("p2")
    assert "p2" not in farm.where
    assert farm.why("p2").endswith("so the next try is in 300 s")
    assert farm.pool().growth_closed_until == farm.now + TIMEOUT
    assert farm.alarm == farm.now + TIMEOUT


def test_free_capacity_is_still_used_after_a_failure_to_grow() -> None:
    farm = Farm(24)
    farm.create("p0")
    farm.create("p1")
    farm.wait(TIMEOUT)
    farm.delete("p1")
    farm.delete("p0")
    farm.create("again")  # the same request, but it does not count as failed
    assert farm.where["again"] == "auto-0"


def test_after_the_pause_one_pod_at_a_time_tries_until_a_node_appears() -> None:
    farm = Farm(40)
    farm.create("p0")
    fail(farm, "ann", "bob")
    for name in ("p2", "p3", "p4"):
        farm.create(name)
    farm.wait(TIMEOUT)
    assert sorted(farm.where)[:-2] == ["p0", "p2"]
    assert "waits for its outcome" in farm.why("p3")
    node = farm.add(1)
    farm.bind("p2", node)
    assert sorted(farm.where)[:-2] == ["p0", "p2", "p3", "p4"]
    assert farm.pool().growth_closed_until is None
    farm.create("again", user=UserName("ann"))  # the pool failed, not ann's requests
    assert farm.where["again"] is None


def test_binding_to_an_existing_node_does_not_end_the_trial() -> None:
    farm = Farm(40)
    farm.create("p0")
    fail(farm, "ann", "bob")
    farm.create("p2")
    farm.wait(TIMEOUT)
    assert farm.where["p2"] is None
    farm.delete("p0")
    farm.bind("p2", NodeName("auto-0"))
    farm.create("p3")
    farm.create("p4")
    assert farm.where["p3"] is None
    assert "p4" not in farm.where


def test_each_failure_in_a_row_closes_it_to_a_user_twice_as_long() -> None:
    farm = Farm(16)
    farm.create("p0")
    spans = []
    for number in range(8):
        farm.create(f"q{number}")
        assert f"q{number}" in farm.where
        farm.wait(TIMEOUT)
        farm.delete(f"q{number}")
        farm.create(f"next{number}")
        assert f"next{number}" not in farm.where
        [after] = re.findall(r"the next try is in (\d+) s", farm.why(f"next{number}"))
        farm.delete(f"next{number}")
        spans.append(int(after) * 1000 // TIMEOUT)
        farm.wait(int(after) * 1000)
    assert spans == [1, 2, 4, 8, 16, 32, 64, 64]


def test_a_failure_is_forgotten_in_the_end() -> None:
    farm = Farm(40)
    farm.create("p0")
    farm.create("p1")
    farm.wait(TIMEOUT)
    farm.delete("p1")
    farm.wait(TIMEOUT)
    farm.wait(farm.alarm - farm.now)
    for name in ("p2", "p3"):
        farm.create(name)
    assert sorted(farm.where) == ["p0", "p1", "p2", "p3"]


def test_failed_growth_for_one_user_does_not_close_the_pool_for_others() -> None:
    farm = Farm(40)
    farm.create("p0")
    for length in (1, 2, 4):
        fail(farm, "ann")
        farm.create("again", user=UserName("ann"))
        assert "again" not in farm.where
        assert "no new nodes for work of the same user" in farm.why("again")
        farm.delete("again")
        assert farm.pool().growth_closed_until is None
        for name in ("q0", "q1"):  # one at a time only, if the pool had failed for other users
            farm.create(name)
            assert farm.where[name] is None
        for name in ("q0", "q1"):
            farm.delete(name)
        farm.wait(length * TIMEOUT)


def test_failed_growth_for_one_user_of_two_tenants_does_not_close_the_pool() -> None:
    farm = Farm(40)
    farm.create("there")
    for namespace in ("a1", "a2"):
        farm.create(f"vain-{namespace}", namespace=namespace, user=UserName("mallory"))
    farm.wait(TIMEOUT)
    farm.create("other", user=UserName("alice"))
    assert "other" in farm.where
    assert not farm.pool().growth_closed_until


def test_nodes_for_other_users_do_not_reopen_growth_for_the_failed_user() -> None:
    farm = Farm(40)
    farm.create("p0")
    fail(farm, "ann")
    farm.create("p1")
    farm.bind("p1", farm.add(1))
    farm.create("again", user=UserName("ann"))
    assert "again" not in farm.where


def test_user_whose_growth_is_closed_still_gets_existing_nodes() -> None:
    farm = Farm(24)
    farm.create("p0")
    fail(farm, "ann")
    farm.delete("p0")
    farm.create("again", user=UserName("ann"))
    assert farm.where["again"] == "auto-0"


def test_pod_that_tolerates_no_existing_node_does_not_await_new_nodes() -> None:
    farm = Farm(24)
    taint = Taint("team", "x")
    tainted = Node(NodeName("auto-0"), LABELS, OFFER, True, taints=(taint,))
    farm.hear(ev.NodeObserved(farm.at, tainted))
    farm.create("intruder")
    farm.create("member", tolerations=(Toleration("team", "Equal", "x"),))
    assert farm.where == {"member": "auto-0"}
    assert "no pool has a node that it may go to" in farm.why("intruder")
    farm.hear(ev.NodeGone(farm.at, NodeName("auto-0")))
    assert farm.where["intruder"] is None  # the taints of future nodes are unknown
    farm.hear(ev.NodeObserved(farm.at, tainted))
    farm.create("second intruder")
    assert "second intruder" not in farm.where


@pytest.mark.parametrize(
    "policy", [Policy(scheduling_timeout=Millis(0)), Policy(mode=Mode.OBSERVE)]
)
def test_growth_is_not_closed_without_scheduling_timeouts(policy: Policy) -> None:
    farm = Farm(24)
    farm.create("p0")
    farm.create("p1")
    farm.wait(TIMEOUT)
    farm.hear(ev.PolicyObserved(farm.at, policy))
    assert farm.pool().growth_closed_until is None
    farm.create("p2")
    assert farm.where["p2"] is None


def test_pod_that_does_not_fit_its_new_node_is_no_failure_to_grow() -> None:
    farm = Farm(24)
    farm.create("p0")
    farm.create("p1")
    farm.add(1)
    farm.wait(TIMEOUT)
    assert farm.evicted == []  # its time-out starts again with the node
    farm.wait(TIMEOUT)
    assert farm.evicted == []  # the scheduler has made no decision since
    farm.pods["p1"] = replace(farm.pods["p1"], scheduler_condition=PORTS)
    farm.see(farm.pods["p1"])
    assert farm.evicted == ["p1"]
    assert farm.pool().growth_closed_until is None
    farm.delete("p1")
    farm.create("p2")
    assert "p2" not in farm.where  # because an identical pod found no node
    farm.create("p3", 4)
    assert farm.where["p3"] == "auto-1"


def test_a_replica_knows_which_pools_are_closed() -> None:
    farm = Farm(24)
    farm.create("p0")
    fail(farm, "ann", "bob")
    heard = farm.engine.queries.leader_message(farm.at, 7, 0.0)
    assert heard.growth_closed_until == {AUTO: farm.now + TIMEOUT}
    other = Farm(24)
    other.create("p0")
    other.hear(ev.LeadershipLost(other.at))
    other.now = farm.now
    other.engine.apply_leader_state(heard)
    other.create("p1")
    assert other.why("p1").endswith("so the next try is in 300 s")


def test_follower_reports_the_users_whose_growth_is_closed() -> None:
    farm = Farm(24)
    farm.create("p0")
    fail(farm, "ann")
    heard = farm.engine.queries.leader_message(farm.at, 7, 0.0)
    assert not heard.growth_closed_until
    other = Farm(24)
    other.create("p0")
    other.hear(ev.LeadershipLost(other.at))
    other.now = farm.now
    other.engine.apply_leader_state(heard)
    other.create("p1", user=UserName("ann"))
    text = "no new nodes for work of the same user that waited for them, so the next try is in 300"
    assert text in other.why("p1")


def test_a_pool_that_may_grow_less_than_it_has_is_filled_as_it_is() -> None:
    farm = Farm(4)
    farm.create("p0")
    farm.create("p1")
    assert farm.where == {"p0": "auto-0"}


def test_resource_without_a_maximum_does_not_limit_the_growth() -> None:
    farm = Farm(64, nodes=0)
    nic = Resource("example.com/nic")
    farm.add(0, {GPU: 1, nic: 1, PODS: 110})
    farm.create("fills", demand={GPU: 1, nic: 1, PODS: 1})
    farm.create("nic", demand={GPU: 1, nic: 1, PODS: 1})
    assert farm.where == {"fills": "auto-0", "nic": None}


def test_pod_that_may_use_no_node_waits() -> None:
    farm = Farm(64)
    farm.create("nowhere", 1, node_names=())
    assert not farm.where


def kept(farm: Farm) -> None:
    """Reserve capacity on both nodes for a pinned pod; half of each node is in use.

    The pool has 16 devices and may grow to 24.
    """
    for number in range(2):
        labels = {**LABELS, HOSTNAME: f"host-{number}"}
        farm.hear(ev.NodeObserved(farm.at, Node(NodeName(f"auto-{number}"), labels, OFFER, True)))
    farm.hear(ev.PolicyObserved(farm.at, Policy(reserve_after=Millis(1000))))
    farm.create("here", 6)
    farm.create("there", 6)
    farm.create("pinned", 8, selector={HOSTNAME: "host-0"})
    farm.wait(1000)


def test_pod_that_awaits_a_node_does_not_use_reserved_capacity() -> None:
    farm = Farm(24, nodes=2)
    kept(farm)
    assert set(farm.where) == {"here", "there"}
    farm.create("next", 2)
    assert farm.where["next"] == "auto-1"
    farm.create("later", 2)
    assert farm.where["later"] is None
    steer = farm.orders["later"].node_hint
    assert steer is not None
    assert (steer.host, steer.excluded_hosts) == ("", ("host-0",))
    farm.create("large", 4)  # would not fit there anyway
    assert farm.orders["large"].node_hint is None


def test_reserved_capacity_of_a_partly_used_node_counts_once() -> None:
    """12 of 24 devices are in use, and 2 free devices are reserved. 10 are left."""
    farm = Farm(24, nodes=2)
    kept(farm)
    farm.create("a", 2)
    farm.create("b", 8)
    assert farm.where["b"] is None
    farm.create("c", 1)
    assert "c" not in farm.where


def test_guarantee_is_met_by_evictions_and_future_nodes_together() -> None:
    farm = Farm(24, nodes=2, reclaims=True)
    owed(farm)
    for number in range(3):
        farm.create(f"m{number}", namespace="owner", gang="g", gang_size=3)
    assert sorted(farm.taken) == ["g0", "g1"]
    farm.create("late", namespace="guest")  # future nodes are reserved for the gang too
    assert "late" not in farm.where
    farm.delete("g0")
    assert "m0" not in farm.where
    farm.delete("g1")
    assert {farm.where[f"m{number}"] for number in range(3)} == {None, "auto-0", "auto-1"}
    assert "late" not in farm.where


def test_no_pod_is_evicted_if_a_future_node_is_enough() -> None:
    farm = Farm(24, nodes=2, reclaims=True)
    owed(farm)
    farm.create("m", namespace="owner")
    assert farm.where["m"] is None
    assert not farm.taken


def test_no_pod_is_evicted_if_the_needed_nodes_recently_failed_to_appear() -> None:
    farm = Farm(24, nodes=2, reclaims=True)
    owed(farm)
    fail(farm, "ann", namespace="owner")
    for number in range(3):
        name = f"m{number}"
        farm.create(name, namespace="owner", gang="g", gang_size=3, user=UserName("ann"))
    assert not farm.taken  # not even the future nodes could hold it


def test_no_pod_is_evicted_for_capacity_that_an_unbound_pod_may_use() -> None:
    farm = Farm(32, nodes=2, reclaims=True)
    for name, most in (("owner", 8), ("guest", 0), ("third", 16)):
        quotas = {AUTO: Quota(guarantee={GPU: most})}
        tenant = Tenant(TenantName(name), Millis(0), namespaces=(name,), quotas=quotas)
        farm.hear(ev.TenantObserved(farm.at, tenant))
    farm.hear(ev.PolicyObserved(farm.at, Policy(min_runtime=Millis(0))))
    farm.create("g0", namespace="guest")
    farm.create("g1", namespace="guest")
    fail(farm, "ann", namespace="owner")
    farm.create("d0", namespace="third")
    farm.create("mine", namespace="owner", user=UserName("ann"))
    assert farm.where["d0"] is None
    assert not farm.taken
    farm.bind("d0", farm.add(2))
    assert len(farm.taken) == 1


def guest_and_owner(most: int) -> Farm:
    """A full node of a pool with a maximum of `most`. The guest borrows all its devices."""
    farm = Farm(most, nodes=1, reclaims=True)
    for name, gpus in (("owner", 4), ("guest", 0), ("third", 8)):
        quotas = {AUTO: Quota(guarantee={GPU: gpus})}
        tenant = Tenant(TenantName(name), Millis(0), namespaces=(name,), quotas=quotas)
        farm.hear(ev.TenantObserved(farm.at, tenant))
    farm.hear(ev.PolicyObserved(farm.at, Policy(min_runtime=Millis(0))))
    for number in range(8):
        farm.create(f"g{number}", 1, namespace="guest")
    return farm


def test_a_pod_that_waits_for_a_larger_node_does_not_pause_reclaims() -> None:
    farm = guest_and_owner(16)
    farm.create("d0", 8, namespace="third", owner="")
    assert farm.where["d0"] is None
    farm.create("mine", 1, namespace="owner")
    assert farm.taken == ["g7"]


@pytest.mark.parametrize("judges", [True, False])
def test_a_pod_whose_time_out_has_ended_does_not_pause_reclaims(judges: bool) -> None:
    """The scheduler may never judge a pod, for instance because its claim is being deleted."""
    farm = guest_and_owner(9)
    farm.judges = judges
    # It has no controller, so it is never evicted.
    farm.create("d0", 1, namespace="third", owner="", scheduler_may_be_silent=not judges)
    assert farm.where["d0"] is None
    farm.create("mine", 1, namespace="owner")
    assert farm.taken == []
    farm.wait(TIMEOUT + (0 if judges else 1))
    farm.wait(60_000)
    assert len(farm.taken) == 1
