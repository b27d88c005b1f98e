"""Changes of pods, notices and the scheduler while a reclaim waits for its notice."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import pytest

from app.core import events as ev
from app.core.effects import EvictForReclaim, EvictPod, WithdrawReclaimNotice
from app.core.lifecycle.binding_progress import BindingProgress
from app.core.lifecycle.stale_pods import StaleReason
from app.core.model import (
    Millis,
    Node,
    NodeName,
    Pod,
    PoolName,
    Quota,
    ReclaimTerms,
    Tenant,
    TenantName,
    Uid,
    UnmanagedPod,
    UserName,
)
from app.core.policy import DisruptionBudgets, Reclaim, WithinQueue
from app.core.quantities import PODS
from app.core.scheduling.blocked_evictions import EXCLUDED_MS
from app.core.scheduling.eviction_notices import REPEAT_MS, STALE_MS, UNFIT_MS
from app.core.scheduling.victim_candidates import SOON_MS
from app.sim.cluster.virtual_cluster import held_pod
from tests.support.eviction_cluster import GPU, POOL, EvictionCluster

NOTICE = 120_000
TERMS = ReclaimTerms(notice=Millis(NOTICE))
EMPTY = NodeName("empty")


@pytest.fixture
def town() -> EvictionCluster:
    """Tenant a has a guarantee of 4 and runs one pod."""
    town = EvictionCluster()
    town.run("a-run")
    return town


def borrow(town: EvictionCluster, terms: ReclaimTerms = TERMS) -> dict[str, Pod]:
    """Let b use the other 8 devices, with notices."""
    pods = town.run(*(f"b{number}" for number in range(8)), reclaim_terms=terms)
    town.lead()
    return {pod.name: pod for pod in pods}


def submit(town: EvictionCluster, *names: str, user: str | None = None) -> list[Pod]:
    pods = [held_pod(name, name[0], 1, since=town.now + at) for at, name in enumerate(names)]
    if user is not None:
        pods = [replace(pod, user=UserName(user)) for pod in pods]
    town.hear(*(ev.PodObserved(town.at, pod) for pod in pods))
    return pods


def ending(town: EvictionCluster, pod: Pod, seconds: int | None) -> None:
    """Delete a pod that ends after this time; None: its finalizer keeps it."""
    ends = None if seconds is None else Millis(town.now + seconds * 1000)
    town.hear(ev.PodObserved(town.at, replace(pod, terminating=True, grace_ends=ends)))


def test_a_pod_that_ends_slowly_delays_no_guarantee(town: EvictionCluster) -> None:
    """Else a tenant could keep its other pods by one that ends slowly after the other."""
    pods = borrow(town, ReclaimTerms())
    ending(town, pods["b0"], 590)
    town.submit("a-wanted")
    assert town.evicted() == ["b7"]


def test_a_pod_that_ends_soon_is_awaited_but_not_for_long(town: EvictionCluster) -> None:
    pods = borrow(town, ReclaimTerms())
    ending(town, pods["b0"], None)
    town.submit("a-wanted")
    assert town.evicted() == []
    town.wait(SOON_MS - 1000)
    assert town.evicted() == []
    town.wait(1000)
    town.wait(1000)
    assert town.evicted() == ["b7"]


def test_a_pod_that_ends_slowly_is_awaited_if_no_other_may_be_evicted(
    town: EvictionCluster,
) -> None:
    pods = town.run(*(f"b{number}" for number in range(8)), preemptible=False)
    town.lead()
    ending(town, pods[0], 590)
    town.submit("a-wanted")
    for _ in range(5):
        town.wait(SOON_MS)
    assert town.evicted() == []
    town.end(pods[0])
    assert town.released() == ["a-wanted"]


def test_devices_of_pods_that_end_slowly_are_kept_for_the_guarantee(
    town: EvictionCluster,
) -> None:
    pods = town.run(*(f"b{number}" for number in range(8)), preemptible=False)
    town.lead()
    ending(town, pods[0], 300)
    ending(town, pods[1], 590)
    town.submit("a-two", 2)
    town.submit("d-one")
    town.end(pods[0])
    assert town.released() == []
    town.end(pods[1])
    assert town.released() == ["a-two"]


def test_a_tenant_that_deletes_its_pod_during_a_notice_comes_after_others(
    town: EvictionCluster,
) -> None:
    """Else it could keep the only reclaim of the pool, and never use its guarantee."""
    guarantee(town, "d", 4)
    pods = borrow(town)
    submit(town, "d-first")
    assert town.write_notices(pods) != []
    submit(town, "a-wanted")
    town.wait(NOTICE // 2)
    second = held_pod("d-second", "d", 1, since=town.now)
    second = replace(second, demand={**second.demand, PODS: 2})
    town.hear(ev.PodObserved(town.at, second), ev.PodGone(town.at, Uid("d/d-first")))
    town.write_notices(pods)
    for _ in range(4):
        town.wait(NOTICE // 2)
        town.write_notices(pods)
    [evicted] = town.evicted()
    assert town.released() == []
    town.accept(pods[evicted])
    town.end(pods[evicted])
    assert town.released() == ["a-wanted"]


def guarantee(town: EvictionCluster, name: str, gpus: int) -> None:
    quotas = {POOL: Quota({GPU: gpus})}
    tenant = Tenant(TenantName(name), Millis(0), namespaces=(name,), quotas=quotas)
    town.hear(ev.TenantObserved(town.at, tenant))


def answer(town: EvictionCluster, pods: dict[str, Pod], refused: Iterable[str]) -> list[str]:
    """Answer the ordered evictions one by one, as the executor does. Return the evicted pods."""
    orders = [order.ref for order in town.take(EvictForReclaim)]
    for ref in orders:
        if ref.name in refused:
            town.hear(ev.EvictionRefused(town.at, ref.uid))
            return []
    for ref in orders:
        town.accept(pods[ref.name])
        town.end(pods[ref.name])
    return [ref.name for ref in orders]


def test_pods_that_may_not_be_evicted_do_not_hold_up_a_guarantee(town: EvictionCluster) -> None:
    """A notice may last longer than the time for which a refused pod is excluded."""
    pods = borrow(town)
    submit(town, "a0", "a1", "a2")
    evicted: list[str] = []
    for _ in range(150):
        town.write_notices(pods)
        town.wait(NOTICE // 8)
        evicted += answer(town, pods, refused=("b6", "b7"))
    assert len(evicted) == 3
    assert {"b6", "b7"}.isdisjoint(evicted)


def test_a_refused_eviction_for_idleness_lets_a_reclaim_choose_another_pod() -> None:
    town = EvictionCluster()
    town.rule(max_reclaim_notice=Millis(5 * NOTICE))
    terms = ReclaimTerms(notice=Millis(5 * NOTICE))
    pods = {pod.name: pod for pod in town.run(*(f"b{n}" for n in range(9)), reclaim_terms=terms)}
    town.lead()
    submit(town, "a0")
    assert town.write_notices(pods) == ["b8"]
    evicted: list[str] = []
    for _ in range(120):
        town.hear(ev.StalePodFound(town.at, pods["b8"].uid, StaleReason.IDLE, "idle"))
        for order in town.take(EvictPod):
            town.hear(ev.EvictionRefused(town.at, order.ref.uid))
        town.write_notices(pods)
        town.wait(10_000)
        evicted += town.evicted()
    assert evicted == ["b7"]


def test_budgets_of_one_tenant_do_not_keep_a_guarantee_from_pods_of_another() -> None:
    town = EvictionCluster()
    guarantee(town, "b", 0)
    town.run("a-run")
    borrowed = town.run(*(f"b{number}" for number in range(5)), reclaim_terms=TERMS)
    pods = {pod.name: pod for pod in (*borrowed, *town.run("d0", "d1", "d2"))}
    town.lead()
    submit(town, "a0")
    evicted: list[str] = []
    for _ in range(150):
        town.write_notices(pods)
        town.wait(NOTICE // 8)
        evicted += answer(town, pods, refused=[name for name in pods if name.startswith("b")])
    assert evicted == ["d2"]


@pytest.mark.parametrize("budgets", DisruptionBudgets)
def test_a_budget_that_is_not_overridden_lets_other_pods_be_chosen(
    budgets: DisruptionBudgets,
) -> None:
    """`Override` concerns evictions for a guarantee only."""
    town = EvictionCluster()
    town.rule(reclaim=Reclaim.FAIR, disruption_budgets=budgets)
    guarantee(town, "a", 0)
    guarantee(town, "b", 0)
    pods = {pod.name: pod for pod in town.run(*(f"b{n}" for n in range(9)), reclaim_terms=TERMS)}
    town.lead()
    submit(town, "a0")
    evicted: list[str] = []
    for _ in range(150):
        town.write_notices(pods)
        town.wait(NOTICE // 8)
        evicted += answer(town, pods, refused=("b7", "b8"))
        if evicted:
            break
    assert evicted == ["b6"]


def test_one_refused_eviction_of_a_pod_without_a_budget_does_not_spare_it() -> None:
    """The API server may have been busy. The pod of the lowest priority goes first again."""
    town = EvictionCluster()
    town.run("a-run")
    pods = {pod.name: pod for pod in town.run(*(f"b{number}" for number in range(7)))}
    pods |= {pod.name: pod for pod in town.run("b-low", priority=-100)}
    town.lead()
    submit(town, "a0")
    [order] = town.take(EvictForReclaim)
    assert order.ref.name == "b-low"
    town.hear(ev.EvictionRefused(town.at, order.ref.uid))
    assert len(answer(town, pods, refused=())) == 1
    town.released()
    town.wait(EXCLUDED_MS)
    submit(town, "a1")
    assert answer(town, pods, refused=()) == ["b-low"]


def test_own_pods_with_a_budget_do_not_keep_a_guarantee_from_pods_of_others() -> None:
    town = EvictionCluster()
    town.rule(within_queue=WithinQueue.LOWER_PRIORITY)
    low = town.run("a-low0", "a-low1", priority=-5, reclaim_terms=TERMS)
    pods = {pod.name: pod for pod in (*low, *town.run(*(f"b{number}" for number in range(7))))}
    town.lead()
    submit(town, "a-high")
    evicted: list[str] = []
    for _ in range(60):
        town.write_notices(pods)
        town.wait(NOTICE // 8)
        evicted += answer(town, pods, refused=("a-low0", "a-low1"))
    assert evicted == ["b6"]


def test_a_victim_that_is_no_longer_idle_is_still_evicted_for_its_reclaim() -> None:
    town = EvictionCluster()
    pods = {pod.name: pod for pod in town.run(*(f"b{n}" for n in range(9)), reclaim_terms=TERMS)}
    town.lead()
    submit(town, "a0")
    assert town.write_notices(pods) == ["b8"]
    uid = pods["b8"].uid
    for _ in range(4):
        town.hear(ev.StalePodFound(town.at, uid, StaleReason.IDLE, "idle"))
        town.wait(20_000)
    assert town.take(EvictPod)  # the order waits in the executor
    town.hear(ev.StalePodCleared(town.at, uid, StaleReason.IDLE))
    assert not town.engine.is_eviction_needed(uid)
    town.wait(NOTICE - 80_000)
    assert town.evicted() == ["b8"]
    assert town.engine.is_eviction_needed(uid)


def test_an_ended_pod_of_the_loser_costs_only_the_evictions_it_makes_unneeded(
    town: EvictionCluster,
) -> None:
    pods = borrow(town)
    guarantee(town, "b", 5)
    submit(town, "a0", "a1", "a2")
    noticed = town.write_notices(pods)
    assert len(noticed) == 3
    other = next(name for name in pods if name not in noticed)
    town.end(pods[other])
    assert town.released() == ["a0"]

    town.wait(NOTICE)

    evicted = town.evicted()
    assert len(evicted) == 2
    assert set(evicted) < set(noticed)


def test_a_notice_that_was_withdrawn_and_given_again_is_repeated_until_the_pod_has_it() -> None:
    town = EvictionCluster()
    pods = {pod.name: pod for pod in town.run(*(f"b{n}" for n in range(9)), reclaim_terms=TERMS)}
    town.lead()
    [first] = submit(town, "a-one")
    assert town.write_notices(pods) == ["b8"]
    submit(town, "a-two", user="bob")
    town.wait(NOTICE // 4)
    town.hear(ev.PodGone(town.at, first.uid))
    town.wait(1)  # a cycle before the withdrawal is observed
    assert town.write_notices(pods) == ["-b8"]  # the new notice is dropped by the executor

    town.wait(REPEAT_MS)
    assert town.write_notices(pods) == ["b8"]
    given = pods["b8"].reclaim_terms.notice_ends_at
    assert given is not None
    assert given >= town.now + NOTICE
    town.wait(given - 1 - town.now)
    assert town.evicted() == []
    town.wait(1)
    assert town.evicted() == ["b8"]


def test_a_notice_that_arrives_after_its_reclaim_ended_is_removed_at_once() -> None:
    town = EvictionCluster()
    pods = {pod.name: pod for pod in town.run(*(f"b{n}" for n in range(9)), reclaim_terms=TERMS)}
    town.lead()
    [waiting] = submit(town, "a-one")
    ordered = list(town.effects)
    town.hear(ev.PodGone(town.at, waiting.uid))
    town.effects = ordered
    assert town.write_notices(pods) == ["b8"]  # observed only after the end of the reclaim
    town.wait(1)
    assert town.write_notices(pods) == ["-b8"]


def test_a_new_leader_gives_a_notice_again_that_the_old_one_withdraws() -> None:
    town = EvictionCluster()
    pods = {pod.name: pod for pod in town.run(*(f"b{n}" for n in range(9)), reclaim_terms=TERMS)}
    town.lead()
    [first] = submit(town, "a0")
    assert town.write_notices(pods) == ["b8"]
    town.hear(ev.PodGone(town.at, first.uid))
    withdrawal = list(town.effects)
    town.hear(ev.LeadershipLost(town.at))
    town.epoch += 1
    town.lead()
    submit(town, "a1")
    town.effects = withdrawal  # it arrives after the new leader has found the notice
    assert town.write_notices(pods) == ["-b8"]
    town.wait(REPEAT_MS)
    assert town.write_notices(pods) == ["b8"]
    town.wait(NOTICE - 1000)
    assert town.evicted() == []


def test_a_lost_withdrawal_is_repeated_without_another_event() -> None:
    town = EvictionCluster()
    pods = {pod.name: pod for pod in town.run(*(f"b{n}" for n in range(9)), reclaim_terms=TERMS)}
    town.lead()
    [waiting] = submit(town, "a0")
    town.write_notices(pods)
    town.hear(ev.PodGone(town.at, waiting.uid))
    assert town.take(WithdrawReclaimNotice)  # it fails
    assert town.now < town.alarm <= town.now + REPEAT_MS
    town.wait(town.alarm - town.now)
    assert town.write_notices(pods) == ["-b8"]


def test_a_process_that_does_not_lead_keeps_its_other_timers_after_a_notice() -> None:
    town = EvictionCluster()
    ends = Millis(town.now + NOTICE)
    town.run("b0", reclaim_terms=replace(TERMS, notice_ends_at=ends))
    town.wait(NOTICE + STALE_MS + 1)
    due = town.engine._cycle.due()
    assert due is None or due > town.now


def test_a_notice_that_is_lost_at_its_end_is_given_again_in_full() -> None:
    town = EvictionCluster()
    town.rule(max_reclaim_notice=Millis(5 * NOTICE))
    terms = ReclaimTerms(notice=Millis(5 * NOTICE))
    pods = {pod.name: pod for pod in town.run(*(f"b{n}" for n in range(9)), reclaim_terms=terms)}
    town.lead()
    submit(town, "a0")
    assert town.write_notices(pods) == ["b8"]
    town.wait(5 * NOTICE - 1000)
    town.hear(ev.PodObserved(town.at, replace(pods["b8"], reclaim_terms=terms)))
    town.wait(REPEAT_MS)
    assert town.write_notices(pods) == ["b8"]
    ends = pods["b8"].reclaim_terms.notice_ends_at
    assert ends is not None
    town.wait(ends - 1 - town.now)
    assert town.evicted() == []
    town.wait(1)
    assert town.evicted() == ["b8"]


def with_an_empty_node(town: EvictionCluster) -> None:
    """Add a node of one device. An unmanaged pod uses it."""
    node = Node(EMPTY, {"disk": "fast"}, {GPU: 1, PODS: 110}, True)
    used = UnmanagedPod(Uid("unmanaged"), EMPTY, {GPU: 1})
    town.hear(ev.NodeObserved(town.at, node), ev.UnmanagedPodObserved(town.at, used))


def test_a_changed_pod_does_not_keep_the_reclaim_of_its_pool_from_others(
    town: EvictionCluster,
) -> None:
    with_an_empty_node(town)
    guarantee(town, "d", 3)
    pods = borrow(town)
    [first] = submit(town, "a0")
    submit(town, "d0")
    assert len(town.write_notices(pods)) == 1
    town.hear(ev.PodObserved(town.at, replace(first, selector={"disk": "fast"})))

    town.wait(NOTICE)
    assert town.evicted() == []
    town.wait(UNFIT_MS)
    town.write_notices(pods)
    town.wait(REPEAT_MS)
    town.write_notices(pods)
    town.wait(NOTICE)
    [victim] = answer(town, pods, refused=())
    assert victim in pods
    assert town.released() == ["d0"]


def test_one_workload_gets_room_while_the_scheduler_binds_no_pods(
    town: EvictionCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    pods = borrow(town)
    submit(town, "a0", "a1")
    assert len(town.write_notices(pods)) == 2
    since = town.at

    def stalled_since(_: BindingProgress, pool: PoolName) -> Millis:
        return since

    monkeypatch.setattr(BindingProgress, "stalled_since", stalled_since)
    town.wait(NOTICE)
    assert town.evicted() == ["b7"]
    assert town.write_notices(pods) == ["-b6"]


def test_a_user_who_arrives_during_the_notice_has_its_turn(town: EvictionCluster) -> None:
    pods = borrow(town)
    ann = submit(town, "a-ann0", "a-ann1", "a-ann2")
    assert len(town.write_notices(pods)) == 3
    bob = submit(town, "a-bob0", "a-bob1", user="bob")
    pods |= {pod.name: pod for pod in (*ann, *bob)}
    town.wait(NOTICE)
    assert len(answer(town, pods, refused=())) == 1
    assert town.released() == ["a-ann0"]


def test_a_user_who_arrives_at_the_end_of_the_notice_has_its_turn(town: EvictionCluster) -> None:
    pods = borrow(town)
    submit(town, "a-ann0", "a-ann1", "a-ann2")
    assert len(town.write_notices(pods)) == 3
    town.now += NOTICE
    submit(town, "a-bob0", "a-bob1", user="bob")
    assert len(town.evicted()) == 1


def test_reclaim_that_was_off_for_a_moment_starts_again(town: EvictionCluster) -> None:
    pods = borrow(town)
    submit(town, "a0")
    assert len(town.write_notices(pods)) == 1
    town.rule(reclaim=Reclaim.OFF)
    assert town.write_notices(pods) == ["-b7"]
    town.rule()
    assert town.write_notices(pods) == ["b7"]
    town.wait(NOTICE)
    assert town.evicted() == ["b7"]


def test_an_eviction_that_was_cancelled_does_not_end_a_later_notice() -> None:
    town = EvictionCluster()
    pods = {pod.name: pod for pod in town.run(*(f"b{n}" for n in range(9)), reclaim_terms=TERMS)}
    town.lead()
    [waiting] = submit(town, "a0")
    town.write_notices(pods)
    town.wait(NOTICE)
    assert town.evicted() == ["b8"]  # the order waits in the executor
    uid = pods["b8"].uid
    assert town.engine.is_eviction_needed(uid)

    town.hear(ev.PodGone(town.at, waiting.uid))
    assert town.write_notices(pods) == ["-b8"]
    submit(town, "a1")
    assert town.write_notices(pods) == ["b8"]

    assert not town.engine.is_eviction_needed(uid)
    town.wait(NOTICE)
    assert town.evicted() == ["b8"]
    assert town.engine.is_eviction_needed(uid)
