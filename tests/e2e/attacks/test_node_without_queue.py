"""Rows 3, 6, 7, 11 and 12: reaching a node without passing the queue."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from app.core.admission import validation
from tests.e2e.attacks.attack_cluster import NODE, RED, Ground, Object, body, layer_of, path
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
def binder(ground: Ground) -> Person:
    """A user that may bind pods but has no Fairgate role."""
    who = somebody(ground, "binder", BINDING)

    def refused() -> bool:  # an API server notices the removal of a policy a moment later
        answers = [said for _, said in binds(who, "nothing", NODE)]
        return all(layer_of(str(said)) == CHANGED[ground.mode] for said in answers)

    until("bindings meet the layer of the mode", refused)
    return who


@pytest.fixture(scope="module")
def other(ground: Ground) -> Person:
    """A second scheduler that has Fairgate's role."""
    return somebody(ground, OTHER, BINDING, BIND, namespace=None)


def mirror(ground: Ground, name: str, node: str = NODE) -> Object:
    """Return the mirror pod of a static pod with a GPU, as a kubelet creates it."""
    about = ground.admin.get(f"/api/v1/nodes/{node}")["metadata"]
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


def test_03_pod_with_a_node_name_is_refused(ground: Ground, outcomes: Outcomes) -> None:
    layer = CREATED[ground.mode]
    for who in (ground.mallory, ground.chief):
        for node in (NODE, "no-such-node"):
            name = ground.name("seated")
            said = who.refused("POST", path(RED), body(name, nodeName=node))
            assert said is not None
            assert layer_of(said) == layer
            assert layer == "outage" or validation.NODE_NAME in said
            assert not ground.exists(name)
    outcomes(3, ground.mode, "create with nodeName", layer, said)


def test_03_a_gate_does_not_buy_a_node(ground: Ground, outcomes: Outcomes) -> None:
    name = ground.name("seated")
    said = ground.mallory.refused("POST", path(RED), ground.stamped(body(name, nodeName=NODE)))
    assert said is not None
    # Without the webhook the API server detects the contradiction before any policy runs.
    layer = CREATED[ground.mode] if ground.mode != "policies" else "K"
    assert layer_of(said) == layer
    sentence = {
        "W": validation.NODE_NAME,
        "K": "cannot be set until all schedulingGates have been cleared",
    }
    assert sentence.get(layer, "") in said
    assert not ground.exists(name)
    outcomes(3, ground.mode, "nodeName behind a gate and stamps written by hand", layer, said)


def test_03_only_the_node_itself_mirrors_its_static_pods(
    ground: Ground, outcomes: Outcomes
) -> None:
    name = ground.name("static")
    said = ground.node.refused("POST", path(RED), mirror(ground, name))
    if ground.mode == "killed":
        assert layer_of(said) == "outage"
        assert not ground.exists(name)
        return
    assert said is None
    assert ground.pod(name)["spec"]["nodeName"] == NODE
    assert gates(ground.pod(name)) == []
    remove(ground, name)


def test_06_user_without_the_right_to_bind_cannot_bind_a_pod(
    ground: Ground, outcomes: Outcomes
) -> None:
    name = ground.held()
    for who in (ground.mallory, ground.chief):
        for door, said in binds(who, name, NODE):
            assert isinstance(said, Refused), door
            assert said.status == 403
            assert "cannot create resource" in said.message
    assert ground.is_held(name)
    assert "nodeName" not in ground.pod(name)["spec"]
    outcomes(6, ground.mode, "bind as a tenant", "R", said.message)


def test_06_the_right_to_bind_alone_binds_no_held_pod(
    ground: Ground, outcomes: Outcomes, binder: Person
) -> None:
    name, layer = ground.held(), CHANGED[ground.mode]
    for door, said in binds(binder, name, NODE):
        assert isinstance(said, Refused), door
        assert layer_of(said.message) == layer
        assert validation.BIND.format("binder") in said.message
    assert ground.is_held(name)
    assert "nodeName" not in ground.pod(name)["spec"]
    outcomes(6, ground.mode, "bind with RBAC's right to", layer, said.message)


def test_06_a_scheduler_binds_no_held_pod(ground: Ground, outcomes: Outcomes) -> None:
    name = ground.held()
    for door, said in binds(ground.scheduler, name, NODE):
        assert isinstance(said, Refused), door
        assert (said.status, layer_of(said.message)) == (409, "K")
        assert "has non-empty .spec.schedulingGates" in said.message
    assert ground.is_held(name)
    assert "nodeName" not in ground.pod(name)["spec"]
    outcomes(6, ground.mode, "bind a held pod as the scheduler", "K", said.message)


