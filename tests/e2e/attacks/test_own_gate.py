"""Rows 4, 5 and 8: gates that users put on and take off, and two hundred of them at once."""

from __future__ import annotations

import json
import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from app.core import guard
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
from tests.e2e.stage import gates, stamp, until
from tests.people import Refused

ATTEMPTS, AT_ONCE = 200, 16
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
    name, mallory = ground.own_gated(), ground.mallory
    at, before = path(RED, name), ground.pod(name)
    answers: list[Any] = []
    is_over = threading.Event()

    def attack() -> None:
        """Try again and again, from before the release until after it."""
        tries = 0
        while tries < ATTEMPTS // AT_ONCE + 1 or not is_over.is_set():
            tries += 1
            patch = taken() if tries % 2 else without(GATE, gates(before))
            answers.append(answer(mallory, "PATCH", at, patch, "json"))

    with ThreadPoolExecutor(AT_ONCE) as crowd:
        done = [crowd.submit(attack) for _ in range(AT_ONCE)]
        until("the storm is on", lambda: len(answers) > AT_ONCE)
        early = len(answers)
        mine = without(OWN_GATE, gates(before))
        until("her own gate is off", lambda: mallory.refused("PATCH", at, mine, "json") is None)
        try:
            until("it is released", lambda: not ground.is_held(name))
        finally:
            is_over.set()
        for each in done:
            each.result()
    assert len(answers) >= ATTEMPTS
    assert all(isinstance(each, Refused) for each in answers)
    assert all(each.status in (403, 409, 422) for each in answers)
    held = [each for each in answers[:early] if each.status == 403]
    assert held
    assert all(guard.GATE_KEPT in each.message for each in held)
    assert {layer_of(each.message) for each in answers if each.status == 403} == {
        CHANGED[ground.mode]
    }
    after = ground.pod(name)
    assert gates(after) == []
    assert "." in stamp(after)
    assert after["metadata"]["uid"] == before["metadata"]["uid"]
    assert writers(ground, name) == {"mallory": 1, CONTROLLER: 1}
    outcomes(8, ground.mode, f"{ATTEMPTS} removals at once", CHANGED[ground.mode], held[0].message)
    outcomes(8, ground.mode, f"{ATTEMPTS} removals at once", "K", answers[-1].message)
    remove(ground, name)


def taken() -> list[Object]:
    """Return the patch that takes our gate off when it is the last."""
    return [{"op": "test", "path": "/spec/schedulingGates", "value": [{"name": GATE}]}, OPEN]


def writers(ground: Ground, name: str) -> Counter[str]:
    """Return who changed a pod of red itself, and how often, as the API server's own log has it."""
    found: Counter[str] = Counter()
    for line in ground.cluster.audit_log.read_text().splitlines():
        if name not in line:
            continue
        event = json.loads(line)
        about, code = event["objectRef"], event["responseStatus"]["code"]
        whole = about.get("name") == name and "subresource" not in about
        if whole and event["verb"] in ("patch", "update") and code == 200:
            found[event["user"]["username"]] += 1
    return found
