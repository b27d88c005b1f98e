"""Rows 4, 5 and 8: gates that users put on and take off, and two hundred of them at once."""

from __future__ import annotations

import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from app.core.admission import guard
from tests.e2e.attacks.ground import (
    GATE,
    OPEN,
    OWN_GATE,
    RED,
    TOO_MANY,
    Ground,
    Object,
    body,
    layer_of,
    path,
)
from tests.e2e.attacks.means import CHANGED, answer, ready, remove, submit, without
from tests.e2e.attacks.outcomes import Outcomes
from tests.e2e.stage import audited, gates, stamp, until
from tests.people import Refused

ATTEMPTS, AT_ONCE, ROUNDS = 200, 16, 3
OWNED = "fieldManager=mallory&force=true"
CONTROLLER = "system:serviceaccount:fairgate-system:fairgate-controller"


def applied(name: str, gate: str | None) -> Object:
    """Return a pod as it is applied, with or without a gate."""
    made = body(name, TOO_MANY)
    made["spec"]["schedulingGates"] = [{"name": gate}] if gate else []
    return made


def test_04_who_puts_the_gate_on_does_not_own_it(ground: Ground, outcomes: Outcomes) -> None:
    name, mallory = ground.name("claimed"), ground.mallory
    at = f"{path(RED, name)}?{OWNED}"
    made = mallory.refused("PATCH", at, ready(ground, applied(name, GATE)), "apply")
    if ground.mode == "killed":
        assert layer_of(made) == "outage"
        assert not ground.exists(name)
        return
    assert made is None
    assert "mallory" in managers(ground, name)
    said = mallory.refused("PATCH", at, ready(ground, applied(name, None)), "apply")
    assert said is not None
    assert layer_of(said) == CHANGED[ground.mode]
    assert guard.GATE_KEPT in said
    assert ground.is_held(name)
    outcomes(4, ground.mode, "apply with our gate, then without", layer_of(said), said)
    remove(ground, name)


def test_04_the_gate_of_a_held_pod_has_no_other_owner(ground: Ground, outcomes: Outcomes) -> None:
    name, mallory = ground.held(), ground.mallory
    at = f"{path(RED, name)}?{OWNED}"
    claim: Object = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}}
    spec = {"schedulingGates": [{"name": GATE}]}
    assert mallory.refused("PATCH", at, {**claim, "spec": spec}, "apply") is None
    assert "mallory" in managers(ground, name)
    said = mallory.refused("PATCH", at, {**claim, "spec": {"schedulingGates": []}}, "apply")
    assert said is not None
    assert layer_of(said) == CHANGED[ground.mode]
    assert guard.GATE_KEPT in said
    assert ground.is_held(name)
    outcomes(4, ground.mode, "apply to a held pod, then without", layer_of(said), said)


def managers(ground: Ground, name: str) -> list[str]:
    """Return who owns fields of a pod's spec."""
    fields = ground.pod(name)["metadata"]["managedFields"]
    return [each["manager"] for each in fields if "f:spec" in each["fieldsV1"]]


def test_05_who_keeps_a_gate_of_his_own_holds_no_capacity(
    ground: Ground, outcomes: Outcomes
) -> None:
    name, later = ground.name("hoarder"), ground.name("later")
    said = answer(ground.mallory, "POST", path(RED), ready(ground, own_gated(name)))
    if ground.mode == "killed":
        assert layer_of(said.message) == "outage"
        name = ground.own_gated()
    else:
        submit(ground, body(later))
        until("who came later is released", lambda: not ground.is_held(later))
    assert gates(ground.pod(name)) == [OWN_GATE, GATE]
    assert stamp(ground.pod(name)) == "0"
    outcomes(5, ground.mode, "a gate of one's own", "D", "not released while it has another gate")
    mine = without(OWN_GATE, gates(ground.pod(name)))
    assert ground.mallory.refused("PATCH", path(RED, name), mine, "json") is None
    until("it is released", lambda: not ground.is_held(name))
    assert "." in stamp(ground.pod(name))
    remove(ground, name, later)


def test_05_nobody_puts_a_gate_on_later(ground: Ground, outcomes: Outcomes) -> None:
    for name in (ground.held(), ground.released()):
        before = ground.pod(name)["spec"]
        more = {"spec": {"schedulingGates": [{"name": OWN_GATE}]}}
        said = ground.mallory.refused("PATCH", path(RED, name), more, "strategic")
        assert said is not None
        assert layer_of(said) == "K"
        assert "only deletion is allowed" in said
        assert ground.pod(name)["spec"] == before


def own_gated(name: str) -> Object:
    """Return a pod with two gates: ours as if the webhook had put it on, and one's own."""
    return body(name, schedulingGates=[{"name": OWN_GATE}, {"name": GATE}])


def test_08_two_hundred_at_once_win_no_race_against_the_release(
    ground: Ground, outcomes: Outcomes
) -> None:
    layer = CHANGED[ground.mode]
    for _ in range(ROUNDS):
        name = ground.own_gated()
        before = ground.pod(name)
        answers = storm(ground, name)
        assert len(answers) >= ATTEMPTS
        for _, said in answers:
            assert isinstance(said, Refused)
            assert said.status in (403, 409, 422)
            assert said.status != 403 or layer_of(said.message) == layer
            assert said.status != 403 or guard.GATE_KEPT in said.message
        after = ground.pod(name)
        assert gates(after) == []
        assert "." in stamp(after)
        assert after["metadata"]["uid"] == before["metadata"]["uid"]
        assert writers(ground, name) == {"mallory": 1, CONTROLLER: 1}
        remove(ground, name)
        # Between the last other gate and the release: what was tried there decides.
        close = [said for is_last, said in answers if is_last and said.status == 403]
        if close:
            break
    assert close
    late = [said for is_last, said in answers if is_last and said.status == 422]
    outcomes(8, ground.mode, f"{ATTEMPTS} removals at once", layer, close[0].message)
    outcomes(8, ground.mode, f"{ATTEMPTS} removals at once", "K", f"422 {late[-1].message}")


def storm(ground: Ground, name: str) -> list[tuple[bool, Any]]:
    """Try to open a pod again and again, from before its release until after it.

    Return the answers, and whether each was asked to take our gate off only if it is the last.
    """
    mallory, at = ground.mallory, path(RED, name)
    both = gates(ground.pod(name))
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
            until("it is released", lambda: not ground.is_held(name))
        finally:
            is_over.set()
        for each in done:
            each.result()
    return answers


def writers(ground: Ground, name: str) -> Counter[str]:
    """Return who changed a pod of red itself, and how often, as the API server's own log has it."""
    found: Counter[str] = Counter()
    for event in audited(ground.cluster):
        about, code = event["objectRef"], event["responseStatus"]["code"]
        whole = about.get("name") == name and "subresource" not in about
        if whole and event["verb"] in ("patch", "update") and code == 200:
            found[event["user"]["username"]] += 1
    return found
