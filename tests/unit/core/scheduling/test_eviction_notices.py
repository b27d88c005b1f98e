"""Notice before a reclaim: the wait, the check after it, and the continuation by a new leader."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction

import pytest

from app.core import events as ev
from app.core.audit_entry import AuditRecord, EntryType
from app.core.effects import (
    EmitEvent,
    EventReason,
    EvictForReclaim,
    GiveReclaimNotice,
    ReclaimCause,
    WithdrawReclaimNotice,
)
from app.core.model import (
    Millis,
    Pod,
    Quota,
    ReclaimTerms,
    Tenant,
    TenantName,
    Uid,
    UnmanagedPod,
    UserName,
)
from app.core.podspec.disruption_budget import DisruptionBudget
from app.core.policy import DisruptionBudgets, Mode, Reclaim
from app.core.scheduling.blocked_evictions import OVERRIDE_DELAY_MS
from app.core.scheduling.eviction_notices import MOST_TRIES, REPEAT_MS, STALE_MS
from app.sim.cluster.virtual_cluster import held_pod
from tests.support.eviction_cluster import GPU, NODE, POOL, EvictionCluster

NOTICE = 120_000
DAY = 86_400_000
TERMS = ReclaimTerms(notice=Millis(NOTICE))


@pytest.fixture
def town() -> EvictionCluster:
    return EvictionCluster()


def nine(town: EvictionCluster, terms: ReclaimTerms = TERMS) -> list[Pod]:
    return town.run(*(f"b{number}" for number in range(9)), reclaim_terms=terms)


def noticed(town: EvictionCluster, pods: list[Pod]) -> list[Pod]:
    """Write the given notices on their pods, as the executor does. Return these pods."""
    given = {order.ref.uid: order.ends_at for order in town.take(GiveReclaimNotice)}
    found = [
        replace(pod, reclaim_terms=replace(pod.reclaim_terms, notice_ends_at=given[pod.uid]))
        for pod in pods
        if pod.uid in given
    ]
    town.hear(*(ev.PodObserved(town.at, pod) for pod in found))
    return found


def withdrawn(town: EvictionCluster) -> list[str]:
    return sorted(order.ref.name for order in town.take(WithdrawReclaimNotice))


def test_an_eviction_waits_for_the_notice_and_its_capacity_is_reserved(
    town: EvictionCluster,
) -> None:
    pods = nine(town)
    town.lead()
    town.submit("a-one")
    [victim] = noticed(town, pods)
    assert victim.reclaim_terms.notice_ends_at == town.at + NOTICE
    assert town.evicted() == []

    town.submit("a-two")  # one reclaim in flight for each pool
    town.wait(NOTICE - 1)
    assert town.evicted() == []
    town.wait(1)
    assert town.evicted() == [victim.name]

    town.accept(victim)
    town.end(victim)
    assert town.released() == ["a-one"]


def test_notice_event_states_the_time_and_the_reason(town: EvictionCluster) -> None:
    nine(town)
    town.lead()
    town.take(EmitEvent)
    town.submit("a-secret")

    [told] = [t for t in town.take(EmitEvent) if t.reason is EventReason.RECLAIM_NOTICE]

    assert told.message.startswith("will be evicted in 120 s: makes room for work of a")
    assert "secret" not in told.message


def test_a_pod_that_ends_early_frees_its_capacity_at_once(town: EvictionCluster) -> None:
    pods = nine(town)
    town.lead()
    town.submit("a-one")
    [victim] = noticed(town, pods)
    town.wait(30_000)

    town.end(victim)

    assert town.released() == ["a-one"]
    assert town.evicted() == []


def test_all_victims_of_a_reclaim_are_evicted_after_the_longest_notice(
    town: EvictionCluster,
) -> None:
    pods = town.run(*(f"b{number}" for number in range(8)))
    pods += town.run("b8", reclaim_terms=TERMS)
    town.lead()
    town.submit("a-three", 3)
    [slow] = noticed(town, pods)
    assert slow.name == "b8"
    town.wait(NOTICE - 1)
    assert town.evicted() == []

    town.wait(1)

    assert town.evicted() == ["b6", "b7", "b8"]


def test_other_victims_are_evicted_when_the_last_pod_with_a_notice_ends(
    town: EvictionCluster,
) -> None:
    pods = town.run(*(f"b{number}" for number in range(8)))
    pods += town.run("b8", reclaim_terms=TERMS)
    town.lead()
    town.submit("a-three", 3)
    [slow] = noticed(town, pods)

    town.end(slow)

    assert town.evicted() == ["b6", "b7"]


def test_notice_of_a_victim_that_is_no_longer_needed_is_withdrawn(town: EvictionCluster) -> None:
    pods = nine(town)
    town.lead()
    town.submit("a-two", 2)
    victims = noticed(town, pods)
    assert [v.name for v in victims] == ["b7", "b8"]

    town.end(pods[0])  # one is free without an eviction
    town.wait(NOTICE)

    assert len(town.evicted()) == 1
    assert len(withdrawn(town)) == 1


def set_guarantee(town: EvictionCluster, guarantee: int, weight: int = 1) -> None:
    """Change the guarantee of tenant a."""
    quotas = {POOL: Quota({GPU: guarantee})}
    tenant = Tenant(TenantName("a"), Millis(0), Fraction(weight), namespaces=("a",), quotas=quotas)
    town.hear(ev.TenantObserved(town.at, tenant))


def test_order_after_a_notice_has_the_cause_shares_and_number_of_that_time(
    town: EvictionCluster,
) -> None:
    town.rule(reclaim=Reclaim.FAIR)
    pods = nine(town)
    town.lead()
    town.submit("a-two", 2)
    noticed(town, pods)
    set_guarantee(town, 0, weight=2)
    town.end(pods[0])
    town.wait(NOTICE)
    [order] = town.take(EvictForReclaim)
    assert (order.cause, order.batch_size) == (ReclaimCause.FAIR, 1)
    # Without the victim, b runs 7, which is 5 beyond its guarantee.
    assert order.weighted_shares.shares == pytest.approx((5 / 9, 2 / 9 / 2))


@pytest.mark.parametrize(("guarantee", "overrides"), [(4, True), (0, False)])
def test_order_after_a_notice_overrides_a_budget_only_for_a_guarantee_that_still_holds(
    town: EvictionCluster, guarantee: int, overrides: bool
) -> None:
    pods = nine(town, ReclaimTerms())
    town.lead()
    kept = DisruptionBudget("b", "keep", (), min_available=9, is_observed=True, expected_pods=9)
    town.hear(ev.BudgetObserved(town.at, kept))
    town.rule(disruption_budgets=DisruptionBudgets.OVERRIDE, reclaim=Reclaim.FAIR)
    town.submit("a-one")
    while orders := town.take(EvictForReclaim):
        town.hear(*(ev.EvictionRefused(town.at, order.ref.uid) for order in orders))
    wanting = [replace(pod, reclaim_terms=TERMS) for pod in pods]
    town.hear(*(ev.PodObserved(town.at, pod) for pod in wanting))
    town.wait(OVERRIDE_DELAY_MS)
    noticed(town, wanting)

    set_guarantee(town, guarantee)
    town.wait(NOTICE)

    [order] = town.take(EvictForReclaim)
    assert order.overrides is overrides


def test_a_reclaim_that_is_no_longer_permitted_after_the_notice_is_withdrawn(
    town: EvictionCluster,
) -> None:
    pods = nine(town)
    town.lead()
    uid = town.submit("a-one")
    [victim] = noticed(town, pods)

    town.rule(reclaim=Reclaim.OFF)

    assert withdrawn(town) == [victim.name]
    town.wait(NOTICE)
    assert town.evicted() == []
    assert not town.engine.is_eviction_needed(victim.uid)
    assert uid in town.engine._registry.pods


def test_victim_that_terminates_too_slowly_is_evicted_after_the_notice(
    town: EvictionCluster,
) -> None:
    """It would end in a day, so the search evicts it, and the check after the notice, too."""
    pods = nine(town, ReclaimTerms())
    slow = [replace(pod, terminating=True, grace_ends=Millis(town.now + DAY)) for pod in pods[2:8]]
    town.lead()
    town.hear(*(ev.PodObserved(town.at, pod) for pod in slow))
    noticing = replace(pods[8], reclaim_terms=TERMS)
    town.hear(ev.PodObserved(town.at, noticing))
    town.submit("a-three", 3)
    noticed(town, [noticing])
    town.wait(NOTICE)
    assert town.evicted() == ["b6", "b7", "b8"]


def test_all_notices_are_withdrawn_if_the_tenant_borrows_too_little_by_then(
    town: EvictionCluster,
) -> None:
    pods = nine(town)
    town.lead()
    town.submit("a-four", 4)
    victims = noticed(town, pods)
    assert len(victims) == 4
    # Tenant b then has 5 and a guarantee of 2. An unmanaged pod uses the rest of the node.
    static = UnmanagedPod(Uid("static"), NODE, {GPU: 4})
    gone = [ev.PodGone(town.at, pod.uid) for pod in pods[:4]]
    town.hear(ev.UnmanagedPodObserved(town.at, static), *gone)

    town.wait(NOTICE)

    assert town.evicted() == []
    assert withdrawn(town) == sorted(victim.name for victim in victims)


def test_the_end_of_the_beneficiary_withdraws_the_notice(town: EvictionCluster) -> None:
    pods = nine(town)
    town.lead()
    uid = town.submit("a-one")
    [victim] = noticed(town, pods)

    town.hear(ev.PodGone(town.at, uid))

    assert withdrawn(town) == [victim.name]
    assert not town.engine.is_eviction_needed(victim.uid)


def test_a_withdrawn_notice_is_removed_again_until_it_is_gone(town: EvictionCluster) -> None:
    pods = nine(town)
    town.lead()
    uid = town.submit("a-one")
    [victim] = noticed(town, pods)
    town.hear(ev.PodGone(town.at, uid))
    assert withdrawn(town) == [victim.name]

    town.wait(REPEAT_MS)
    assert withdrawn(town) == [victim.name]
    town.hear(ev.PodObserved(town.at, replace(victim, reclaim_terms=TERMS)))
    town.wait(REPEAT_MS)

    assert withdrawn(town) == []


def test_a_notice_that_was_not_written_is_given_again_with_its_whole_time(
    town: EvictionCluster,
) -> None:
    nine(town)
    town.lead()
    town.submit("a-one")
    [first] = town.take(GiveReclaimNotice)
    town.wait(REPEAT_MS)

    [again] = town.take(GiveReclaimNotice)

    assert again.ref == first.ref
    assert again.ends_at == first.ends_at + REPEAT_MS
    town.wait(NOTICE)
    assert town.evicted() == []  # still not seen in the pod


def test_a_pod_that_never_shows_its_notice_is_evicted_after_some_tries(
    town: EvictionCluster,
) -> None:
    """Otherwise a pod as large as etcd allows would keep borrowed capacity for ever."""
    nine(town)
    town.lead()
    town.submit("a-one")
    [first] = town.take(GiveReclaimNotice)
    for _ in range(MOST_TRIES - 1):
        town.wait(REPEAT_MS)
    assert len(town.take(GiveReclaimNotice)) == MOST_TRIES - 1
    town.wait(NOTICE)

    assert town.evicted() == [first.ref.name]
    assert town.take(GiveReclaimNotice) == []


def test_an_end_beyond_any_notice_is_replaced(town: EvictionCluster) -> None:
    """Otherwise a user who writes it before the adoption of the pod would keep it for ever."""
    pods = nine(town, replace(TERMS, notice_ends_at=Millis(253_402_300_799_000)))
    town.lead()
    town.submit("a-one")

    [order] = town.take(GiveReclaimNotice)
    assert order.ends_at == town.at + NOTICE
    [victim] = [pod for pod in pods if pod.uid == order.ref.uid]
    told = replace(victim, reclaim_terms=replace(TERMS, notice_ends_at=order.ends_at))
    town.hear(ev.PodObserved(town.at, told))
    town.wait(NOTICE)

    assert town.evicted() == [victim.name]


def test_policy_limits_the_notice(town: EvictionCluster) -> None:
    nine(town, ReclaimTerms(notice=Millis(3_600_000)))
    town.rule(max_reclaim_notice=Millis(30_000))
    town.lead()
    town.submit("a-one")

    [order] = town.take(GiveReclaimNotice)

    assert order.ends_at == town.at + 30_000


def test_a_policy_without_notices_evicts_at_once(town: EvictionCluster) -> None:
    nine(town)
    town.rule(max_reclaim_notice=Millis(0))
    town.lead()
    town.submit("a-one")

    assert town.take(GiveReclaimNotice) == []
    assert len(town.evicted()) == 1


def successor(town: EvictionCluster, pods: list[Pod], waited: int) -> EvictionCluster:
    """Return the next leader, some time later. It knows only the pods."""
    later = EvictionCluster(dict(town.notes), epoch=8, at=town.now + waited)
    later.hear(*(ev.PodObserved(later.at, pod) for pod in pods))
    later.lead()
    return later


def test_a_new_leader_continues_the_notice_of_the_same_victim(town: EvictionCluster) -> None:
    pods = nine(town)
    town.lead()
    town.submit("a-one")
    held = town.engine._registry.pods
    waiting = [t.pod for t in held.values() if t.pod.name == "a-one"]
    [victim] = noticed(town, pods)
    rest = [pod for pod in pods if pod.uid != victim.uid]
    later = successor(town, [*rest, victim, *waiting], 50_000)

    assert later.take(GiveReclaimNotice) == []
    assert later.evicted() == []
    later.wait(NOTICE - 50_000)

    assert later.evicted() == [victim.name]


def test_notice_that_ended_long_before_a_new_leader_is_given_again(town: EvictionCluster) -> None:
    pods = nine(town)
    town.lead()
    town.submit("a-one")
    waiting = [t.pod for t in town.engine._registry.pods.values() if t.pod.name == "a-one"]
    [victim] = noticed(town, pods)
    rest = [pod for pod in pods if pod.uid != victim.uid]
    later = successor(town, [*rest, victim, *waiting], NOTICE + STALE_MS)

    [order] = later.take(GiveReclaimNotice)

    assert order.ends_at == later.at + NOTICE
    assert later.evicted() == []


def test_a_void_notice_without_a_reclaim_is_removed(town: EvictionCluster) -> None:
    pods = nine(town)
    town.lead()
    town.submit("a-one")
    [victim] = noticed(town, pods)
    later = successor(town, [victim], NOTICE)
    assert withdrawn(later) == []

    later.wait(STALE_MS)

    assert withdrawn(later) == [victim.name]


def test_a_refused_eviction_withdraws_the_notice(town: EvictionCluster) -> None:
    pods = nine(town)
    town.lead()
    town.submit("a-one")
    [victim] = noticed(town, pods)
    town.wait(NOTICE)
    assert town.evicted() == [victim.name]

    town.hear(ev.EvictionRefused(town.at, victim.uid))

    assert withdrawn(town) == [victim.name]


def test_mode_observe_withdraws_every_notice(town: EvictionCluster) -> None:
    pods = nine(town)
    town.lead()
    town.submit("a-one")
    [victim] = noticed(town, pods)

    town.rule(mode=Mode.OBSERVE)

    assert withdrawn(town) == [victim.name]


def test_pod_with_the_smallest_loss_is_evicted_first_among_equal_pods(
    town: EvictionCluster,
) -> None:
    town.run(*(f"b{number}" for number in range(7)))
    saves = ReclaimTerms(checkpoint_interval=Millis(60_000))
    town.run("b7", reclaim_terms=saves)
    town.run("b8")
    town.lead()
    town.submit("a-one")

    assert town.evicted() == ["b7"]


def test_audit_and_event_have_the_lost_gpu_time(town: EvictionCluster) -> None:
    saves = ReclaimTerms(checkpoint_interval=Millis(7_200_000))
    pods = nine(town, saves)
    town.lead()
    town.submit("a-one")
    [name] = town.evicted()
    [victim] = [pod for pod in pods if pod.name == name]
    town.take(EmitEvent)
    town.accept(victim)
    town.end(victim)

    [told] = [t for t in town.take(EmitEvent) if t.reason is EventReason.RECLAIMED]
    [record] = [r for r in town.take(AuditRecord) if r.entry_type is EntryType.RECLAIMED]

    assert told.message.endswith("It loses at most 2 GPU hours since its last checkpoint.")
    assert record.facts["lostGpuSeconds"] == 7200


CHANGES: dict[str, Callable[[EvictionCluster, Pod], ev.NewsEvent]] = {
    "incomplete gang": lambda town, pod: ev.PodObserved(
        town.at, replace(pod, gang="g", gang_size=2)
    ),
    "another gate": lambda town, pod: ev.PodObserved(
        town.at, replace(pod, gates=(*pod.gates, "other.example/gate"))
    ),
    "postponed": lambda town, pod: ev.CostlyPod(town.at, pod.uid),
    "deleted": lambda town, pod: ev.PodGone(town.at, pod.uid),
    "no node": lambda town, pod: ev.PodObserved(town.at, replace(pod, selector={"no": "node"})),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_victims_of_a_reclaim_that_another_replaces_keep_no_notice(
    town: EvictionCluster, change: Callable[[EvictionCluster, Pod], ev.NewsEvent]
) -> None:
    """The first workload stops waiting in the pass that starts the reclaim for the second."""
    pods = nine(town)
    town.lead()
    first = held_pod("a-first", "a", 1, since=town.now)
    other = replace(held_pod("a-other", "a", 1, since=town.now + 1), user=UserName("bob"))
    town.hear(ev.PodObserved(town.at, first))
    [victim] = noticed(town, pods)
    town.hear(ev.PodObserved(town.at, other))
    town.hear(change(town, first))
    again = {order.ref.name for order in town.take(GiveReclaimNotice)}
    gone = {order.ref.name for order in town.take(WithdrawReclaimNotice)}
    assert gone == {victim.name}
    assert len(again) == 1


def test_victim_within_its_guarantee_after_the_notice_stays(town: EvictionCluster) -> None:
    pods = nine(town)
    town.lead()
    town.submit("a-one", 1)
    [_] = noticed(town, pods)
    quotas = {POOL: Quota({GPU: 9})}
    owed = Tenant(TenantName("b"), Millis(0), namespaces=("b",), quotas=quotas)
    town.hear(ev.TenantObserved(town.at, owed))
    town.wait(NOTICE)
    assert town.evicted() == []
