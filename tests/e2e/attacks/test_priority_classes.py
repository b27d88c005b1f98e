"""Row 14: jumping the queue, or preempting other pods, with a PriorityClass."""

from __future__ import annotations

import pytest

from app.core.admission import validation
from tests.e2e.attacks.attack_cluster import (
    BLUE,
    RED,
    TOO_MANY,
    AttackEnvironment,
    Object,
    body,
    layer_of,
    path,
)
from tests.e2e.attacks.attack_helpers import CREATED, answer, ready, remove, told
from tests.e2e.attacks.outcomes import Outcomes
from tests.support.cluster_driver import until
from tests.support.personas import Refused

CLASSES = "/apis/scheduling.k8s.io/v1/priorityclasses"
URGENT, POLITE = "urgent", "urgent-and-polite"
HIGHEST = 1_000_000_000
SCARCE = "amd.com/gpu"
"""The cluster has one unit of this resource."""


def priority_class(name: str, policy: str) -> Object:
    kind = {"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass"}
    about = {"metadata": {"name": name}, "value": HIGHEST, "preemptionPolicy": policy}
    return {**kind, **about}


@pytest.fixture(scope="module", autouse=True)
def classes(env: AttackEnvironment) -> None:
    """The cluster has one class that preempts and one that does not."""
    for name, policy in ((URGENT, "PreemptLowerPriority"), (POLITE, "Never")):
        env.admin.refused("POST", CLASSES, priority_class(name, policy))
    if env.mode in ("everything", "webhook"):
        twin = f"{CLASSES}/fairgate-{URGENT}"
        until("it has a twin", lambda: env.admin.refused("GET", twin, None) is None)


def test_14_tenant_user_cannot_create_a_priority_class(
    env: AttackEnvironment, outcomes: Outcomes
) -> None:
    for who in (env.mallory, env.chief):
        said = who.refused("POST", CLASSES, priority_class("mine", "PreemptLowerPriority"))
        assert said is not None
        assert layer_of(said) == "R"
    assert env.admin.refused("GET", f"{CLASSES}/mine", None) is not None
    outcomes(14, env.mode, "create a PriorityClass", "R", said)


def test_14_pod_of_a_high_priority_class_does_not_preempt(
    env: AttackEnvironment, outcomes: Outcomes
) -> None:
    name = env.name("urgent")
    made = ready(env, body(name, TOO_MANY))
    made["spec"] |= {"priorityClassName": URGENT, "preemptionPolicy": "PreemptLowerPriority"}
    said = answer(env.mallory, "POST", path(RED), made)
    match said:
        case Refused():
            assert layer_of(said.message) == {"policies": "P", "killed": "outage"}[env.mode]
            assert env.mode == "killed" or validation.PREEMPTION in said.message
            assert not env.exists(name)
            outcomes(14, env.mode, "a high class", layer_of(said.message), said.message)
        case _:
            assert env.mode in ("everything", "webhook")
            spec = env.pod(name)["spec"]
            assert spec["priorityClassName"] == f"fairgate-{URGENT}"
            assert (spec["priority"], spec["preemptionPolicy"]) == (HIGHEST, "Never")
            saw = "replaced by its twin, which does not preempt"
            outcomes(14, env.mode, "a high class", "D", saw)
    remove(env, name)


def test_14_no_pod_is_the_clusters_own(env: AttackEnvironment, outcomes: Outcomes) -> None:
    name = env.name("system")
    made = ready(env, body(name, TOO_MANY))
    made["spec"] |= {"priorityClassName": "system-node-critical"}
    made["spec"].pop("preemptionPolicy", None)
    said = env.mallory.refused("POST", path(RED), made)
    assert said is not None
    layer = CREATED[env.mode]
    assert layer_of(said) == layer
    sentence = {"W": "is reserved for system pods", "P": validation.PREEMPTION}
    assert sentence.get(layer, "") in said
    assert not env.exists(name)
    outcomes(14, env.mode, "a class of the system", layer, said)


@pytest.mark.parametrize("which", ["held", "released"])
def test_14_a_pod_does_not_become_urgent_later(
    env: AttackEnvironment, outcomes: Outcomes, which: str
) -> None:
    name = env.held() if which == "held" else env.released()
    before = env.pod(name)["spec"]
    for change in (
        {"priorityClassName": URGENT},
        {"priority": HIGHEST},
        {"priorityClassName": URGENT, "priority": HIGHEST, "preemptionPolicy": None},
    ):
        said = env.mallory.refused("PATCH", path(RED, name), {"spec": change})
        assert said is not None, change
        assert layer_of(said) == "K"
        assert "pod updates may not change fields" in said
    # The webhook takes this for a repeated `kubectl apply` of the manifest and restores its values.
    policy = {"preemptionPolicy": "PreemptLowerPriority"}
    other = env.mallory.refused("PATCH", path(RED, name), {"spec": policy})
    assert (other is None) == (env.mode in ("everything", "webhook"))
    assert env.pod(name)["spec"] == before
    outcomes(14, env.mode, "another class later", "K", said.partition(":")[0])


def scarce(name: str, **spec: object) -> Object:
    made = body(name, 0, **spec)
    made["spec"]["containers"][0]["resources"] = {"limits": {SCARCE: 1}}
    return made


def node() -> Object:
    about = {"name": "scarce", "labels": {"kubernetes.io/hostname": "scarce", "type": "kwok"}}
    room = {"cpu": "64", "memory": "256Gi", "pods": "110", SCARCE: "1"}
    status = {"capacity": room, "allocatable": room}
    return {"apiVersion": "v1", "kind": "Node", "metadata": about, "status": status}


def test_14_priority_takes_no_turn_from_others(env: AttackEnvironment, outcomes: Outcomes) -> None:
    first, urgent, patient = (env.name(what) for what in ("first", "urgent", "patient"))
    hurried = ready(env, scarce(urgent, priorityClassName=POLITE))
    if env.mode == "killed":
        assert layer_of(env.mallory.refused("POST", path(RED), hurried)) == "outage"
        return
    env.admin.refused("POST", "/api/v1/nodes", node())
    env.mallory.call("POST", path(RED), ready(env, scarce(first)))
    until("the only one is taken", lambda: not env.is_held(first))
    env.mallory.call("POST", path(RED), hurried)
    env.bob.call("POST", path(BLUE), ready(env, scarce(patient), "bob", BLUE))
    wanted = f"waits for 1 {SCARCE}"
    until(
        "both wait",
        lambda: told(env, urgent, wanted)() and told(env, patient, wanted, BLUE)(),
    )
    assert env.pod(urgent)["spec"]["priority"] == HIGHEST
    remove(env, first)
    until("Bob's is released", lambda: not env.is_held(patient, BLUE))
    assert env.is_held(urgent)
    outcomes(14, env.mode, "a high class before others", "D", "orders one user's own pods")
    remove(env, patient, namespace=BLUE)
    remove(env, urgent)
