"""Row 12: a release meant for one pod, used by another pod."""

from __future__ import annotations

from app.core.admission import validation
from app.core.effects import Intend, PodRef, Release
from app.core.model import Millis, PoolName, TenantName, Uid, UserName
from app.core.release_patch import release_labels, release_patch
from app.core.well_known import RELEASE_HELD
from tests.e2e.attacks.attack_cluster import (
    OWN_GATE,
    RED,
    TOO_MANY,
    AttackEnvironment,
    Object,
    body,
    layer_of,
    path,
)
from tests.e2e.attacks.attack_helpers import answer, ready, remove, submit, with_token, without
from tests.e2e.attacks.outcomes import Outcomes
from tests.support.cluster_driver import GATE, RELEASE, gates, stamp, until
from tests.support.personas import Refused

ROUNDS = 10


def late(name: str, uid: str) -> list[Object]:
    """Return the patch of a release that was decided for a pod of this uid."""
    tenant, user, pool = TenantName("ns.red"), UserName("mallory"), PoolName("default")
    order = Release(
        intent=Intend(PodRef(Uid(uid), RED, name), tenant, user, pool, {}, 1, 999_999),
        expected_annotation=RELEASE_HELD,
        selector={},
        labels=release_labels(tenant, user, pool),
        has_selector=False,
        has_labels=True,
        has_annotations=True,
        preemptible=True,
        waiting_since=Millis(0),
    )
    return release_patch(order)


def test_12_release_patch_does_not_apply_to_a_new_pod_of_the_same_name(
    env: AttackEnvironment, outcomes: Outcomes
) -> None:
    name = env.held()
    uid = env.pod(name)["metadata"]["uid"]
    if env.mode == "killed":  # pods cannot be created: use another pod
        name = env.held()
    else:
        remove(env, name)
        submit(env, body(name, TOO_MANY))
    leader = with_token(env, "fairgate-system", "fairgate-controller")
    said = answer(leader, "PATCH", path(RED, name), late(name, uid), "json")
    assert isinstance(said, Refused)
    assert (said.status, layer_of(said.message)) == (422, "K")
    assert env.is_held(name)
    assert stamp(env.pod(name)) == RELEASE_HELD
    # Only the uid stopped the patch.
    mine = late(name, env.pod(name)["metadata"]["uid"])
    assert gates(leader.call("PATCH", path(RED, name) + "?dryRun=All", mine, "json")) == []
    outcomes(12, env.mode, "recreate the pod before the patch", "D", f"422 {said.message}")


def test_12_pod_recreated_during_its_release_stays_held(
    env: AttackEnvironment, outcomes: Outcomes
) -> None:
    if env.mode == "killed":
        name = env.name("again")
        said = env.mallory.refused("POST", path(RED), body(name, TOO_MANY))
        assert layer_of(said) == "outage"
        return
    names = [env.name("again") for _ in range(ROUNDS)]
    for number, name in enumerate(names):
        _recreate(env, name, reads=number)
    witness = env.name("witness")
    submit(env, body(witness))
    until("who came later is released", lambda: not env.is_held(witness))
    # A node that was about to end a small pod ends the pod that now has its name.
    there = [name for name in names if env.exists(name)]
    assert there
    for name in there:
        found = env.pod(name)
        assert gates(found) == [GATE]
        assert stamp(found) == RELEASE_HELD
        assert "fairgate.io/pool" not in found["metadata"]["labels"]
        assert "nodeName" not in found["spec"]
    remove(env, witness, *names)


def _recreate(env: AttackEnvironment, name: str, reads: int) -> None:
    """Let a small pod be released, and replace it by a large pod of the same name meanwhile."""
    mallory, at = env.mallory, path(RED, name)
    small = submit(env, body(name, schedulingGates=[{"name": OWN_GATE}, {"name": GATE}]))
    assert mallory.refused("PATCH", at, without(OWN_GATE, gates(small)), "json") is None
    for _ in range(reads):  # a little later each time
        mallory.get(at)
    mallory.refused("DELETE", at, {"gracePeriodSeconds": 0})
    large = ready(env, body(name, TOO_MANY))
    until("its name is free", lambda: mallory.refused("POST", path(RED), large) is None)


def test_12_copied_release_annotation_does_not_release_a_pod(
    env: AttackEnvironment, outcomes: Outcomes
) -> None:
    name = env.name("copy")
    pods = env.admin.get(path(RED))["items"]
    old = next(each["metadata"] for each in pods if "." in stamp(each))
    made = ready(env, body(name, TOO_MANY))
    for part in ("annotations", "labels"):
        ours = {k: v for k, v in old[part].items() if k.startswith("fairgate.io/")}
        made["metadata"][part] = {**made["metadata"].get(part, {}), **ours}
    assert "." in made["metadata"]["annotations"][RELEASE]
    said = answer(env.mallory, "POST", path(RED), made)
    match env.mode:
        case "policies":
            assert layer_of(said.message) == "P"
            assert validation.UNSTAMPED in said.message
        case "killed":
            assert layer_of(said.message) == "outage"
        case _:
            assert gates(said) == [GATE]
            assert stamp(said) == RELEASE_HELD
            assert "fairgate.io/pool" not in said["metadata"]["labels"]
            assert "nodeName" not in env.pod(name)["spec"]
    refused = isinstance(said, Refused)
    layer, saw = (layer_of(said.message), said.message) if refused else ("W", "overwritten: held")
    outcomes(12, env.mode, "copy an old release annotation", layer, saw)
    remove(env, name)
