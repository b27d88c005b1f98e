"""Rows 3, 6, 7, 11 and 12: reaching a node without passing the queue."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from app.core.admission import validation
from tests.e2e.attacks.attack_cluster import (
    NODE,
    RED,
    AttackEnvironment,
    Object,
    body,
    layer_of,
    path,
)
from tests.e2e.attacks.attack_helpers import (
    CHANGED,
    CREATED,
    STORED,
    answer,
    ready,
    remove,
    rule,
    somebody,
    submit,
)
from tests.e2e.attacks.outcomes import Outcomes
from tests.support.cluster_driver import GATE, gates, stamp, until
from tests.support.personas import Person, Refused

BINDING = rule("create", "pods/binding", "bindings")
BIND = rule("bind", "podgates", group="fairgate.io")
OTHER = "other-scheduler"
MIRROR = {"kubernetes.io/config.mirror": "x"}


@pytest.fixture(scope="module")
def binder(env: AttackEnvironment) -> Person:
    """A user that may bind pods but has no Fairgate role."""
    who = somebody(env, "binder", BINDING)

    def refused() -> bool:  # an API server notices the removal of a policy a moment later
        answers = [said for _, said in binds(who, "nothing", NODE)]
        return all(layer_of(str(said)) == CHANGED[env.mode] for said in answers)

    until("bindings meet the layer of the mode", refused)
    return who


@pytest.fixture(scope="module")
def other(env: AttackEnvironment) -> Person:
    """A second scheduler that has Fairgate's role."""
    return somebody(env, OTHER, BINDING, BIND, namespace=None)


def mirror(env: AttackEnvironment, name: str, node: str = NODE) -> Object:
    """Return the mirror pod of a static pod with a GPU, as a kubelet creates it."""
    about = env.admin.get(f"/api/v1/nodes/{node}")["metadata"]
    owner = {"apiVersion": "v1", "kind": "Node", "name": node, "uid": about["uid"]}
    made = body(name, nodeName=node)
    made["metadata"] |= {"annotations": MIRROR, "ownerReferences": [{**owner, "controller": True}]}
    return made


def binds(who: Person, name: str, node: str) -> Iterator[tuple[str, object]]:
    """Try to bind a pod of `red` through both endpoints; yield each answer."""
    target = {"kind": "Node", "name": node}
    binding = {"apiVersion": "v1", "kind": "Binding", "metadata": {"name": name}, "target": target}
    for door in (path(RED, name, "binding"), f"/api/v1/namespaces/{RED}/bindings"):
        yield door, answer(who, "POST", door, binding)


def test_03_pod_with_a_node_name_is_refused(env: AttackEnvironment, outcomes: Outcomes) -> None:
    layer = CREATED[env.mode]
    for who in (env.mallory, env.chief):
        for node in (NODE, "no-such-node"):
            name = env.name("seated")
            said = who.refused("POST", path(RED), body(name, nodeName=node))
            assert said is not None
            assert layer_of(said) == layer
            assert layer == "outage" or validation.NODE_NAME in said
            assert not env.exists(name)
    outcomes(3, env.mode, "create with nodeName", layer, said)


def test_03_a_gate_does_not_buy_a_node(env: AttackEnvironment, outcomes: Outcomes) -> None:
    name = env.name("seated")
    said = env.mallory.refused("POST", path(RED), env.stamped(body(name, nodeName=NODE)))
    assert said is not None
    # Without the webhook the API server detects the contradiction before any policy runs.
    layer = CREATED[env.mode] if env.mode != "policies" else "K"
    assert layer_of(said) == layer
    sentence = {
        "W": validation.NODE_NAME,
        "K": "cannot be set until all schedulingGates have been cleared",
    }
    assert sentence.get(layer, "") in said
    assert not env.exists(name)
    outcomes(3, env.mode, "nodeName behind a gate and stamps written by hand", layer, said)


def test_03_only_the_node_itself_mirrors_its_static_pods(
    env: AttackEnvironment, outcomes: Outcomes
) -> None:
    name = env.name("static")
    said = env.node.refused("POST", path(RED), mirror(env, name))
    if env.mode == "killed":
        assert layer_of(said) == "outage"
        assert not env.exists(name)
        return
    assert said is None
    assert env.pod(name)["spec"]["nodeName"] == NODE
    assert gates(env.pod(name)) == []
    remove(env, name)


def test_06_user_without_the_right_to_bind_cannot_bind_a_pod(
    env: AttackEnvironment, outcomes: Outcomes
) -> None:
    name = env.held()
    for who in (env.mallory, env.chief):
        for door, said in binds(who, name, NODE):
            assert isinstance(said, Refused), door
            assert said.status == 403
            assert "cannot create resource" in said.message
    assert env.is_held(name)
    assert "nodeName" not in env.pod(name)["spec"]
    outcomes(6, env.mode, "bind as a tenant", "R", said.message)


def test_06_the_right_to_bind_alone_binds_no_held_pod(
    env: AttackEnvironment, outcomes: Outcomes, binder: Person
) -> None:
    name, layer = env.held(), CHANGED[env.mode]
    for door, said in binds(binder, name, NODE):
        assert isinstance(said, Refused), door
        assert layer_of(said.message) == layer
        assert validation.BIND.format("binder") in said.message
    assert env.is_held(name)
    assert "nodeName" not in env.pod(name)["spec"]
    outcomes(6, env.mode, "bind with RBAC's right to", layer, said.message)


