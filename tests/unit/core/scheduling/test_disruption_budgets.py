"""Disruption budgets: protected pods delay a guarantee, or the Policy overrides their budgets."""

from __future__ import annotations

from dataclasses import replace

import pytest

from app.core import events as ev
from app.core.effects import EmitEvent, EventReason, EvictForReclaim, ReclaimCause
from app.core.explain.reasons import Rule
from app.core.lifecycle.budget_registry import MOST_BUDGETS, MOST_TERMS_TOGETHER
from app.core.lifecycle.update_pauses import FEW_PODS, REST_MS
from app.core.model import Millis, Pod, TenantName, Uid
from app.core.podspec.constraints import NodeSelectorRequirement
from app.core.podspec.disruption_budget import MOST_TERMS, DisruptionBudget, selects
from app.core.policy import DisruptionBudgets, Reclaim
from app.core.scheduling.blocked_evictions import (
    EXCLUDED_MS,
    OVERRIDE_DELAY_MS,
    REPORTED_MS,
    UNRELATED_AFTER_MS,
)
from app.core.scheduling.victim_candidates import MAX_TERMINATION_MS
from app.sim.cluster.virtual_cluster import held_pod
from tests.support.eviction_cluster import EvictionCluster, nine

ALL: tuple[NodeSelectorRequirement, ...] = ()
APP = (NodeSelectorRequirement("app", "In", ("x",)),)
OVERRIDE = DisruptionBudgets.OVERRIDE


def budget(name: str = "keep", namespace: str = "b", **fields: object) -> DisruptionBudget:
    """Return a budget over a whole namespace that the disruption controller has processed."""
    plain = DisruptionBudget(
        namespace,
        name,
        ALL,
        min_available=1,
        is_observed=True,
        expected_pods=100,
        disruptions_allowed=1,
    )
    return replace(plain, **fields)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("fields", "pods", "keeps"),
    [
        ({}, 5, False),
        ({"disruptions_allowed": 0}, 5, True),
        ({"is_observed": False}, 5, True),
        ({"min_available": 0}, 5, False),
        ({"min_available": "100%"}, 5, True),
        ({"min_available": "150%"}, 5, True),
        ({"min_available": "99%"}, 5, False),
        ({"min_available": None, "max_unavailable": 0}, 5, True),
        ({"min_available": None, "max_unavailable": "0%"}, 5, True),
        ({"min_available": None, "max_unavailable": 1}, 5, False),
        ({"min_available": None, "max_unavailable": 1, "expected_pods": 4}, 5, True),
        ({"min_available": "50%", "expected_pods": 0}, 1, True),
        ({"min_available": 1, "expected_pods": 0}, 1, False),
        ({"min_available": None, "disruptions_allowed": 0}, 5, True),
    ],
)
def test_budget_blocks_evictions_by_its_spec_and_by_its_status(
    fields: dict[str, object], pods: int, keeps: bool
) -> None:
    assert budget(**fields).blocks_eviction(pods) is keeps


def test_budget_without_selector_covers_no_pod_and_empty_one_covers_all() -> None:
    assert not budget(selector=None).covers({"app": "x"})
    assert budget(selector=ALL).covers({})
    assert budget(selector=APP).covers({"app": "x"})
    assert not budget(selector=APP).covers({"app": "y"})
    assert budget(selector=APP).covers(None)  # too many labels to evaluate
    assert not budget(selector=None).covers(None)


def test_a_selector_too_large_to_compare_covers_everything() -> None:
    few = tuple(f"v{n}" for n in range(MOST_TERMS - 1))
    assert selects({}, (NodeSelectorRequirement("app", "In", few),)) != ALL
    assert selects({}, (NodeSelectorRequirement("app", "In", (*few, "one")),)) == ALL
    assert selects({f"k{n}": "v" for n in range(MOST_TERMS + 1)}, ()) == ALL


@pytest.fixture
def town() -> EvictionCluster:
    made = EvictionCluster()
    made.lead()
    return made


def put(town: EvictionCluster, *budgets: DisruptionBudget) -> None:
    town.hear(*(ev.BudgetObserved(town.at, each) for each in budgets))


def submit(town: EvictionCluster, *names: str, **more: object) -> list[Pod]:
    pods = [replace(held_pod(n, n[0], since=town.now), **more) for n in names]  # type: ignore[arg-type]
    town.hear(*(ev.PodObserved(town.at, pod) for pod in pods))
    return pods


