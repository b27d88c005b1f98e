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


def test_a_gang_that_the_pool_must_grow_for_starts_though_small_work_comes_and_goes() -> None:
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


def test_what_is_to_come_is_kept_too_for_who_waited_long_enough() -> None:
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


def test_nobody_is_kept_waiting_for_nodes_that_did_not_come_lately() -> None:
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


def test_room_that_was_kept_of_nodes_to_come_is_let_go_when_they_did_not_come() -> None:
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


def test_a_node_that_comes_while_victims_end_is_kept_for_whom_they_go() -> None:
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


def test_who_leaves_holds_not_the_one_try_of_a_pool_in_doubt() -> None:
    farm = Farm(80)
    doubted(farm)
    farm.create("next")
    assert farm.where["next"] is None
    assert farm.pool().pods_awaiting_nodes == 1
    farm.create("second")
    assert "second" not in farm.where


def test_who_leaves_holds_no_try_either_once_all_are_placed_anew() -> None:
    farm = Farm(80)
    doubted(farm)
    farm.grow(88)  # all pods are assigned again
    assert farm.pool().pods_awaiting_nodes == 0
    farm.create("next")
    assert farm.where["next"] is None


def test_a_try_is_free_as_soon_as_who_has_it_leaves() -> None:
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


def test_who_leaves_still_uses_what_it_has_of_a_pool_that_grows() -> None:
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