def test_06_a_scheduler_binds_no_held_pod(env: AttackEnvironment, outcomes: Outcomes) -> None:
    name = env.held()
    for door, said in binds(env.scheduler, name, NODE):
        assert isinstance(said, Refused), door
        assert (said.status, layer_of(said.message)) == (409, "K")
        assert "has non-empty .spec.schedulingGates" in said.message
    assert env.is_held(name)
    assert "nodeName" not in env.pod(name)["spec"]
    outcomes(6, env.mode, "bind a held pod as the scheduler", "K", said.message)


def test_06_binder_cannot_bind_a_released_pod_to_a_chosen_node(
    env: AttackEnvironment, outcomes: Outcomes, binder: Person
) -> None:
    if env.mode == "killed":  # no new pod arrives
        name = env.released()
    else:
        name = env.name("adrift")
        missing = [{"name": "v", "persistentVolumeClaim": {"claimName": "missing"}}]
        submit(env, body(name, volumes=missing))
        until("it is released", lambda: not env.is_held(name))
    before = env.pod(name)["spec"].get("nodeName")
    for door, said in binds(binder, name, "gpu-node-3"):
        assert isinstance(said, Refused), door
        assert layer_of(said.message) == CHANGED[env.mode]
        assert validation.BIND.format("binder") in said.message
    assert env.pod(name)["spec"].get("nodeName") == before
    remove(env, name)


def test_07_another_scheduler_gets_no_managed_pod(
    env: AttackEnvironment, outcomes: Outcomes
) -> None:
    name, layer = env.name("elsewhere"), STORED[env.mode]
    made = ready(env, body(name, schedulerName=OTHER))
    said = env.mallory.refused("POST", path(RED), made)
    assert said is not None
    assert layer_of(said) == layer
    assert layer == "outage" or validation.SCHEDULER.format(OTHER, "default-scheduler") in said
    assert not env.exists(name)
    outcomes(7, env.mode, "another schedulerName", layer, said)


def test_06_namespace_wide_rights_do_not_permit_binding(env: AttackEnvironment) -> None:
    """A RoleBinding of cluster-admin grants such rights. The verb must be granted cluster-wide."""
    wild = somebody(env, "wild", BINDING, BIND)
    for door, said in binds(wild, env.held(), NODE):
        assert isinstance(said, Refused), door
        assert validation.BIND.format("wild") in said.message


def test_07_another_scheduler_binds_no_held_pod(
    env: AttackEnvironment, outcomes: Outcomes, other: Person
) -> None:
    name = env.held()
    for door, said in binds(other, name, NODE):
        assert isinstance(said, Refused), door
        assert (said.status, layer_of(said.message)) == (409, "K")
        assert "has non-empty .spec.schedulingGates" in said.message
    assert env.is_held(name)
    assert "nodeName" not in env.pod(name)["spec"]
    outcomes(7, env.mode, "bind a held pod, with every right to bind", "K", said.message)


def test_11_mirror_pod_of_a_tenant_user_is_refused(
    env: AttackEnvironment, outcomes: Outcomes
) -> None:
    name, layer = env.name("static"), CREATED[env.mode]
    for who in (env.mallory, env.chief):
        said = who.refused("POST", path(RED), mirror(env, name))
        assert said is not None
        assert layer_of(said) == layer
        assert layer == "outage" or validation.NODE_NAME in said
    assert not env.exists(name)
    outcomes(11, env.mode, "a false mirror of a static pod", layer, said)


def test_11_a_node_mirrors_no_static_pod_of_another(
    env: AttackEnvironment, outcomes: Outcomes
) -> None:
    name = env.name("static")
    said = env.node.refused("POST", path(RED), mirror(env, name, "gpu-node-1"))
    assert said is not None
    assert layer_of(said) == "K"
    assert "can only create pods with spec.nodeName set to itself" in said
    assert not env.exists(name)
    outcomes(11, env.mode, "a node for another node", "K", said)


def test_11_no_owner_spares_a_pod_the_queue(env: AttackEnvironment, outcomes: Outcomes) -> None:
    name = env.name("owned")
    daemons = env.admin.call("POST", "/apis/apps/v1/namespaces/kube-system/daemonsets", daemon())
    about = daemons["metadata"]
    owner = {"apiVersion": "apps/v1", "kind": "DaemonSet", "controller": True}
    made = body(name)
    made["metadata"]["ownerReferences"] = [{**owner, "name": about["name"], "uid": about["uid"]}]
    said = answer(env.mallory, "POST", path(RED), made)
    match env.mode:
        case "policies":
            assert layer_of(said.message) == "P"
            assert validation.UNGATED in said.message
        case "killed":
            assert layer_of(said.message) == "outage"
        case _:
            assert gates(said) == [GATE]
            assert stamp(said) == "0"
    refused = isinstance(said, Refused)
    layer, saw = (
        (layer_of(said.message), said.message) if refused else ("D", "held like other pods")
    )
    outcomes(11, env.mode, "an ownerReference to an exempt DaemonSet", layer, saw)
    remove(env, name)
    env.admin.call("DELETE", f"/apis/apps/v1/namespaces/kube-system/daemonsets/{about['name']}")


def daemon() -> Object:
    """Return a DaemonSet that matches no node."""
    labels = {"app": "device-plugin"}
    spec = {"containers": [{"name": "c", "image": "i"}], "nodeSelector": {"place": "nowhere"}}
    return {
        "apiVersion": "apps/v1",
        "kind": "DaemonSet",
        "metadata": {"name": "device-plugin"},
        "spec": {
            "selector": {"matchLabels": labels},
            "template": {"metadata": {"labels": labels}, "spec": spec},
        },
    }
