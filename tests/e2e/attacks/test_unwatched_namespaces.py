"""Row 9, and row 10 for namespaces: pods in namespaces that Fairgate might not watch."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from app.core.admission import validation
from tests.e2e.attacks.attack_cluster import (
    RED,
    TOO_MANY,
    AttackEnvironment,
    Object,
    body,
    layer_of,
    path,
)
from tests.e2e.attacks.attack_helpers import answer, ready, remove, rule, somebody
from tests.e2e.attacks.outcomes import NOT_ITS_LAYER, Outcomes
from tests.support.cluster_driver import GATE, gates, until
from tests.support.personas import Person, Refused

NAME_OF_NAMESPACE = "kubernetes.io/metadata.name"
NOT_YET = ("not found", "error looking up service account")


@pytest.fixture(scope="module")
def nomad(env: AttackEnvironment) -> Person:
    """A user that may create and label namespaces, and create pods in every namespace."""
    namespaces = rule("create get patch", "namespaces")
    inside = rule("get create", "serviceaccounts", "pods")
    return somebody(env, "nomad", namespaces, inside, namespace=None)


def namespace(name: str, **labels: str) -> Object:
    """Return a namespace."""
    metadata = {"name": name, "labels": labels}
    return {"apiVersion": "v1", "kind": "Namespace", "metadata": metadata}


def test_09_a_namespace_of_this_very_moment_is_looked_at(
    env: AttackEnvironment, outcomes: Outcomes, nomad: Person
) -> None:
    new = env.name("new")
    account: Object = {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {}}
    account["metadata"]["name"] = "default"

    def attack(number: int) -> Any:
        """Try until the namespace and its service account exist."""
        while True:
            made = ready(env, body(f"early-{number}", TOO_MANY), "nomad", new)
            bare = body(f"early-{number}", TOO_MANY) if number % 2 else made
            said = answer(nomad, "POST", path(new), bare)
            if not (isinstance(said, Refused) and any(word in said.message for word in NOT_YET)):
                return said

    with ThreadPoolExecutor(8) as crowd:
        done = [crowd.submit(attack, number) for number in range(8)]
        nomad.call("POST", "/api/v1/namespaces", namespace(new))
        # Kubernetes creates it too, a moment later.
        answer(nomad, "POST", f"/api/v1/namespaces/{new}/serviceaccounts", account)
        answers = [each.result() for each in done]
    for number, said in enumerate(answers):
        match env.mode:
            case "killed":
                assert layer_of(said.message) == "outage"
            case "policies" if number % 2:
                assert layer_of(said.message) == "P"
                assert validation.UNGATED in said.message
            case _:
                assert gates(said) == [GATE]
    stored = env.admin.get(path(new))["items"]
    assert all(gates(each) == [GATE] and "nodeName" not in each["spec"] for each in stored)
    refused = [each for each in answers if isinstance(each, Refused)]
    layer = layer_of(refused[0].message) if refused else "D"
    saw = refused[0].message if refused else "held like other pods"
    outcomes(9, env.mode, "a namespace created in the same moment", layer, saw)


def test_09_no_label_of_a_namespace_spares_its_pods(
    env: AttackEnvironment, outcomes: Outcomes, nomad: Person
) -> None:
    new = env.name("quiet")
    forged = {NAME_OF_NAMESPACE: "kube-system"}
    made = nomad.call("POST", "/api/v1/namespaces", namespace(new, **forged))
    assert made["metadata"]["labels"] == {NAME_OF_NAMESPACE: new}
    for labels in (forged, {NAME_OF_NAMESPACE: None}, {"fairgate.io/exempt": "true"}):
        change = {"metadata": {"labels": labels}}
        kept = nomad.call("PATCH", f"/api/v1/namespaces/{new}", change)["metadata"]["labels"]
        assert kept[NAME_OF_NAMESPACE] == new
    until("pods can be made", lambda: can_make_pods(env, new))
    said = answer(nomad, "POST", path(new), body("unseen", TOO_MANY))
    match env.mode:
        case "policies":
            assert layer_of(said.message) == "P"
            assert validation.UNGATED in said.message
        case "killed":
            assert layer_of(said.message) == "outage"
        case _:
            assert gates(said) == [GATE]
    outcomes(9, env.mode, "labels of a namespace", "K", "the label with its name stays as it was")


def can_make_pods(env: AttackEnvironment, namespace: str) -> bool:
    account = f"/api/v1/namespaces/{namespace}/serviceaccounts/default"
    return env.admin.refused("GET", account, None) is None


def test_09_tenant_users_cannot_create_pods_in_exempt_namespaces(
    env: AttackEnvironment, outcomes: Outcomes
) -> None:
    for who in (env.mallory, env.chief):
        for exempt in ("kube-system", "fairgate-system", "gpu-operator"):
            name = env.name("guest")
            said = who.refused("POST", path(exempt), body(name))
            assert said is not None
            assert layer_of(said) == "R"
            assert not env.exists(name, exempt)
    outcomes(9, env.mode, "an exempt namespace", "R", said)


def test_09_namespace_creator_can_create_an_exempt_namespace(
    env: AttackEnvironment, outcomes: Outcomes, nomad: Person
) -> None:
    """Fairgate does not forbid it. RBAC must reserve these names."""
    exempt, name = "gpu-operator", env.name("spared")
    nomad.refused("POST", "/api/v1/namespaces", namespace(exempt))
    until("pods can be made", lambda: can_make_pods(env, exempt))
    assert nomad.refused("POST", path(exempt), body(name, TOO_MANY)) is None
    assert gates(env.pod(name, exempt)) == []
    saw = "not held: RBAC must forbid these names to creators of namespaces"
    outcomes(9, env.mode, "create a namespace with an exempt name", NOT_ITS_LAYER, saw)
    remove(env, name, namespace=exempt)


def test_10_a_tenant_does_not_label_its_namespace(
    env: AttackEnvironment, outcomes: Outcomes
) -> None:
    at = f"/api/v1/namespaces/{RED}"
    before = env.admin.get(at)["metadata"]["labels"]
    for who in (env.mallory, env.chief):
        said = who.refused("PATCH", at, {"metadata": {"labels": {"fairgate.io/tenant": "ns.blue"}}})
        assert said is not None
        assert layer_of(said) == "R"
    assert env.admin.get(at)["metadata"]["labels"] == before
    outcomes(10, env.mode, "labels of the namespace", "R", said)


def test_10_tenant_label_of_a_namespace_has_no_effect(
    env: AttackEnvironment, outcomes: Outcomes, nomad: Person
) -> None:
    labels = {"fairgate.io/tenant": "ns.blue"}
    at = f"/api/v1/namespaces/{RED}"
    assert nomad.refused("PATCH", at, {"metadata": {"labels": labels}}) is None
    name = env.name("counted")
    said = answer(env.mallory, "POST", path(RED), ready(env, body(name, TOO_MANY)))
    if env.mode == "killed":
        assert layer_of(said.message) == "outage"
    else:
        assert said["metadata"]["labels"]["fairgate.io/tenant"] == "ns.red"
        remove(env, name)
