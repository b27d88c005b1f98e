"""Row 36: a running pod is made to disappear, so that its devices count as free while in use."""

from __future__ import annotations

from tests.e2e.attacks.attack_cluster import RED, AttackEnvironment, Object, layer_of, path
from tests.e2e.attacks.attack_namespaces import FIRST
from tests.e2e.attacks.outcomes import Outcomes
from tests.support.cluster_driver import until

NOW = {"gracePeriodSeconds": 0}
SENTENCE = "use --grace-period=1, which its node confirms"
ATTACK = "delete or evict a running pod with a grace period of 0"


def eviction(name: str, options: Object) -> Object:
    metadata = {"name": name, "namespace": RED}
    kind = {"apiVersion": "policy/v1", "kind": "Eviction"}
    return {**kind, "metadata": metadata, "deleteOptions": options}


def test_36_a_running_pod_does_not_vanish(env: AttackEnvironment, outcomes: Outcomes) -> None:
    name = env.released()
    mallory, at = env.mallory, path(RED, name)
    label = {"metadata": {"labels": {"victim": name}}}
    mallory.call("PATCH", at, label)
    uid = env.pod(name)["metadata"]["uid"]
    all_of_them = f"{path(RED)}?labelSelector=victim%3D{name}"
    for said in (
        mallory.refused("DELETE", at, NOW),
        mallory.refused("DELETE", f"{at}?gracePeriodSeconds=0", None),
        mallory.refused("DELETE", at, {**NOW, "preconditions": {"uid": uid}}),
        mallory.refused("DELETE", at, {**NOW, "propagationPolicy": "Orphan"}),
        mallory.refused("DELETE", all_of_them, NOW),
        mallory.refused("POST", path(RED, name, "eviction"), eviction(name, NOW)),
        env.chief.refused("DELETE", at, NOW),
    ):
        assert said is not None
        assert SENTENCE in said
        assert layer_of(said) == FIRST[env.mode]
    mallory.refused("PATCH", at, {"metadata": {"deletionGracePeriodSeconds": 0}})
    metadata = env.pod(name)["metadata"]
    assert metadata["uid"] == uid
    assert not metadata.keys() & {"deletionTimestamp", "deletionGracePeriodSeconds"}
    outcomes(36, env.mode, ATTACK, layer_of(said), said or "")


def test_36_nor_does_it_vanish_while_it_ends(env: AttackEnvironment, outcomes: Outcomes) -> None:
    name = env.released()
    mallory, at = env.mallory, path(RED, name)
    mallory.call("PATCH", at, {"metadata": {"finalizers": ["example.com/stays"]}})
    mallory.call("DELETE", at, {"gracePeriodSeconds": 3600})
    assert "deletionTimestamp" in env.pod(name)["metadata"]
    said = mallory.refused("DELETE", at, NOW)
    assert said is not None
    assert SENTENCE in said
    assert layer_of(said) == FIRST[env.mode]
    outcomes(36, env.mode, "the same, after a deletion with a long one", layer_of(said), said)
    mallory.call("PATCH", at, {"metadata": {"finalizers": None}})
    until("it is gone", lambda: not env.exists(name))


def test_36_pod_deleted_with_one_second_of_grace_ends_on_its_node(
    env: AttackEnvironment, outcomes: Outcomes
) -> None:
    name = env.released()
    assert env.mallory.refused("DELETE", path(RED, name), {"gracePeriodSeconds": 1}) is None
    until("its node confirms that", lambda: not env.exists(name))
    outcomes(36, env.mode, "the same with 1", "D", "counts as used until its node confirms")
