"""A reclaim for a guarantee also makes room for the next equal pods of the user."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from app.core import events as ev
from app.core.effects import EvictForReclaim, GiveReclaimNotice, WithdrawReclaimNotice
from app.core.model import Millis, Pod, ReclaimTerms
from app.sim.cluster.virtual_cluster import held_pod
from tests.support.eviction_cluster import EvictionCluster

NOTICE = 120_000


@pytest.fixture
def town() -> EvictionCluster:
    """Tenant a has a guarantee of 4 and runs one pod; b borrows the other 8 devices."""
    town = EvictionCluster()
    town.run("a-run")
    return town


def borrow(town: EvictionCluster, **more: Any) -> dict[str, Pod]:
    pods = town.run(*(f"b{number}" for number in range(8)), **more)
    town.lead()
    return {pod.name: pod for pod in pods}


def submit_together(town: EvictionCluster, number: int) -> list[Pod]:
    waiting = [held_pod(f"a{each}", "a", 1, since=town.now + each) for each in range(number)]
    town.hear(*(ev.PodObserved(town.at, pod) for pod in waiting))
    return waiting


def give_notices(town: EvictionCluster, pods: dict[str, Pod]) -> list[Pod]:
    """Write the given notices on their pods, as the executor does. Return these pods."""
    given = {order.ref.name: order.ends_at for order in town.take(GiveReclaimNotice)}
    found = [
        replace(
            pods[name],
            reclaim_terms=replace(pods[name].reclaim_terms, notice_ends_at=ends_at),
        )
        for name, ends_at in given.items()
    ]
    town.hear(*(ev.PodObserved(town.at, pod) for pod in found))
    return found


def test_one_reclaim_makes_room_for_all_pods_within_the_guarantee(town: EvictionCluster) -> None:
    pods = borrow(town)
    submit_together(town, 4)
    victims = town.evicted()
    assert len(victims) == 3  # a runs one pod, and its guarantee is 4

    for number, name in enumerate(victims):
        town.accept(pods[name])
        town.end(pods[name])
        assert town.released() == [f"a{number}"]
    assert town.evicted() == []


def test_a_user_without_a_bound_pod_gets_room_for_one_pod_first() -> None:
    town = EvictionCluster()
    pods = {pod.name: pod for pod in town.run(*(f"b{number}" for number in range(9)))}
    town.lead()
    submit_together(town, 4)
    [victim] = town.evicted()

    town.accept(pods[victim])
    town.end(pods[victim])

    assert town.released() == ["a0"]
    assert len(town.evicted()) <= 1


def test_victims_of_followers_get_their_notice_at_the_same_time(town: EvictionCluster) -> None:
    pods = borrow(town, reclaim_terms=ReclaimTerms(notice=Millis(NOTICE)))
    submit_together(town, 3)
    noticed = give_notices(town, pods)
    assert len(noticed) == 3

    town.wait(NOTICE - 1)
    assert town.evicted() == []
    town.wait(1)
    assert town.evicted() == sorted(pod.name for pod in noticed)


def test_a_deleted_follower_spares_a_pod_with_a_notice(town: EvictionCluster) -> None:
    pods = borrow(town, reclaim_terms=ReclaimTerms(notice=Millis(NOTICE)))
    waiting = submit_together(town, 3)
    noticed = give_notices(town, pods)
    town.take(WithdrawReclaimNotice)

    town.end(waiting[1])
    town.wait(NOTICE)

    evicted = town.evicted()
    assert len(evicted) == 2
    spared = [order.ref.name for order in town.take(WithdrawReclaimNotice)]
    assert sorted([*evicted, *spared]) == sorted(pod.name for pod in noticed)


def test_the_notice_goes_on_for_the_followers_if_the_first_pod_starts(
    town: EvictionCluster,
) -> None:
    pods = borrow(town, reclaim_terms=ReclaimTerms(notice=Millis(NOTICE)))
    submit_together(town, 3)
    noticed = {pod.name for pod in give_notices(town, pods)}
    other = next(pod for name, pod in pods.items() if name not in noticed)

    town.end(other)
    assert town.released() == ["a0"]
    town.wait(NOTICE)

    orders = town.take(EvictForReclaim)
    assert [order.beneficiary.name for order in orders] == ["a1", "a1"]
    assert {order.ref.name for order in orders} <= noticed


def test_after_a_refused_eviction_each_pod_gets_its_own_reclaim_for_a_while(
    town: EvictionCluster,
) -> None:
    pods = borrow(town)
    submit_together(town, 3)
    first = town.evicted()
    assert len(first) == 3

    town.hear(ev.EvictionRefused(town.at, pods[first[0]].uid))
    assert len(town.evicted()) == 1


def test_followers_request_the_same(town: EvictionCluster) -> None:
    borrow(town)
    small, large = held_pod("a0", "a", 1, since=town.now), held_pod("a1", "a", 2, since=town.now)
    town.hear(ev.PodObserved(town.at, small), ev.PodObserved(town.at, large))
    assert len(town.evicted()) == 1


def test_followers_have_the_same_priority(town: EvictionCluster) -> None:
    borrow(town)
    urgent = replace(held_pod("a0", "a", 1, since=town.now), priority=5)
    town.hear(
        ev.PodObserved(town.at, urgent),
        ev.PodObserved(town.at, held_pod("a1", "a", 1, since=town.now)),
    )
    assert len(town.evicted()) == 1


def test_a_follower_that_was_changed_during_the_notice_follows_no_more(
    town: EvictionCluster,
) -> None:
    """Its user makes two waiting pods a gang, which the reclaim was not permitted for."""
    pods = borrow(town, reclaim_terms=ReclaimTerms(notice=Millis(NOTICE)))
    waiting = submit_together(town, 3)
    give_notices(town, pods)
    for pod in waiting[1:]:
        town.hear(ev.PodObserved(town.at, replace(pod, gang="g", gang_size=2)))
    town.wait(NOTICE)
    assert len(town.evicted()) == 1


def test_an_owner_of_another_class_has_no_followers(town: EvictionCluster) -> None:
    """The first pod and a larger one become a gang. Then a follower is deleted."""
    pods = borrow(town, reclaim_terms=ReclaimTerms(notice=Millis(NOTICE)))
    waiting = submit_together(town, 3)
    give_notices(town, pods)
    larger = held_pod("a9", "a", 2, since=town.now + 9)
    town.hear(
        *(
            ev.PodObserved(town.at, replace(pod, gang="g", gang_size=2))
            for pod in (waiting[0], larger)
        )
    )
    town.end(waiting[1])
    town.wait(NOTICE)
    town.wait(NOTICE)
    assert len(town.evicted()) <= 3
