"""Rows 17 to 21: attacks of a held or released pod, and devices beyond the request."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from app.core.admission import validation
from tests.e2e.attacks.attack_cluster import (
    NODE,
    RED,
    TOO_MANY,
    AttackEnvironment,
    body,
    layer_of,
    path,
)
from tests.e2e.attacks.attack_helpers import remove
from tests.e2e.attacks.attack_namespaces import FIRST, armed, late_webhook, yard
from tests.e2e.attacks.outcomes import NOT_ITS_LAYER, Outcomes
from tests.support.cluster_driver import GPU, Object, Stage, released_in_order, until
from tests.support.shares import policy
from tests.support.unschedulable import NOWHERE

VARIABLE = validation.VARIABLE.format("NVIDIA_VISIBLE_DEVICES, AMD_VISIBLE_DEVICES")
TOLERATION = validation.TOLERATION.format("nvidia.com/gpu, amd.com/gpu")
DEVICES = {"limits": {GPU: "2"}, "requests": {GPU: "2"}}
EVERY_DEVICE = [{"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"}]
PRIVILEGE = {"privileged": True}


def grown(**fields: Any) -> Object:
    return {"spec": {"containers": [{"name": "c", **fields}]}}


def joined(**fields: Any) -> Object:
    return {"spec": {"ephemeralContainers": [{"name": "late", "image": "i", **fields}]}}


def test_17_a_released_pod_grows_no_devices(
    env: AttackEnvironment, stage: Stage, outcomes: Outcomes
) -> None:
    name, eve = env.released(), armed(env, stage, "pods/resize", "pods/ephemeralcontainers")
    before = env.pod(name)["spec"]
    tries = (
        ("resize", grown(resources=DEVICES), "K", "only cpu and memory resources are mutable"),
        ("ephemeralcontainers", joined(resources=DEVICES), "K", "cannot be set for an Ephemeral"),
        ("ephemeralcontainers", joined(env=EVERY_DEVICE), FIRST[env.mode], VARIABLE),
        (
            "ephemeralcontainers",
            joined(securityContext=PRIVILEGE),
            FIRST[env.mode],
            validation.PRIVILEGED,
        ),
    )
    for sub, patch, layer, words in tries:
        said = eve.refused("PATCH", path(RED, name, sub), patch, "strategic")
        assert said is not None, words
        assert words in said
        assert layer_of(said) == layer
        attack = {"resize": "resize devices"}.get(sub, "add an ephemeral container with devices")
        outcomes(17, env.mode, attack, layer, said)
    after = env.pod(name)["spec"]
    assert after["containers"] == before["containers"]
    assert "ephemeralContainers" not in after


def test_17_a_gpu_that_a_later_webhook_adds_is_seen(
    env: AttackEnvironment, outcomes: Outcomes, tmp_path: Path
) -> None:
    item = body(env.name(), 0)
    item["metadata"]["labels"] = {"adds": "x"}
    dry = path(RED) + "?dryRun=All"
    with late_webhook(env, tmp_path, "adds"):
        until("it is called", lambda: env.mallory.refused("POST", dry, item) is not None)
        said = env.mallory.refused("POST", path(RED), item)
    assert said is not None
    assert validation.UNGATED in said
    assert layer_of(said) == FIRST[env.mode]
    assert not env.exists(item["metadata"]["name"])
    outcomes(17, env.mode, "a webhook after ours adds a GPU", layer_of(said), said)


def with_volume(item: Object, at: str) -> Object:
    item["spec"]["volumes"] = [{"name": "v", "hostPath": {"path": at}}]
    item["spec"]["containers"][0]["volumeMounts"] = [{"name": "v", "mountPath": "/mnt"}]
    return item


def reaching(name: str, how: str) -> Object:
    """Return a pod that requests no GPU and tries to reach one."""
    item = body(name, 0)
    container = item["spec"]["containers"][0]
    match how:
        case "variable":
            container["env"] = EVERY_DEVICE
        case "path":
            with_volume(item, "/dev/nvidia0")
        case "privilege":
            container["securityContext"] = PRIVILEGE
        case "toleration":
            item["spec"]["tolerations"] = [{"key": GPU, "operator": "Exists"}]
    return item


REACHES = {
    "variable": (VARIABLE, "NVIDIA_VISIBLE_DEVICES=all"),
    "path": (validation.PATH, "mount /dev/nvidia0"),
    "privilege": (validation.PRIVILEGED, "a privileged container"),
    "toleration": (TOLERATION, "tolerate the taint of GPU nodes"),
}


@pytest.mark.parametrize("how", REACHES)
def test_18_devices_are_not_reached_past_the_request(
    env: AttackEnvironment, outcomes: Outcomes, how: str
) -> None:
    sentence, attack = REACHES[how]
    name = env.name()
    said = env.mallory.refused("POST", path(RED), reaching(name, how))
    assert said is not None
    assert sentence in said
    assert layer_of(said) == FIRST[env.mode]
    assert not env.exists(name)
    outcomes(18, env.mode, attack, layer_of(said), said)


def unseen(name: str, how: str) -> Object:
    """Return a pod that no layer of Fairgate can distinguish from a legitimate pod."""
    item = body(name, 0)
    match how:
        case "a variable from a ConfigMap":
            item["spec"]["containers"][0]["envFrom"] = [{"configMapRef": {"name": "row-18"}}]
        case "the socket of the container runtime":
            with_volume(item, "/run/containerd/containerd.sock")
        case "tolerate every taint":
            item["spec"]["tolerations"] = [{"operator": "Exists"}]
    return item


@pytest.mark.parametrize(
    "how",
    [
        "a variable from a ConfigMap",
        "the socket of the container runtime",
        "tolerate every taint",
    ],
)
def test_18_hidden_device_access_is_left_to_nodes_and_pod_security(
    env: AttackEnvironment, stage: Stage, outcomes: Outcomes, how: str
) -> None:
    ours = yard(env, stage)
    name = env.name()
    at = f"/api/v1/namespaces/{ours.namespace}/configmaps"
    variables = {"metadata": {"name": "row-18"}, "data": {"NVIDIA_VISIBLE_DEVICES": "all"}}
    env.mallory.call("POST", at, variables)
    assert env.mallory.refused("POST", path(ours.namespace), unseen(name, how)) is None
    assert env.exists(name, ours.namespace)
    outcomes(18, env.mode, how, NOT_ITS_LAYER, "created: see Known limits")
    if how != "the socket of the container runtime":
        return
    level = "pod-security.kubernetes.io/enforce=baseline"
    env.cluster.kubectl("label", "namespace", ours.namespace, level)
    other = env.name()
    dry = path(ours.namespace) + "?dryRun=All"
    until("it is in force", lambda: bool(env.mallory.refused("POST", dry, unseen(other, how))))
    said = env.mallory.refused("POST", path(ours.namespace), unseen(other, how))
    assert said is not None
    assert 'violates PodSecurity "baseline' in said
    assert not env.exists(other, ours.namespace)


def ended() -> Object:
    return {"status": {"phase": "Succeeded"}}


def test_19_false_pod_status_is_refused(
    env: AttackEnvironment, stage: Stage, outcomes: Outcomes
) -> None:
    name = env.released()
    status = path(RED, name, "status")
    said = env.mallory.refused("PATCH", status, ended())
    assert said is not None
    assert 'cannot patch resource "pods/status"' in said
    outcomes(19, env.mode, "write phase Succeeded", layer_of(said), said)
    eve = armed(env, stage, "pods/status")
    said = eve.refused("PATCH", status, ended())
    assert said is not None
    assert validation.PHASE in said
    assert layer_of(said) == FIRST[env.mode]
    assert env.pod(name)["status"]["phase"] == "Running"
    outcomes(19, env.mode, "the same, with the right to pods/status", layer_of(said), said)
    future = {"status": {"startTime": "2099-01-01T00:00:00Z"}}
    said = eve.refused("PATCH", status, future)
    assert said is not None
    assert validation.PHASE in said
    assert layer_of(said) == FIRST[env.mode]
    outcomes(19, env.mode, "write a start in the future", layer_of(said), said)
    nominates = {"status": {"nominatedNodeName": NODE}}
    said = eve.refused("PATCH", path(RED, env.held(), "status"), nominates)
    assert said is not None
    assert validation.NOMINATED in said
    assert layer_of(said) == FIRST[env.mode]
    outcomes(19, env.mode, "keep a node free for a held pod", layer_of(said), said)


def test_19_false_claim_status_of_a_held_pod_is_refused(
    env: AttackEnvironment, stage: Stage, outcomes: Outcomes
) -> None:
    attack = "hide a claim until the release"
    ours = yard(env, stage)
    entry = {"name": "gpu", "resourceClaimTemplateName": "none"}
    said = ours.make(body("hides", 0, resourceClaims=[entry]))
    if env.mode == "killed":
        assert layer_of(said) == "outage"
        outcomes(19, env.mode, attack, "outage", said or "")
        return
    assert said is None
    eve = armed(env, stage, "pods/status")
    at = path(ours.namespace, "hides", "status")
    said = eve.refused("PATCH", at, {"status": {"resourceClaimStatuses": [{"name": "gpu"}]}})
    assert said is not None
    assert validation.PHASE in said
    assert layer_of(said) == FIRST[env.mode]
    assert ours.held() == {"hides"}
    outcomes(19, env.mode, attack, layer_of(said), said)


def test_19_terminating_pod_is_counted_as_used_until_it_is_gone(
    env: AttackEnvironment, stage: Stage, outcomes: Outcomes
) -> None:
    attack = "a finalizer, and a grace of a day"
    ours = yard(env, stage)
    item = body("stays", terminationGracePeriodSeconds=86_400)
    item["metadata"]["finalizers"] = ["example.com/stays"]
    said = ours.make(item)
    if env.mode == "killed":
        assert layer_of(said) == "outage"
        assert ours.pods == []
        outcomes(19, env.mode, attack, "outage", said or "")
        return
    assert said is None
    until("it runs", lambda: stage.running(ours.namespace) == ["stays"])
    env.mallory.call("DELETE", path(ours.namespace, "stays"))
    until("it goes", lambda: "deletionTimestamp" in env.pod("stays", ours.namespace)["metadata"])
    # The leader receives the deletion after the creation of the witness.
    assert ours.make(body("witness")) is None
    until("both are counted", lambda: ours.used() == 2)
    outcomes(19, env.mode, attack, "D", "counts as used until it is gone")
    free = {"metadata": {"finalizers": None}}
    env.mallory.call("PATCH", path(ours.namespace, "stays"), free)
    # No kubelet ends the grace period here.
    remove(env, "stays", namespace=ours.namespace)
    until("one is counted", lambda: ours.used() == 1)


def test_20_a_pod_that_fits_nowhere_gives_its_place_back(
    env: AttackEnvironment, stage: Stage, outcomes: Outcomes
) -> None:
    attack = "be released, and fit no node on purpose"
    ours = yard(env, stage)
    policy(stage, schedulingTimeout="5s", evictUnowned=True)
    said = ours.make(body("lost", 8, volumes=NOWHERE))
    if env.mode == "killed":
        assert layer_of(said) == "outage"
        assert ours.pods == []
        outcomes(20, env.mode, attack, "outage", said or "")
        return
    assert said is None
    until("it is evicted", lambda: ours.pods == [])
    until("its room is free", lambda: ours.used() == 0)
    assert ours.make(body("again", 8, volumes=NOWHERE)) is None
    assert ours.make(body("honest", 2)) is None
    until("another runs", lambda: stage.running(ours.namespace) == ["honest"])
    assert released_in_order(ours.pods)[0] == "honest"
    until(
        "its owner is told", lambda: ours.told("lost", "Reclaimed", "it was not bound within 5 s")
    )
    saw = "evicted after schedulingTimeout if a controller owns it, or with evictUnowned"
    outcomes(20, env.mode, attack, "D", f"{saw}; similar pods must wait")


def test_21_gang_annotations_of_a_held_pod_cannot_be_changed(
    env: AttackEnvironment, outcomes: Outcomes
) -> None:
    name = env.held()
    for key in ("gang", "gang-size", "gang-failure"):
        note = {"metadata": {"annotations": {f"fairgate.io/{key}": "2"}}}
        said = env.mallory.refused("PATCH", path(RED, name), note)
        assert said is not None
        assert validation.STAMPS_KEPT in said
        assert layer_of(said) == FIRST[env.mode]
    assert not any("gang" in key for key in env.pod(name)["metadata"]["annotations"])
    outcomes(21, env.mode, "join, leave or resize a gang later", layer_of(said), said or "")


def test_21_gang_that_is_never_complete_reserves_no_capacity(
    env: AttackEnvironment, stage: Stage, outcomes: Outcomes
) -> None:
    attack = "a gang that is never complete"
    ours = yard(env, stage)
    item = body("member", 2)
    item["metadata"]["annotations"] = {"fairgate.io/gang": "g", "fairgate.io/gang-size": "1000"}
    said = ours.make(item)
    if env.mode == "killed":
        assert layer_of(said) == "outage"
        assert ours.pods == []
        outcomes(21, env.mode, attack, "outage", said or "")
        return
    assert said is None
    other = body("other", TOO_MANY)
    assert ours.make(other) is None
    assert ours.make(body("honest", 2)) is None
    until("who is honest runs", lambda: set(stage.running(ours.namespace)) == {"honest"})
    assert ours.held() == {"other", "member"}
    outcomes(21, env.mode, attack, "D", "it waits for its members; no capacity is reserved for it")
