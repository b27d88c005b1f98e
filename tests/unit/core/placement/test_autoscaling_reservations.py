"""Pools that grow, with reservations on existing nodes and on future capacity."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

from app.core import events as ev
from app.core.model import Millis, Tenant, TenantName, UserName
from app.core.policy import Policy
from tests.support.autoscaled_pool import TIMEOUT, Farm, fail, owed

SOON = Millis(1000)


def gang(farm: Farm, namespace: str, user: str = "big") -> None:
    """Create a gang that needs the maximum capacity of the pool: three nodes."""
    for number in range(3):
        name, who = f"m{number}", UserName(user)
        farm.create(name, namespace=namespace, gang="g", gang_size=3, user=who)


def impatient(farm: Farm, weight: int = 100) -> None:
    """Reserve early, and put pods of the namespace `mine` before all others."""
    farm.hear(ev.PolicyObserved(farm.at, Policy(reserve_after=SOON)))
    mine = Tenant(TenantName("mine"), Millis(0), Fraction(weight), namespaces=("mine",))
    farm.hear(ev.TenantObserved(farm.at, mine))


def test_gang_that_needs_new_nodes_starts_despite_a_stream_of_small_pods() -> None:
    farm = Farm(24, nodes=2)
    impatient(farm, weight=1)
    for number in range(4):
        farm.create(f"s{number}", 1, namespace="other")
    gang(farm, "mine")
    for number in range(4, 80):
        farm.wait(SOON)
        oldest = next((name for name in farm.pods if name in farm.where), None)
        if oldest is None or "m0" in farm.where:
            break
        farm.delete(oldest)
        farm.create(f"s{number}", 1, namespace="other")
    assert {"m0", "m1", "m2"} <= farm.where.keys()


def test_future_nodes_are_reserved_for_a_gang_that_waited_long_enough() -> None:
    farm = Farm(24, nodes=2)
    impatient(farm)
    farm.create("first", 1, namespace="other")
    gang(farm, "mine")
    farm.create("early", 1, namespace="other")
    farm.wait(SOON)
    farm.create("late", 1, namespace="other")
    assert {"first", "early"} == farm.where.keys()
    farm.delete("first")
    farm.delete("early")
    assert {"m0", "m1", "m2"} == farm.where.keys() - {"first", "early"}


def test_no_reservation_waits_for_nodes_that_recently_failed_to_appear() -> None:
    farm = Farm(24, nodes=2)
    impatient(farm)
    for name in ("fills", "fills too"):
        farm.create(name, namespace="other")
    fail(farm, "ann", namespace="mine")
    gang(farm, "mine", "ann")
    farm.delete("fills")
    farm.wait(SOON)
    farm.create("late", namespace="other")
    assert farm.where["late"] == "auto-0"


def test_reservation_on_future_nodes_ends_if_the_nodes_do_not_appear() -> None:
    farm = Farm(24, nodes=2)
    impatient(farm)
    farm.create("here", namespace="other")
    farm.create("here too", 7, namespace="other")
    farm.create("vain", namespace="mine", user=UserName("ann"))
    gang(farm, "mine", "ann")
    farm.wait(SOON)
    farm.create("late", 1, namespace="other")
    assert "late" not in farm.where
    farm.wait(TIMEOUT)
    assert farm.evicted == ["vain"]
    assert farm.where["late"] == "auto-1"


def test_node_added_during_evictions_is_reserved_for_the_same_gang() -> None:
    farm = Farm(24, nodes=2, reclaims=True)
    owed(farm)
    gang(farm, "owner")
    assert sorted(farm.taken) == ["g0", "g1"]
    farm.create("late", namespace="guest")
    farm.add(2)
    assert "late" not in farm.where
    farm.delete("g0")
    farm.delete("g1")
    assert {farm.where[f"m{number}"] for number in range(3)} == {"auto-0", "auto-1", "auto-2"}


def doubted(farm: Farm) -> None:
    """The pool failed to grow for two users, so only one pod may try.

    The pod that tried before is terminating.
    """
    farm.create("there", namespace="other")
    farm.create("stays", user=UserName("mal"))
    assert farm.where["stays"] is None
    farm.pods["stays"] = replace(farm.pods["stays"], terminating=True)  # it stays terminating
    farm.see(farm.pods["stays"])
    fail(farm, "ann", "bob")
    farm.wait(TIMEOUT)
    assert farm.pool().growth_closed_until is None


def test_terminating_pod_does_not_hold_the_only_growth_trial() -> None:
    farm = Farm(80)
    doubted(farm)
    farm.create("next")
    assert farm.where["next"] is None
    assert farm.pool().pods_awaiting_nodes == 1
    farm.create("second")
    assert "second" not in farm.where


def test_terminating_pod_holds_no_growth_trial_after_a_reassignment() -> None:
    farm = Farm(80)
    doubted(farm)
    farm.grow(88)  # all pods are assigned again
    assert farm.pool().pods_awaiting_nodes == 0
    farm.create("next")
    assert farm.where["next"] is None


def test_growth_trial_is_free_once_its_pod_is_terminating() -> None:
    farm = Farm(80)
    farm.create("there", namespace="other")
    fail(farm, "ann", "bob")
    farm.wait(TIMEOUT)
    farm.create("tries")
    farm.create("next", user=UserName("eve"))
    assert "next" not in farm.where
    farm.pods["tries"] = replace(farm.pods["tries"], terminating=True)
    farm.see(farm.pods["tries"])
    assert farm.where["next"] is None


def test_terminating_pod_still_uses_its_part_of_a_growing_pool() -> None:
    farm = Farm(16)
    farm.create("there")
    farm.create("leaves")
    farm.pods["leaves"] = replace(farm.pods["leaves"], terminating=True)
    farm.see(farm.pods["leaves"])
    farm.create("next")
    assert "next" not in farm.where
    farm.add(1)
    assert "next" not in farm.where
    farm.delete("leaves")
    assert farm.where["next"] == "auto-1"
