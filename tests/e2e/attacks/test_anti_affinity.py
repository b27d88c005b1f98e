"""Row 34: a pod's required anti-affinity that excludes the pods of another team from every node."""

from __future__ import annotations

import pytest

from app.core.admission import validation
from tests.e2e.attacks.attack_cluster import (
    BLUE,
    RED,
    AttackEnvironment,
    Object,
    body,
    layer_of,
    path,
)
from tests.e2e.attacks.attack_helpers import CREATED
from tests.e2e.attacks.attack_namespaces import FIRST, only, yard
from tests.e2e.attacks.outcomes import Outcomes
from tests.support.cluster_driver import Stage, name_of, until

ATTACK = "keep others' pods off the nodes by required podAntiAffinity"
REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
EVERYWHERE = "type"
"""A label with the same value on all nodes."""
TENANT = {"labelSelector": {"matchLabels": {"fairgate.io/tenant": f"ns.{BLUE}"}}}
HAS_TENANT = {"key": "fairgate.io/tenant", "operator": "Exists"}
WALLS: dict[str, Object] = {
    "all namespaces": {"namespaceSelector": {}, **TENANT},
    "all pods of all namespaces": {"namespaceSelector": {}, "labelSelector": {}},
    "a chosen namespace": {
        "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": BLUE}},
        "labelSelector": {},
    },
    "a named namespace": {"namespaces": [BLUE], "labelSelector": {}},
    "a named namespace among others": {"namespaces": [RED, BLUE], "labelSelector": {}},
    "every tenant": {"labelSelector": {"matchExpressions": [HAS_TENANT]}},
    "all other tenants": {"labelSelector": {}, "mismatchLabelKeys": ["fairgate.io/tenant"]},
}


def wall(name: str, term: Object, gpus: int = 0, key: str = EVERYWHERE) -> Object:
    """Return a pod with required anti-affinity to other pods."""
    rule = {REQUIRED: [{"topologyKey": key, **term}]}
    return body(name, gpus, affinity={"podAntiAffinity": rule})


@pytest.mark.parametrize("reach", WALLS)
def test_34_anti_affinity_to_pods_of_other_namespaces_is_refused(
    env: AttackEnvironment, outcomes: Outcomes, reach: str
) -> None:
    for who in (env.mallory, env.chief):
        name = env.name("wall")
        said = who.refused("POST", path(RED), wall(name, WALLS[reach]))
        assert said is not None
        assert validation.DISTANCE in said
        assert layer_of(said) == FIRST[env.mode]
        assert not env.exists(name)
    outcomes(34, env.mode, ATTACK, layer_of(said), said)


def test_34_anti_affinity_to_other_namespaces_is_refused_for_device_pods(
    env: AttackEnvironment,
) -> None:
    name = env.name("wall")
    made = wall(name, WALLS["all namespaces"], gpus=1)
    made = env.stamped(made) if env.mode == "policies" else made
    said = env.mallory.refused("POST", path(RED), made)
    assert said is not None
    stored = {**FIRST, "killed": CREATED["killed"]}  # the pod must be held first
    assert layer_of(said) == stored[env.mode]
    assert env.mode == "killed" or validation.DISTANCE in said
    assert not env.exists(name)


def test_34_nor_is_a_term_added_later(env: AttackEnvironment, outcomes: Outcomes) -> None:
    name = env.held()
    rule = {REQUIRED: [{"topologyKey": EVERYWHERE, **WALLS["all namespaces"]}]}
    affinity = {"podAntiAffinity": rule}
    for who in (env.mallory, env.chief):
        for kind, change in (
            ("merge", {"spec": {"affinity": affinity}}),
            ("json", [{"op": "add", "path": "/spec/affinity", "value": affinity}]),
        ):
            said = who.refused("PATCH", path(RED, name), change, kind)
            assert said is not None
            assert layer_of(said) == "K"
    stored = env.pod(name)["spec"].get("affinity", {})
    assert "podAntiAffinity" not in stored
    outcomes(34, env.mode, "the same by a later change of a held pod", "K", said)


def test_34_anti_affinity_within_a_namespace_is_allowed(
    env: AttackEnvironment, outcomes: Outcomes
) -> None:
    name = env.name("apart")
    term = {"labelSelector": {"matchLabels": {"app": name}}}
    assert env.mallory.refused("POST", path(RED), wall(name, term)) is None
    outcomes(34, env.mode, "the same within a namespace", "D", "its own pods wait")
    env.mallory.call("DELETE", path(RED, name), {"gracePeriodSeconds": 1})


@only("everything", "policies", "webhook")
def test_34_pods_excluded_by_existing_anti_affinity_stay_held(
    env: AttackEnvironment, stage: Stage, outcomes: Outcomes
) -> None:
    where = yard(env, stage)
    term = {"namespaceSelector": {}, "labelSelector": {"matchLabels": {"team": where.namespace}}}
    name, exempt = env.name("wall"), "kube-system"
    env.admin.call("POST", path(exempt), wall(name, term))
    try:
        running = lambda: env.pod(name, exempt)["status"].get("phase") == "Running"  # noqa: E731
        until("the wall stands", running)
        walled = body("walled")
        walled["metadata"]["labels"] = {"team": where.namespace}
        assert where.make(walled) is None
        assert where.make(body("free")) is None
        until("another pod is released", lambda: "free" in where.released())
        told = lambda: where.told("walled", "Held", "anti-affinity of existing pods")  # noqa: E731
        until("its owner is told", told)
        assert where.held() == {"walled"}
    finally:
        env.admin.call("DELETE", path(exempt, name), {"gracePeriodSeconds": 1})
    until("it goes on", lambda: where.released() == {"free", "walled"})
    assert {name_of(pod) for pod in where.pods} == {"free", "walled"}
    outcomes(34, env.mode, "a term that exists already", "D", "the pods it selects stay held")
