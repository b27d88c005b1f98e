"""Rows 4, 5, 8, 9, 10 and 13: gates, labels and names that are not what they seem."""

from __future__ import annotations

import json
import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import yaml

from app.core import guard
from app.core.errors import ClusterError
from app.dev.kubectl import Kubectl
from tests.e2e.attacks.ground import (
    GATE,
    GPU,
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
from tests.e2e.attacks.means import (
    CHANGED,
    STORED,
    answer,
    ready,
    remove,
    rule,
    somebody,
    submit,
    without,
)
from tests.e2e.attacks.outcomes import NOT_ITS_LAYER, Outcomes
from tests.e2e.stage import RELEASE, gates, stamp, until
from tests.people import Person, Refused

SUBMITTER = "fairgate.io/submitter"
ATTEMPTS, AT_ONCE = 200, 16
OWNED = "fieldManager=mallory&force=true"


# --- 4: a gate of Fairgate's, put on by somebody else ---


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


# --- 5: a gate of one's own ---


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


# --- 8: two hundred against one release ---


def test_08_two_hundred_at_once_win_no_race_against_the_release(
    ground: Ground, outcomes: Outcomes
) -> None:
    name, mallory = ground.own_gated(), ground.mallory
    at, before = path(RED, name), ground.pod(name)
    answers: list[Any] = []
    is_over = threading.Event()

    def attack(number: int) -> None:
        """Try again and again, from before the release until after it."""
        tries = 0
        while tries < ATTEMPTS // AT_ONCE + 1 or not is_over.is_set():
            tries += 1
            found = gates(before) if number % 2 else [GATE]
            patch = without(GATE, found) if found != [GATE] else taken()
            answers.append(answer(mallory, "PATCH", at, patch, "json"))

    with ThreadPoolExecutor(AT_ONCE) as crowd:
        done = [crowd.submit(attack, number) for number in range(AT_ONCE)]
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


CONTROLLER = "system:serviceaccount:fairgate-system:fairgate-controller"


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


# --- 9: where nobody looks ---


@pytest.fixture(scope="module")
def nomad(ground: Ground) -> Person:
    """Somebody who may make namespaces, change their labels, and make pods in all of them."""
    namespaces = rule("create get patch", "namespaces")
    inside = rule("get create", "serviceaccounts", "pods")
    return somebody(ground, "nomad", namespaces, inside, namespace=None)


def namespace(name: str, **labels: str) -> Object:
    return {
        "apiVersion": "v1",
        "kind": "Namespace",
        "metadata": {"name": name, "labels": {k.replace("_", "/"): v for k, v in labels.items()}},
    }


NAME_OF_NAMESPACE = "kubernetes.io/metadata.name"
NOT_YET = ("not found", "error looking up service account")


def test_09_a_namespace_of_this_very_moment_is_looked_at(
    ground: Ground, outcomes: Outcomes, nomad: Person
) -> None:
    new = ground.name("new")
    account: Object = {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {}}
    account["metadata"]["name"] = "default"

    def attack(number: int) -> Any:
        """Try until the namespace and its service account are there."""
        while True:
            made = ready(ground, body(f"early-{number}", TOO_MANY), "nomad", new)
            bare = body(f"early-{number}", TOO_MANY) if number % 2 else made
            said = answer(nomad, "POST", path(new), bare)
            if not (isinstance(said, Refused) and any(word in said.message for word in NOT_YET)):
                return said

    with ThreadPoolExecutor(8) as crowd:
        done = [crowd.submit(attack, number) for number in range(8)]
        nomad.call("POST", "/api/v1/namespaces", namespace(new))
        # Kubernetes makes it too, a moment later.
        answer(nomad, "POST", f"/api/v1/namespaces/{new}/serviceaccounts", account)
        answers = [each.result() for each in done]
    for number, said in enumerate(answers):
        match ground.mode:
            case "killed":
                assert layer_of(said.message) == "outage"
            case "policies" if number % 2:
                assert layer_of(said.message) == "P"
                assert guard.UNGATED in said.message
            case _:
                assert gates(said) == [GATE]
    stored = ground.admin.get(path(new))["items"]
    assert all(gates(each) == [GATE] and "nodeName" not in each["spec"] for each in stored)
    refused = [each for each in answers if isinstance(each, Refused)]
    layer = layer_of(refused[0].message) if refused else "D"
    saw = refused[0].message if refused else "held like any other"
    outcomes(9, ground.mode, "a namespace made in the same moment", layer, saw)


def test_09_no_label_of_a_namespace_spares_its_pods(
    ground: Ground, outcomes: Outcomes, nomad: Person
) -> None:
    new = ground.name("quiet")
    forged = {NAME_OF_NAMESPACE: "kube-system"}
    made = namespace(new)
    made["metadata"]["labels"] = forged
    assert answer(nomad, "POST", "/api/v1/namespaces", made)["metadata"]["labels"] == {
        NAME_OF_NAMESPACE: new
    }
    for labels in (forged, {NAME_OF_NAMESPACE: None}, {"fairgate.io/exempt": "true"}):
        change = {"metadata": {"labels": labels}}
        kept = nomad.call("PATCH", f"/api/v1/namespaces/{new}", change)["metadata"]["labels"]
        assert kept[NAME_OF_NAMESPACE] == new
    until("pods can be made", lambda: can_make_pods(ground, new))
    said = answer(nomad, "POST", path(new), body("unseen", TOO_MANY))
    match ground.mode:
        case "policies":
            assert layer_of(said.message) == "P"
            assert guard.UNGATED in said.message
        case "killed":
            assert layer_of(said.message) == "outage"
        case _:
            assert gates(said) == [GATE]
    outcomes(9, ground.mode, "labels of a namespace", "K", "the label with its name stays as it was")


def can_make_pods(ground: Ground, namespace: str) -> bool:
    account = f"/api/v1/namespaces/{namespace}/serviceaccounts/default"
    return ground.admin.refused("GET", account, None) is None


def test_09_who_may_work_in_a_namespace_gets_into_no_exempt_one(
    ground: Ground, outcomes: Outcomes
) -> None:
    for who in (ground.mallory, ground.chief):
        for exempt in ("kube-system", "fairgate-system", "gpu-operator"):
            name = ground.name("guest")
            said = who.refused("POST", path(exempt), body(name))
            assert said is not None
            assert layer_of(said) == "R"
            assert not ground.exists(name, exempt)
    outcomes(9, ground.mode, "an exempt namespace", "R", said)


# --- 10: labels and annotations that are read ---

CHANGES = (
    {"labels": {"fairgate.io/tenant": "ns.blue"}},
    {"labels": {"fairgate.io/user": "bob"}},
    {"labels": {"fairgate.io/user": None}},
    {"labels": {"fairgate.io/pool": "other"}},
    {"annotations": {SUBMITTER: "bob"}},
    {"annotations": {RELEASE: "9.9"}},
    {"annotations": {RELEASE: None}},
    {"annotations": {"fairgate.io/gang": "x"}},
    {"annotations": {"fairgate.io/gang-size": "2"}},
)


@pytest.fixture(scope="module")
def clerk(ground: Ground) -> Person:
    """Somebody who was given the right to write the status of pods."""
    return somebody(ground, "clerk", rule("patch update", "pods/status"))


def test_10_nobody_changes_what_a_pod_is_counted_by(ground: Ground, outcomes: Outcomes) -> None:
    for name in (ground.held(), ground.released()):
        before = ground.pod(name)
        for change in CHANGES:
            for who in (ground.mallory, ground.chief):
                said = who.refused("PATCH", path(RED, name), {"metadata": change})
                assert said is not None, change
                assert layer_of(said) == CHANGED[ground.mode]
                assert guard.STAMPS_KEPT in said
        assert stamps(ground.pod(name)) == stamps(before)
    outcomes(10, ground.mode, "tenant, user, pool, gang of a pod", layer_of(said), said)


def test_10_nor_through_the_status(ground: Ground, outcomes: Outcomes, clerk: Person) -> None:
    name = ground.held()
    before = ground.pod(name)
    for change in CHANGES:
        patch = {"metadata": change}
        said = ground.mallory.refused("PATCH", path(RED, name, "status"), patch)
        assert said is not None
        assert layer_of(said) == "R"
        by_right = clerk.refused("PATCH", path(RED, name, "status"), patch)
        assert by_right is not None, change
        assert layer_of(by_right) == CHANGED[ground.mode]
        assert guard.STAMPS_KEPT in by_right
    assert stamps(ground.pod(name)) == stamps(before)
    outcomes(10, ground.mode, "through pods/status", "R", said)
    outcomes(10, ground.mode, "through pods/status, by right", layer_of(by_right), by_right)


def test_10_a_tenant_does_not_label_its_namespace(ground: Ground, outcomes: Outcomes) -> None:
    at = f"/api/v1/namespaces/{RED}"
    before = ground.admin.get(at)["metadata"]["labels"]
    for who in (ground.mallory, ground.chief):
        said = who.refused("PATCH", at, {"metadata": {"labels": {"fairgate.io/tenant": "ns.blue"}}})
        assert said is not None
        assert layer_of(said) == "R"
    assert ground.admin.get(at)["metadata"]["labels"] == before
    outcomes(10, ground.mode, "labels of the namespace", "R", said)


def test_10_no_label_of_a_namespace_says_whose_it_is(
    ground: Ground, outcomes: Outcomes, nomad: Person
) -> None:
    labels = {"fairgate.io/tenant": "ns.blue"}
    at = f"/api/v1/namespaces/{RED}"
    assert nomad.refused("PATCH", at, {"metadata": {"labels": labels}}) is None
    name = ground.name("counted")
    said = answer(ground.mallory, "POST", path(RED), ready(ground, body(name, TOO_MANY)))
    if ground.mode == "killed":
        assert layer_of(said.message) == "outage"
    else:
        assert said["metadata"]["labels"]["fairgate.io/tenant"] == "ns.red"
        remove(ground, name)


def stamps(pod: Object) -> Object:
    """Return what Fairgate reads of a pod's labels and annotations."""
    written = {**pod["metadata"].get("labels", {}), **pod["metadata"].get("annotations", {})}
    return {key: value for key, value in written.items() if key.startswith("fairgate.io/")}
