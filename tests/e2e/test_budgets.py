"""Guarantees and disruption budgets: protected pods are shown, and evicted if the Policy allows."""

from __future__ import annotations

import time
from typing import Any

from tests.support.cluster_driver import Object, Stage, pod, until
from tests.support.reclaim_teams import policy, team, told

MANY = 32
"""Pods that fill the cluster."""
EACH = 2
"""GPUs of a pod."""
POOL = "default"


def ones(prefix: str, **labels: str) -> list[Object]:
    """Return pods for every GPU."""
    pods = [pod(f"{prefix}-{number}", EACH) for number in range(MANY)]
    for number, each in enumerate(pods):
        each["metadata"]["labels"] = {"half": str(number % 2), **labels}
    return pods


def budget(stage: Stage, namespace: str, name: str, selector: Object, **spec: Any) -> None:
    kind = {"apiVersion": "policy/v1", "kind": "PodDisruptionBudget"}
    spec = {"selector": selector, **spec}
    stage.apply(namespace, {**kind, "metadata": {"name": name}, "spec": spec})


def condition(stage: Stage, tenant: str) -> Object:
    """Return the condition of a tenant that names the pods protected by its budgets."""
    found = stage.get("tenant", tenant).get("status", {}).get("conditions", [])
    return next((each for each in found if each["type"] == "BudgetBlocksReclaim"), {})


def test_a_guarantee_waits_for_budgets_until_the_policy_overrides_them(stage: Stage) -> None:
    refused = lambda: stage.metric("controller", "fairgate_evictions_refused_total")  # noqa: E731
    overridden = lambda: stage.metric("controller", "fairgate_budgets_overridden_total")  # noqa: E731
    refused_before, overridden_before = refused(), overridden()
    policy(stage)
    a, b = team(stage, "guaranteed", MANY * EACH, POOL), team(stage, "budgeted", 0, POOL)
    stage.apply(b, *ones("b"))
    until("all is borrowed", lambda: len(stage.running(b)) == MANY)
    budget(stage, b, "all", {}, maxUnavailable=0)
    budget(stage, b, "half", {"matchLabels": {"half": "1"}}, minAvailable=MANY // 2)
    seen = lambda: stage.get("pdb", "all", "-n", b).get("status", {}).get("currentHealthy")  # noqa: E731
    until("the budget is known", lambda: seen() == MANY)
    stage.apply(a, *ones("a"))
    until("the tenant shows it", lambda: condition(stage, "budgeted").get("status") == "True")
    assert "tenant guaranteed" in condition(stage, "budgeted")["message"]
    # The first refused pods may be covered by one of the budgets only.
    words = "disruption budgets budgeted/all, budgeted/half prevent the eviction"
    until("it names both", lambda: words in condition(stage, "budgeted")["message"])
    until("many were refused", lambda: refused() >= refused_before + MANY)
    shown = lambda: stage.metric("controller", "fairgate_reclaim_blocked_pods")  # noqa: E731
    until("the metric counts each pod once", lambda: shown() == MANY)
    assert len(stage.running(b)) == MANY
    waiting = [each for each in told(stage, a, "Waiting") if "cannot be evicted now" in each]
    assert len(waiting) == len(set(waiting))

    policy(stage, disruptionBudgets="Override")
    began = time.monotonic()
    until("the guarantee is honoured", lambda: len(stage.running(a)) == MANY)
    print(f"honoured after {time.monotonic() - began:.1f} s")
    assert overridden() == overridden_before + MANY
    until("nothing is blocked", lambda: condition(stage, "budgeted").get("status") == "False")
    until("its owners are told", lambda: bool(told(stage, b, "Reclaimed")))
    assert "disruptionBudgets: Override" in told(stage, b, "Reclaimed")[0]


def test_a_guarantee_is_honoured_over_a_budget_that_came_later(stage: Stage) -> None:
    policy(stage, disruptionBudgets="Override")
    a, b = team(stage, "late-owner", MANY * EACH, POOL), team(stage, "late-borrower", 0, POOL)
    stage.apply(b, *ones("b"))
    until("all is borrowed", lambda: len(stage.running(b)) == MANY)
    budget(stage, b, "all", {}, minAvailable="100%")
    stage.apply(a, *ones("a"))
    began = time.monotonic()
    until("the guarantee is honoured", lambda: len(stage.running(a)) == MANY)
    print(f"honoured after {time.monotonic() - began:.1f} s")


def test_pods_protected_by_a_budget_do_not_borrow(stage: Stage) -> None:
    policy(stage)
    b = team(stage, "keeper", 2 * EACH, POOL)
    budget(stage, b, "keep", {"matchLabels": {"app": "kept"}}, maxUnavailable=0)
    until("it is seen", lambda: bool(stage.get("pdb", "keep", "-n", b).get("status")))
    kept = ones("kept", app="kept")[:4]
    stage.apply(b, *kept)
    until("the guarantee is used", lambda: len(stage.running(b)) == 2)
    stage.apply(b, *ones("free", app="free")[:4])
    until("others borrow", lambda: len(stage.running(b)) == 6)
    assert len(stage.held(b)) == 2
    words = "disruption budget keeper/keep allows no eviction of this pod"
    until("it is said why", lambda: any(words in each for each in told(stage, b, "Held")))
    stage.cluster.kubectl("delete", "pdb", "keep", "-n", b)
    until("all borrow", lambda: len(stage.running(b)) == 8)
