"""A reclaim for a guarantee also makes room for the next equal pods of the user."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import msgspec
import pytest

from app.core import events as ev
from app.core.effects import EvictForReclaim, GiveReclaimNotice, Release, WithdrawReclaimNotice
from app.core.model import (
    Millis,
    Node,
    Phase,
    Pod,
    Quota,
    ReclaimTerms,
    Tenant,
    TenantName,
    UserName,
)
from app.core.placement.scheduler_hints import HOSTNAME
from app.core.quantities import PODS
from app.k8s_types import objects
from app.kube.convert_constraints import read_anti_affinity
from app.sim.cluster.virtual_cluster import held_pod
from tests.support.eviction_cluster import GPU, NODE, POOL, EvictionCluster

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


def starts(town: EvictionCluster, pods: dict[str, Pod]) -> list[str]:
    """Accept every eviction, end the victims and bind every release. Return the started pods."""
    started: list[str] = []
    while True:
        orders, releases = town.take(EvictForReclaim), town.take(Release)
        if not orders and not releases:
            return started
        for order in orders:
            town.accept(pods[order.ref.name])
            town.end(pods[order.ref.name])
        for release in releases:
            name = release.intent.ref.name
            started.append(name)
            running = replace(
                pods[name],
                gates=(),
                release_annotation=release.stamp,
                node=release.node,
                pool=release.intent.pool,
                phase=Phase.RUNNING,
                started_at=town.at,
            )
            released = ev.ReleaseAnswered(town.at, running.uid, ev.ReleaseOutcome.RELEASED)
            town.hear(released, ev.PodObserved(town.at, running))


def test_users_of_a_tenant_share_its_guarantee(town: EvictionCluster) -> None:
    pods = borrow(town)
    waiting = [held_pod(f"a-ann{each}", "a", 1, since=town.now + each) for each in range(3)]
    waiting += [replace(pod, name=pod.name.replace("ann", "bob")) for pod in waiting]
    waiting[3:] = [replace(p, uid=f"a/{p.name}", user=UserName("bob")) for p in waiting[3:]]
    pods |= {pod.name: pod for pod in waiting}
    town.hear(*(ev.PodObserved(town.at, pod) for pod in waiting))
    started = starts(town, pods)
    # The user ann runs a pod already.
    assert sorted(name[:5] for name in started) == ["a-ann", "a-bob", "a-bob"]


def test_no_pod_passes_an_older_pod_of_its_user(town: EvictionCluster) -> None:
    pods = borrow(town)
    waiting = [
        held_pod(f"a{each}", "a", size, since=town.now + each)
        for each, size in enumerate((1, 2, 1, 1))
    ]
    pods |= {pod.name: pod for pod in waiting}
    town.hear(*(ev.PodObserved(town.at, pod) for pod in waiting))
    assert starts(town, pods) == ["a0", "a1"]


def wait_for_notices(town: EvictionCluster) -> list[Pod]:
    """Submit three pods for which three victims have a notice."""
    pods = borrow(town, reclaim_terms=ReclaimTerms(notice=Millis(NOTICE)))
    waiting = submit_together(town, 3)
    assert len(give_notices(town, pods)) == 3
    return waiting


def test_a_node_that_is_not_ready_after_the_notice_costs_no_follower(town: EvictionCluster) -> None:
    wait_for_notices(town)
    node = Node(NODE, {}, {GPU: 9, PODS: 110}, True)
    town.hear(ev.NodeObserved(town.at, replace(node, ready=False)))
    town.wait(NOTICE)
    assert town.evicted() == []
    town.hear(ev.NodeObserved(town.at, node))
    assert len(town.evicted()) == 3


def test_as_many_as_the_guarantee_covers_go_on_after_the_notice(town: EvictionCluster) -> None:
    wait_for_notices(town)
    quotas = {POOL: Quota({GPU: 3})}
    tenant = Tenant(TenantName("a"), Millis(0), namespaces=("a",), quotas=quotas)
    town.hear(ev.TenantObserved(town.at, tenant))
    town.wait(NOTICE)
    assert len(town.evicted()) == 2


def test_first_pod_that_joins_a_gang_leaves_the_capacity_to_the_others(
    town: EvictionCluster,
) -> None:
    first, *_ = wait_for_notices(town)
    town.hear(ev.PodObserved(town.at, replace(first, gang="g", gang_size=2)))
    assert town.take(GiveReclaimNotice) == []
    town.wait(NOTICE)
    assert len(town.evicted()) == 2


def test_changed_follower_leaves_the_capacity_to_those_behind_it(town: EvictionCluster) -> None:
    pods = borrow(town)
    waiting = submit_together(town, 3)
    victims = town.evicted()
    town.accept(*(pods[name] for name in victims))
    town.hear(ev.PodObserved(town.at, replace(waiting[1], max_runtime=Millis(10**9))))
    [reservation] = town.engine._cycle.reservations.exclusive.values()
    assert [each.uid for each in reservation.workloads] == ["a/a0", "a/a2"]


def test_pods_that_existing_pods_keep_off_are_no_followers() -> None:
    """Only heads are compared with the anti-affinity of existing pods in each cycle."""
    town = EvictionCluster()
    node = Node(NODE, {HOSTNAME: "n"}, {GPU: 9, PODS: 110}, True)
    town.hear(ev.NodeObserved(town.at, node))
    term = {"topologyKey": HOSTNAME, "labelSelector": {"matchLabels": {"app": "x"}}}
    required = {"requiredDuringSchedulingIgnoredDuringExecution": [term]}
    spec = msgspec.convert({"affinity": {"podAntiAffinity": required}}, objects.PodSpec)
    town.run("a-run", anti_affinity_terms=read_anti_affinity(spec, "a", {}))
    borrow(town)
    plain, *kept_off = [held_pod(f"a{each}", "a", 1, since=town.now + each) for each in range(3)]
    kept_off = [replace(pod, labels={"app": "x"}) for pod in kept_off]
    town.hear(*(ev.PodObserved(town.at, pod) for pod in (plain, *kept_off)))
    assert len(town.evicted()) == 1