def text(town: EvictionCluster, uid: Uid) -> str:
    found = town.engine.queries.explain_wait(uid)
    assert found is not None
    assert found.rule is Rule.PREEMPTIBLE
    return found.text


def test_pods_that_a_budget_protects_start_within_the_guarantee_only(town: EvictionCluster) -> None:
    put(town, budget(disruptions_allowed=0))
    pods = submit(town, *(f"b{n}" for n in range(4)))
    assert town.released() == ["b0", "b1"]
    said = text(town, pods[3].uid)
    assert "disruption budget b/keep allows no eviction of this pod" in said
    assert "starts only within the guarantee of tenant b" in said
    submit(town, "d0")
    assert town.released() == ["d0"]  # another namespace


def test_it_borrows_once_the_budget_allows_a_disruption(town: EvictionCluster) -> None:
    put(town, budget(disruptions_allowed=0))
    submit(town, *(f"b{n}" for n in range(4)))
    town.released()
    put(town, budget(disruptions_allowed=1))
    assert town.released() == ["b2", "b3"]


def test_it_borrows_once_the_budget_is_gone(town: EvictionCluster) -> None:
    put(town, budget(max_unavailable=0, min_available=None))
    submit(town, *(f"b{n}" for n in range(4)))
    town.released()
    town.hear(ev.BudgetGone(town.at, "b", "keep"))
    assert town.released() == ["b2", "b3"]


def test_budget_created_before_a_pod_is_released_counts(town: EvictionCluster) -> None:
    pods = town.run(*(f"d{n}" for n in range(9)))
    put(town, budget(namespace="d", disruptions_allowed=0, selector=APP))
    waiting = submit(town, "d-a", labels={"app": "x"})
    town.end(*pods)
    assert town.released() == []
    assert "disruption budget d/keep" in text(town, waiting[0].uid)


def test_labels_decide_whether_it_is_covered(town: EvictionCluster) -> None:
    put(town, budget(namespace="d", disruptions_allowed=0, selector=APP))
    [pod] = submit(town, "d0", labels={"app": "x"})
    assert town.released() == []
    town.hear(ev.PodObserved(town.at, replace(pod, labels={"app": "y"})))
    assert town.released() == ["d0"]


def test_pod_with_several_budgets_is_protected_whatever_they_allow(town: EvictionCluster) -> None:
    put(town, budget("one", "d"), budget("two", "d"))
    [pod] = submit(town, "d0")
    assert town.released() == []
    assert "disruption budgets d/one and d/two cover it" in text(town, pod.uid)


def test_too_many_budgets_protect_all_pods_of_the_namespace(town: EvictionCluster) -> None:
    put(town, *(budget(f"n{n}", "d", selector=APP) for n in range(MOST_BUDGETS + 1)))
    [pod] = submit(town, "d0")
    assert town.released() == []
    assert f"more than {MOST_BUDGETS} disruption budgets" in text(town, pod.uid)


def test_too_large_selectors_protect_all_pods_until_they_are_smaller(
    town: EvictionCluster,
) -> None:
    many = tuple(NodeSelectorRequirement(f"k{n}", "Exists") for n in range(MOST_TERMS))
    size = MOST_TERMS_TOGETHER // MOST_TERMS + 1
    put(town, *(budget(f"n{n}", "d", selector=many) for n in range(size)))
    [pod] = submit(town, "d0")
    assert town.released() == []
    assert "too large selectors" in text(town, pod.uid)
    town.hear(ev.BudgetGone(town.at, "d", "n0"))
    assert town.released() == ["d0"]


def test_budgets_are_compared_again_after_the_number_is_below_the_limit(
    town: EvictionCluster,
) -> None:
    put(town, *(budget(f"n{n}", "d", selector=APP) for n in range(MOST_BUDGETS + 1)))
    [covered, other] = submit(town, "d0", "d1")
    town.hear(ev.PodObserved(town.at, replace(covered, labels={"app": "x"})))
    town.hear(ev.BudgetGone(town.at, "d", "n0"))
    assert town.released() == [other.name]
    assert "and the API evicts no pod of several" in text(town, covered.uid)


