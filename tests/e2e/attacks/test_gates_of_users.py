"""Rows 4, 5 and 8: gates that users add and remove, and two hundred such pods at once."""

from __future__ import annotations

import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from app.core.admission import validation
from tests.e2e.attacks.attack_cluster import (
    OPEN,
    OWN_GATE,
    RED,
    TOO_MANY,
    AttackEnvironment,
    Object,
    body,
    layer_of,
    path,
)
from tests.e2e.attacks.attack_helpers import CHANGED, answer, ready, remove, submit, without
from tests.e2e.attacks.outcomes import Outcomes
from tests.support.cluster_driver import GATE, Stage, audited, gates, stamp, until
from tests.support.personas import Refused

ATTEMPTS, AT_ONCE = 200, 16
OWNED = "fieldManager=mallory&force=true"
CONTROLLER = "system:serviceaccount:fairgate-system:fairgate-controller"


def applied(name: str, gate: str | None) -> Object:
    """Return a pod as applied, with or without a gate."""
    made = body(name, TOO_MANY)
    made["spec"]["schedulingGates"] = [{"name": gate}] if gate else []
    return made


def test_04_gate_owner_by_server_side_apply_cannot_remove_the_gate(
    env: AttackEnvironment, outcomes: Outcomes
) -> None:
    name, mallory = env.name("claimed"), env.mallory
    at = f"{path(RED, name)}?{OWNED}"
    made = mallory.refused("PATCH", at, ready(env, applied(name, GATE)), "apply")
    if env.mode == "killed":
        assert layer_of(made) == "outage"
        assert not env.exists(name)
        return
    assert made is None
    assert "mallory" in managers(env, name)
    said = mallory.refused("PATCH", at, ready(env, applied(name, None)), "apply")
    assert said is not None
    assert layer_of(said) == CHANGED[env.mode]
    assert validation.GATE_KEPT in said
    assert env.is_held(name)
    outcomes(4, env.mode, "apply with our gate, then without", layer_of(said), said)
    remove(env, name)


def test_04_the_gate_of_a_held_pod_has_no_other_owner(
    env: AttackEnvironment, outcomes: Outcomes
) -> None:
    name, mallory = env.held(), env.mallory
    at = f"{path(RED, name)}?{OWNED}"
    claim: Object = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}}
    spec = {"schedulingGates": [{"name": GATE}]}
    assert mallory.refused("PATCH", at, {**claim, "spec": spec}, "apply") is None
    assert "mallory" in managers(env, name)
    said = mallory.refused("PATCH", at, {**claim, "spec": {"schedulingGates": []}}, "apply")
    assert said is not None
    assert layer_of(said) == CHANGED[env.mode]
    assert validation.GATE_KEPT in said
    assert env.is_held(name)
    outcomes(4, env.mode, "apply to a held pod, then without", layer_of(said), said)


def managers(env: AttackEnvironment, name: str) -> list[str]:
    """Return the field managers of a pod's spec."""
    fields = env.pod(name)["metadata"]["managedFields"]
    return [each["manager"] for each in fields if "f:spec" in each["fieldsV1"]]


def test_05_pod_with_another_gate_is_not_released(
    env: AttackEnvironment, outcomes: Outcomes
) -> None:
    name, later = env.name("hoarder"), env.name("later")
    said = answer(env.mallory, "POST", path(RED), ready(env, own_gated(name)))
    if env.mode == "killed":
        assert layer_of(said.message) == "outage"
        name = env.own_gated()
    else:
        submit(env, body(later))
        until("who came later is released", lambda: not env.is_held(later))
    assert gates(env.pod(name)) == [OWN_GATE, GATE]
    assert stamp(env.pod(name)) == "0"
    outcomes(5, env.mode, "add an own gate", "D", "not released while it has another gate")
    mine = without(OWN_GATE, gates(env.pod(name)))
    assert env.mallory.refused("PATCH", path(RED, name), mine, "json") is None
    until("it is released", lambda: not env.is_held(name))
    assert "." in stamp(env.pod(name))
    remove(env, name, later)


def test_05_gate_cannot_be_added_after_create(env: AttackEnvironment, outcomes: Outcomes) -> None:
    for name in (env.held(), env.released()):
        before = env.pod(name)["spec"]
        more = {"spec": {"schedulingGates": [{"name": OWN_GATE}]}}
        said = env.mallory.refused("PATCH", path(RED, name), more, "strategic")
        assert said is not None
        assert layer_of(said) == "K"
        assert "only deletion is allowed" in said
        assert env.pod(name)["spec"] == before


