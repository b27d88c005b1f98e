"""Row 33: pods as large as the API server accepts."""

from __future__ import annotations

import pytest

from app.core.podspec.size_limits import sentence
from tests.contract.enforcement_cases import OVER
from tests.e2e.attacks.attack_cluster import (
    BLUE,
    RED,
    AttackEnvironment,
    Object,
    body,
    layer_of,
    path,
)
from tests.e2e.attacks.attack_helpers import CHANGED, remove
from tests.e2e.attacks.attack_namespaces import FIRST, yard
from tests.e2e.attacks.large_pods import WITHIN, large
from tests.e2e.attacks.outcomes import Outcomes
from tests.support.cluster_driver import GATE, Stage, until
from tests.support.largest_pods import tolerations

ATTACK = "pods of up to 1 MB: thousands of terms, keys, tolerations"


def gated(env: AttackEnvironment, made: Object) -> Object:
    """Return a pod with Fairgate's gate before its own gates, for modes without a webhook."""
    own = made["spec"].get("schedulingGates")
    if env.mode != "policies" or own is None:
        return made
    return {**made, "spec": {**made["spec"], "schedulingGates": [{"name": GATE}, *own]}}


@pytest.mark.parametrize("field", OVER)
def test_33_a_list_beyond_its_bound_is_refused(
    env: AttackEnvironment, stage: Stage, outcomes: Outcomes, field: str
) -> None:
    ours = yard(env, stage)
    said = ours.make(gated(env, large("large", OVER[field])))
    assert ours.pods == []
    if env.mode == "killed":
        assert layer_of(said) == "outage"
        outcomes(33, env.mode, ATTACK, "outage", said or "")
        return
    assert said is not None
    assert sentence(field) in said
    # The gate added by the webhook exceeds the bound. The policy checks the result first.
    sees_first = env.mode == "policies" or (env.mode, field) == ("everything", "gates")
    layer = "P" if sees_first else "W"
    assert layer_of(said) == layer
    outcomes(33, env.mode, ATTACK, layer, "a message with the bound")


def test_33_a_held_pod_does_not_grow_beyond_a_bound(
    env: AttackEnvironment, outcomes: Outcomes
) -> None:
    name, mallory = env.held(), env.mallory
    found = env.pod(name)
    more = tolerations(101, "more")["spec"]["tolerations"]
    found["spec"]["tolerations"] = [*found["spec"]["tolerations"], *more]
    said = mallory.refused("PUT", path(RED, name), found)
    assert said is not None
    assert sentence("tolerations") in said
    assert layer_of(said) == FIRST[env.mode] == CHANGED[env.mode]
    outcomes(33, env.mode, "a pod that grows", layer_of(said), said)
    remove(env, name)


def test_33_largest_pods_do_not_block_other_users(
    env: AttackEnvironment, stage: Stage, outcomes: Outcomes
) -> None:
    if env.mode == "killed":
        return
    ours = yard(env, stage)
    for number, (field, built) in enumerate(WITHIN.items()):
        assert ours.make(gated(env, large(f"large-{number}", built))) is None, field
    until("all wait", lambda: len(ours.held()) == len(WITHIN))
    name = env.name("quick")
    made = body(name)
    if env.mode == "policies":
        made = env.stamped(made, "bob", BLUE)
    assert env.bob.refused("POST", path(BLUE), made) is None
    until("another user's pod is released", lambda: not env.is_held(name, BLUE))
    assert len(ours.held()) == len(WITHIN)
    outcomes(33, env.mode, "twenty as large as allowed", "D", "others are released meanwhile")
    env.admin.call("DELETE", path(BLUE, name))