def test_budgets_that_change_all_the_time_are_compared_with_many_pods_only_now_and_then(
    town: EvictionCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls, covers = [], DisruptionBudget.covers
    monkeypatch.setattr(
        DisruptionBudget, "covers", lambda *given: calls.append(1) or covers(*given)
    )
    count = 2 * FEW_PODS
    town.run(*(f"d{n}" for n in range(9)))
    submit(town, *(f"d-{n}" for n in range(count)), labels={"app": "x"})
    for turn in range(20):
        put(town, budget("n", "d", selector=ALL if turn % 2 else APP, disruptions_allowed=turn % 2))
        town.hear(ev.BudgetGone(town.at, "d", "n"))
    assert len(calls) <= count + 9
    put(town, budget("n", "d", selector=APP, disruptions_allowed=0))
    last = Uid(f"d/d-{count - 1}")
    assert town.alarm <= town.now + REST_MS * (count + 9)
    town.wait(REST_MS * (count + 9))
    assert "disruption budget d/n" in text(town, last)


def test_pods_that_the_disruption_controller_has_not_counted_wait_for_it(
    town: EvictionCluster,
) -> None:
    old = budget(
        namespace="d", min_available=None, max_unavailable=2, expected_pods=2, disruptions_allowed=1
    )
    put(town, old)
    submit(town, *(f"d{n}" for n in range(5)))
    assert town.released() == []
    put(town, replace(old, expected_pods=5, disruptions_allowed=1))
    assert len(town.released()) == 5


def test_gang_is_protected_if_a_budget_protects_one_of_its_pods(town: EvictionCluster) -> None:
    put(town, budget(namespace="d", disruptions_allowed=0, selector=APP))
    gang = {"gang": "train", "gang_size": 2}
    pods = [
        replace(held_pod(name, "d", since=1), labels=labels, **gang)
        for name, labels in (("d0", {"app": "x"}), ("d1", {}))
    ]
    town.hear(*(ev.PodObserved(town.at, pod) for pod in pods))
    assert town.released() == []
    assert "disruption budget d/keep" in text(town, pods[1].uid)


def test_with_override_it_borrows_unless_work_is_also_evicted_for_fairness(
    town: EvictionCluster,
) -> None:
    put(town, budget(namespace="d", disruptions_allowed=0))
    submit(town, "d0")
    town.rule(disruption_budgets=OVERRIDE, reclaim=Reclaim.FAIR)
    assert town.released() == []
    town.rule(disruption_budgets=OVERRIDE)
    assert town.released() == ["d0"]
    town.rule()
    submit(town, "d1")
    assert town.released() == []


# --- reclaim ---


def refuse(town: EvictionCluster) -> list[EvictForReclaim]:
    """Refuse every eviction that overrides no budget, until all orders override; return those."""
    done = []
    while orders := town.take(EvictForReclaim):
        done += [each for each in orders if each.overrides]
        refused = [each for each in orders if not each.overrides]
        if not refused:
            break
        town.hear(*(ev.EvictionRefused(town.at, each.ref.uid) for each in refused))
    return done


def test_respected_budgets_are_reported_once_and_never_overridden(
    town: EvictionCluster,
) -> None:
    nine(town)
    put(town, budget(disruptions_allowed=0))
    town.submit("a-one")
    for _ in range(10):
        assert refuse(town) == []
        town.wait(EXCLUDED_MS)
    told = [each for each in town.take(EmitEvent) if each.reason is EventReason.WAITING]
    assert len(told) == 1
    assert told[0].ref.name == "a-one"


def test_a_budget_is_overridden_for_a_guarantee_after_a_while(town: EvictionCluster) -> None:
    pods = nine(town)
    put(town, budget(disruptions_allowed=0))
    town.rule(disruption_budgets=OVERRIDE)
    town.submit("a-two", 2)
    assert refuse(town) == []
    town.wait(OVERRIDE_DELAY_MS - 1)
    assert refuse(town) == []
    assert town.alarm <= town.now + 1
    town.wait(1)
    orders = refuse(town)
    assert [(each.cause, each.overrides) for each in orders] == [(ReclaimCause.GUARANTEE, True)] * 2
    gone = [pod for pod in pods if pod.uid in {each.ref.uid for each in orders}]
    town.accept(*gone)
    told = [each for each in town.take(EmitEvent) if each.reason is EventReason.RECLAIMED]
    assert all("disruptionBudgets: Override" in each.message for each in told)
    town.end(*gone)
    assert town.released() == ["a-two"]
    town.submit("a-next")
    assert [each.overrides for each in town.take(EvictForReclaim)] == [
        True
    ]  # it has already waited once


def test_too_many_budgets_are_overridden_like_one(town: EvictionCluster) -> None:
    nine(town)
    put(town, *(budget(f"n{n}", selector=APP) for n in range(MOST_BUDGETS + 1)))
    town.rule(disruption_budgets=OVERRIDE)
    town.submit("a-one")
    assert refuse(town) == []
    town.wait(OVERRIDE_DELAY_MS)
    assert len(refuse(town)) == 1


def test_a_new_policy_is_followed_at_once(town: EvictionCluster) -> None:
    nine(town)
    put(town, budget(disruptions_allowed=0))
    town.submit("a-one")
    assert refuse(town) == []
    town.rule(disruption_budgets=OVERRIDE)
    assert refuse(town) == []
    town.wait(OVERRIDE_DELAY_MS)
    assert len(refuse(town)) == 1


def test_patience_begins_again_after_long(town: EvictionCluster) -> None:
    nine(town)
    put(town, budget(disruptions_allowed=0))
    town.rule(disruption_budgets=OVERRIDE)
    uid = town.submit("a-one")
    refuse(town)
    town.hear(ev.PodGone(town.at, uid))
    town.wait(UNRELATED_AFTER_MS + 1)
    town.submit("a-two")
    assert [each.overrides for each in town.take(EvictForReclaim)] == [False]


def test_refused_eviction_without_a_budget_overrides_nothing(town: EvictionCluster) -> None:
    nine(town)
    town.rule(disruption_budgets=OVERRIDE)
    town.submit("a-one")
    for _ in range(20):
        assert refuse(town) == []
        town.wait(OVERRIDE_DELAY_MS)


def test_budgets_are_overridden_for_guarantees_alone(town: EvictionCluster) -> None:
    nine(town)
    put(town, budget(disruptions_allowed=0))
    town.rule(disruption_budgets=OVERRIDE, reclaim=Reclaim.FAIR)
    town.submit("d-one")
    for _ in range(20):
        orders = town.take(EvictForReclaim)
        assert not any(each.overrides for each in orders)
        assert all(each.cause is ReclaimCause.FAIR for each in orders)
        town.hear(*(ev.EvictionRefused(town.at, each.ref.uid) for each in orders))
        town.wait(EXCLUDED_MS)


def test_tenant_shows_blocked_reclaims_until_they_end(town: EvictionCluster) -> None:
    pods = nine(town)
    put(town, budget(disruptions_allowed=0))
    uid = town.submit("a-one")
    assert refuse(town) == []
    found = town.engine.queries.view().tenants[TenantName("b")].blocked_reclaims
    assert found is not None
    assert (found.pods, found.budgets, found.tenants) == (9, ("b/keep",), (TenantName("a"),))
    town.end(pods[0])
    found = town.engine.queries.view().tenants[TenantName("b")].blocked_reclaims
    assert found is not None
    assert found.pods == 8
    town.hear(ev.PodGone(town.at, uid))
    town.wait(REPORTED_MS + 1)
    assert town.engine.queries.view().tenants[TenantName("b")].blocked_reclaims is None


def test_freed_capacity_stays_reserved_if_the_next_victim_is_refused(town: EvictionCluster) -> None:
    pods = nine(town)
    town.submit("a-two", 2)
    town.submit("d-one")
    first, second = (each.ref.uid for each in town.take(EvictForReclaim))
    gone = next(pod for pod in pods if pod.uid == first)
    town.accept(gone)
    town.end(gone)
    town.hear(ev.EvictionRefused(town.at, second))
    assert town.released() == []
    [other] = town.take(EvictForReclaim)
    assert other.ref.uid not in (first, second)
    last = next(pod for pod in pods if pod.uid == other.ref.uid)
    town.accept(last)
    town.end(last)
    assert town.released() == ["a-two"]


@pytest.mark.parametrize("end", [10**15, -(10**12)], ids=["far", "overflow"])
def test_a_pod_that_is_deleted_with_a_long_grace_period_is_evicted_all_the_same(
    town: EvictionCluster, end: int
) -> None:
    pods = nine(town)
    slow = [replace(p, terminating=True, grace_ends=Millis(end)) for p in pods]
    town.hear(*(ev.PodObserved(town.at, pod) for pod in slow))
    town.submit("a-one")
    assert town.evicted() == ["b8"]


def test_a_pod_that_takes_longer_to_end_than_promised_is_evicted_again(
    town: EvictionCluster,
) -> None:
    pods = nine(town)
    town.hear(
        *(
            ev.PodObserved(town.at, replace(pod, terminating=True, grace_ends=Millis(town.now + 1)))
            for pod in pods
        )
    )
    town.submit("a-one")
    assert town.evicted() == []
    town.wait(MAX_TERMINATION_MS)
    town.wait(1)
    assert town.evicted() == ["b8"]
