"""Rows 1 and 2: removing the gate of a held pod, with every kind of write to a pod."""

from __future__ import annotations

import copy

from tests.e2e.attacks.attack_cluster import OPEN, RED, AttackEnvironment, layer_of, path
from tests.e2e.attacks.outcomes import Outcomes
from tests.support.cluster_driver import GATE

PATCHES = {
    "json": [OPEN],
    "merge": {"spec": {"schedulingGates": []}},
    "strategic": {"spec": {"schedulingGates": [{"$patch": "delete", "name": GATE}]}},
}


def test_01_tenant_users_cannot_remove_the_gate(env: AttackEnvironment, outcomes: Outcomes) -> None:
    for who in (env.mallory, env.chief):
        name = env.held()
        for kind, patch in PATCHES.items():
            said = who.refused("PATCH", path(RED, name), patch, kind)
            assert said is not None, kind
            assert layer_of(said) in {"killed": ("P", "outage")}.get(env.mode, ("P", "W"))
        changed = copy.deepcopy(env.pod(name))
        changed["spec"]["schedulingGates"] = []
        assert who.refused("PUT", path(RED, name), changed) is not None
        assert env.is_held(name)
    outcomes(1, env.mode, "remove the gate", layer_of(said), said)


def test_02_gate_labels_and_annotations_cannot_be_removed_together(
    env: AttackEnvironment, outcomes: Outcomes
) -> None:
    name = env.held()
    before = env.pod(name)
    forget = [OPEN, {"op": "remove", "path": "/metadata/labels"}]
    forget.append({"op": "remove", "path": "/metadata/annotations"})
    said = env.mallory.refused("PATCH", path(RED, name), forget, "json")
    assert said is not None
    after = env.pod(name)
    assert (after["spec"], after["metadata"]["annotations"]) == (
        before["spec"],
        before["metadata"]["annotations"],
    )
    outcomes(2, env.mode, "remove gate, labels and annotations", layer_of(said), said)