def own_gated(name: str) -> Object:
    """Return a pod with two gates: Fairgate's, written by hand, and one of the user."""
    return body(name, schedulingGates=[{"name": OWN_GATE}, {"name": GATE}])


def test_08_two_hundred_at_once_win_no_race_against_the_release(
    env: AttackEnvironment, stage: Stage, outcomes: Outcomes
) -> None:
    layer, name = CHANGED[env.mode], env.own_gated()
    before = env.pod(name)
    pause(env, stage, True)
    answers = storm(env, stage, name)
    assert len(answers) >= ATTEMPTS
    for _, said in answers:
        assert isinstance(said, Refused)
        assert said.status in (403, 409, 422)
        assert said.status != 403 or layer_of(said.message) == layer
        assert said.status != 403 or validation.GATE_KEPT in said.message
    after = env.pod(name)
    assert gates(after) == []
    assert "." in stamp(after)
    assert after["metadata"]["uid"] == before["metadata"]["uid"]
    assert writers(env, name) == {"mallory": 1, CONTROLLER: 1}
    remove(env, name)
    late = [said for is_last, said in answers if is_last and said.status == 422]
    outcomes(8, env.mode, "200 removals at once", layer, close_to(answers)[0].message)
    outcomes(8, env.mode, "200 removals at once", "K", f"422 {late[-1].message}")


def pause(env: AttackEnvironment, stage: Stage, paused: bool) -> None:
    """Pause or resume the releases of `red`; return after the leader has seen it."""
    stage.tenant(RED, "1", RED, paused=paused)

    def is_observed() -> bool:
        found = stage.get("tenant", RED)
        observed = found.get("status", {}).get("observedGeneration")
        return bool(observed == found["metadata"]["generation"])

    until("the leader follows the tenant", is_observed)


def close_to(answers: list[tuple[bool, Any]]) -> list[Refused]:
    """Return the refusals between the removal of the last other gate and the release."""
    refused = [(is_last, said) for is_last, said in answers if isinstance(said, Refused)]
    return [said for is_last, said in refused if is_last and said.status == 403]


def storm(env: AttackEnvironment, stage: Stage, name: str) -> list[tuple[bool, Any]]:
    """Try to remove the gate of a pod of a paused tenant repeatedly, until after its release.

    The tenant stays paused until one attempt saw only Fairgate's gate. Return the answers, each
    with a flag: the request removes the gate only if it is the last one.
    """
    mallory, at = env.mallory, path(RED, name)
    both = gates(env.pod(name))
    alone = [{"op": "test", "path": "/spec/schedulingGates", "value": [{"name": GATE}]}, OPEN]
    answers: list[tuple[bool, Any]] = []
    is_over = threading.Event()

    def attack() -> None:
        tries = 0
        while tries < ATTEMPTS // AT_ONCE + 1 or not is_over.is_set():
            tries += 1
            is_last = tries % 4 > 0
            patch = alone if is_last else without(GATE, both)
            answers.append((is_last, answer(mallory, "PATCH", at, patch, "json")))

    with ThreadPoolExecutor(AT_ONCE) as crowd:
        done = [crowd.submit(attack) for _ in range(AT_ONCE)]
        try:
            until("the storm is on", lambda: len(answers) > AT_ONCE)
            mine = without(OWN_GATE, both)
            until("her own gate is off", lambda: mallory.refused("PATCH", at, mine, "json") is None)
            until("our gate alone was tried", lambda: bool(close_to(list(answers))))
            pause(env, stage, False)
            until("it is released", lambda: not env.is_held(name))
        finally:
            is_over.set()
        for each in done:
            each.result()
    return answers


def writers(env: AttackEnvironment, name: str) -> Counter[str]:
    """Return the users that changed the pod, with counts, from the API server's audit log."""
    found: Counter[str] = Counter()
    for event in audited(env.cluster):
        about, code = event["objectRef"], event["responseStatus"]["code"]
        whole = about.get("name") == name and "subresource" not in about
        if whole and event["verb"] in ("patch", "update") and code == 200:
            found[event["user"]["username"]] += 1
    return found