def test_06_binder_cannot_bind_a_released_pod_to_a_chosen_node(
    ground: Ground, outcomes: Outcomes, binder: Person
) -> None:
    if ground.mode == "killed":  # no new pod arrives
        name = ground.released()
    else:
        name = ground.name("adrift")
        missing = [{"name": "v", "persistentVolumeClaim": {"claimName": "missing"}}]
        submit(ground, body(name, volumes=missing))
        until("it is released", lambda: not ground.is_held(name))
    before = ground.pod(name)["spec"].get("nodeName")
    for door, said in binds(binder, name, "gpu-node-3"):
        assert isinstance(said, Refused), door
        assert layer_of(said.message) == CHANGED[ground.mode]
        assert validation.BIND.format("binder") in said.message
    assert ground.pod(name)["spec"].get("nodeName") == before
    remove(ground, name)


def test_07_another_scheduler_gets_no_managed_pod(ground: Ground, outcomes: Outcomes) -> None:
    name, layer = ground.name("elsewhere"), STORED[ground.mode]
    made = ready(ground, body(name, schedulerName=OTHER))
    said = ground.mallory.refused("POST", path(RED), made)
    assert said is not None
    assert layer_of(said) == layer
    assert layer == "outage" or validation.SCHEDULER.format(OTHER, "default-scheduler") in said
    assert not ground.exists(name)
    outcomes(7, ground.mode, "another schedulerName", layer, said)


def test_06_namespace_wide_rights_do_not_permit_binding(ground: Ground) -> None:
    """A RoleBinding of cluster-admin grants such rights. The verb must be granted cluster-wide."""
    wild = somebody(ground, "wild", BINDING, BIND)
    for door, said in binds(wild, ground.held(), NODE):
        assert isinstance(said, Refused), door
        assert validation.BIND.format("wild") in said.message


def test_07_another_scheduler_binds_no_held_pod(
    ground: Ground, outcomes: Outcomes, other: Person
) -> None:
    name = ground.held()
    for door, said in binds(other, name, NODE):
        assert isinstance(said, Refused), door
        assert (said.status, layer_of(said.message)) == (409, "K")
        assert "has non-empty .spec.schedulingGates" in said.message
    assert ground.is_held(name)
    assert "nodeName" not in ground.pod(name)["spec"]
    outcomes(7, ground.mode, "bind a held pod, with every right to bind", "K", said.message)


def test_11_mirror_pod_of_a_tenant_user_is_refused(ground: Ground, outcomes: Outcomes) -> None:
    name, layer = ground.name("static"), CREATED[ground.mode]
    for who in (ground.mallory, ground.chief):
        said = who.refused("POST", path(RED), mirror(ground, name))
        assert said is not None
        assert layer_of(said) == layer
        assert layer == "outage" or validation.NODE_NAME in said
    assert not ground.exists(name)
    outcomes(11, ground.mode, "a false mirror of a static pod", layer, said)


def test_11_a_node_mirrors_no_static_pod_of_another(ground: Ground, outcomes: Outcomes) -> None:
    name = ground.name("static")
    said = ground.node.refused("POST", path(RED), mirror(ground, name, "gpu-node-1"))
    assert said is not None
    assert layer_of(said) == "K"
    assert "can only create pods with spec.nodeName set to itself" in said
    assert not ground.exists(name)
    outcomes(11, ground.mode, "a node for another node", "K", said)


def test_11_no_owner_spares_a_pod_the_queue(ground: Ground, outcomes: Outcomes) -> None:
    name = ground.name("owned")
    daemons = ground.admin.call("POST", "/apis/apps/v1/namespaces/kube-system/daemonsets", daemon())
    about = daemons["metadata"]
    owner = {"apiVersion": "apps/v1", "kind": "DaemonSet", "controller": True}
    made = body(name)
    made["metadata"]["ownerReferences"] = [{**owner, "name": about["name"], "uid": about["uid"]}]
    said = answer(ground.mallory, "POST", path(RED), made)
    match ground.mode:
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
    outcomes(11, ground.mode, "an ownerReference to an exempt DaemonSet", layer, saw)
    remove(ground, name)
    ground.admin.call("DELETE", f"/apis/apps/v1/namespaces/kube-system/daemonsets/{about['name']}")


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
