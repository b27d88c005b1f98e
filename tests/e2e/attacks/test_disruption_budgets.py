"""Row 35: a PodDisruptionBudget that would protect borrowed devices for ever."""

from __future__ import annotations

from functools import partial
from typing import Any

from tests.e2e.attacks.attack_cluster import AttackEnvironment, Object, body, layer_of, path
from tests.e2e.attacks.attack_namespaces import Yard, yard
from tests.e2e.attacks.outcomes import Outcomes
from tests.support.cluster_driver import Stage, until

RACES, LONG_RACE = 8, 500
"""Pods that race their release, and half of the changes that each tries at most."""
ATTACK = "borrow behind a disruption budget that allows no eviction"
BUDGETS: dict[str, tuple[Object, ...]] = {
    "none": ({"maxUnavailable": 0},),
    "zero-percent": ({"maxUnavailable": "0%"},),
    "all": ({"minAvailable": "100%"},),
    "many": ({"minAvailable": 8},),
    "unowned": ({"maxUnavailable": 1},),
    "half-of-unowned": ({"minAvailable": "50%"},),
    "nothing-said": ({},),
    "healthy-only": ({"maxUnavailable": 0, "unhealthyPodEvictionPolicy": "AlwaysAllow"},),
    "two": ({"minAvailable": 0}, {"maxUnavailable": "100%"}),
}


def make(ours: Yard, kind: str) -> None:
    """Create the budgets of a kind as a user with `edit`. They cover pods with that label."""
    at = f"/apis/policy/v1/namespaces/{ours.namespace}/poddisruptionbudgets"
    for number, spec in enumerate(BUDGETS[kind]):
        selector = {"matchLabels": {"kind": kind}}
        made = {"metadata": {"name": f"{kind}-{number}"}, "spec": {"selector": selector, **spec}}
        ours.env.mallory.call("POST", at, made)
        until("it is seen", partial(is_seen, ours, f"{at}/{kind}-{number}"))


def is_seen(ours: Yard, where: str) -> bool:
    """Return whether the disruption controller has seen a budget."""
    return "observedGeneration" in ours.env.admin.get(where).get("status", {})


def labelled(name: str, **labels: Any) -> Object:
    item = body(name)
    item["metadata"]["labels"] = labels
    return item


def test_35_pod_protected_by_a_budget_does_not_borrow(
    env: AttackEnvironment, stage: Stage, outcomes: Outcomes
) -> None:
    ours = yard(env, stage)
    if env.mode == "killed":
        said = ours.make(labelled("none", kind="none"))
        assert layer_of(said) == "outage"
        outcomes(35, env.mode, ATTACK, "outage", said or "")
        return
    for kind in BUDGETS:
        make(ours, kind)
        assert ours.make(labelled(kind, kind=kind)) is None
    assert ours.make(labelled("free")) is None
    until("what no budget covers borrows", lambda: "free" in ours.released())
    for kind in BUDGETS:
        until(f"{kind}: it is said why", lambda k=kind: ours.told(k, "Held", "disruption budget"))  # type: ignore[misc]
    assert ours.held() == set(BUDGETS)
    outcomes(35, env.mode, ATTACK, "D", "starts within the guarantee only, and the reason is shown")


def test_35_labels_are_judged_as_they_are(
    env: AttackEnvironment, stage: Stage, outcomes: Outcomes
) -> None:
    attack = "change labels so that a budget covers it, before its turn"
    ours = yard(env, stage)
    if env.mode == "killed":
        assert layer_of(ours.make(labelled("late"))) == "outage"
        outcomes(35, env.mode, attack, "outage", "")
        return
    make(ours, "none")
    own = {"schedulingGates": [{"name": "example.com/mine"}]}
    item = labelled("late")
    item["spec"] |= own
    if env.mode == "policies":
        item["spec"]["schedulingGates"].append({"name": "fairgate.io/queue"})
    assert ours.make(item) is None
    at = f"/api/v1/namespaces/{ours.namespace}/pods/late"
    mallory = env.mallory
    mallory.call("PATCH", at, {"metadata": {"labels": {"kind": "none"}}})
    gates = [each["name"] for each in mallory.get(at)["spec"]["schedulingGates"]]
    place = f"/spec/schedulingGates/{gates.index('example.com/mine')}"
    mallory.call("PATCH", at, [{"op": "remove", "path": place}], "json")
    assert ours.make(labelled("free")) is None
    until("what no budget covers borrows", lambda: "free" in ours.released())
    assert ours.held() == {"late"}
    outcomes(35, env.mode, attack, "D", "the labels at its release count")


def test_35_no_pod_becomes_protected_while_it_is_released(
    env: AttackEnvironment, stage: Stage, outcomes: Outcomes
) -> None:
    """The annotation may change until the release. The leader may not have seen the last change."""
    attack = "forbid the eviction in the moment of the release"
    ours = yard(env, stage)
    if env.mode == "killed":
        assert layer_of(ours.make(body("flips"))) == "outage"
        outcomes(35, env.mode, attack, "outage", "")
        return
    for number in range(RACES):
        name = f"flips-{number}"
        assert ours.make(body(name)) is None
        for answer in ("false", "true") * LONG_RACE:
            flip = {"metadata": {"annotations": {"fairgate.io/preemptible": answer}}}
            if env.mallory.refused("PATCH", path(ours.namespace, name), flip) is not None:
                break
        until(f"{name} is released", lambda n=name: n in ours.released())  # type: ignore[misc]
    words = [pod["metadata"]["annotations"]["fairgate.io/preemptible"] for pod in ours.pods]
    assert words == ["true"] * RACES
    outcomes(35, env.mode, attack, "D", "the release states that it may be evicted")
