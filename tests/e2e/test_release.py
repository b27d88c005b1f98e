"""The path of a pod on a real API server with the stock scheduler: `kubectl apply` to release."""

from __future__ import annotations

import json

import pytest

from app.core.errors import ClusterError
from tests.support.cluster_driver import (
    GATE,
    GPU,
    Object,
    Stage,
    audited,
    gates,
    name_of,
    pod,
    released_in_order,
    stamp,
    until,
)
from tests.support.workloads import deployment, job


@pytest.mark.parametrize(
    ("manifest", "count"),
    [(pod("bare"), 1), (job("job", 3), 3), (deployment("web", 2), 2)],
    ids=["pod", "job", "deployment"],
)
def test_whatever_is_applied_is_held_and_released_as_it_was_written(
    stage: Stage, manifest: Object, count: int
) -> None:
    wall = stage.namespace("wall")
    ours = stage.namespace("plain")
    blockers = stage.block(wall)
    stage.apply(ours, manifest)
    until("all pods are held", lambda: len(stage.held(ours)) == count)
    assert all(stamp(p) == "0" for p in stage.pods(ours))
    stage.delete(wall, blockers[0])
    until("all pods run", lambda: len(stage.running(ours)) == count)
    for item in stage.pods(ours):
        assert gates(item) == []
        assert item["spec"]["nodeName"].startswith("gpu-node-")
        labels = item["metadata"]["labels"]
        assert labels["fairgate.io/pool"] == "default"
        assert labels["fairgate.io/tenant"] == "ns.plain"
        assert item["spec"]["containers"][0]["resources"]["limits"] == {GPU: "1"}
    stage.apply(ours, manifest)  # applying the manifest again has no effect
    assert len(stage.running(ours)) == count


def test_webhook_is_not_called_for_pods_without_managed_resources(stage: Stage) -> None:
    ours = stage.namespace("cpu-only")
    stage.apply(ours, *(pod(f"cpu-{i}", 0) for i in range(5)))
    until("they run", lambda: len(stage.running(ours)) == 5)
    assert all(stamp(p) == "" for p in stage.pods(ours))
    stage.apply(ours, pod("gpu"))
    expected = {**{f"cpu-{i}": False for i in range(5)}, "gpu": True}
    until("the API server says for whom it called", lambda: called(stage, ours) == expected)


def called(stage: Stage, namespace: str) -> dict[str, bool]:
    """Return, for each created pod, whether the audit log shows a call of Fairgate's webhook."""
    found = {}
    for event in audited(stage.cluster):
        about = event["objectRef"]
        is_pod = about["resource"] == "pods" and "subresource" not in about
        if is_pod and event["verb"] == "create" and about.get("namespace") == namespace:
            # One annotation per call: Kubernetes, "Audit Annotations".
            rounds = "mutation.webhook.admission.k8s.io/round_"
            told = event.get("annotations", {}).items()
            found[about["name"]] = any(k.startswith(rounds) and "fairgate" in v for k, v in told)
    return found


def test_two_tenants_of_weight_2_to_1_use_a_full_pool_2_to_1(stage: Stage) -> None:
    wall, two, one = map(stage.namespace, ("wall", "team-two", "team-one"))
    stage.tenant("two", "2", two)
    stage.tenant("one", "1", one)
    blockers = stage.block(wall)
    stage.apply(two, job("a", 64))
    stage.apply(one, job("b", 64))
    until("all are held", lambda: len(stage.held(two)) + len(stage.held(one)) == 128)
    stage.delete(wall, *blockers)
    until("the pool is full", lambda: len(stage.using(two)) + len(stage.using(one)) == 64)
    assert abs(len(stage.using(two)) - 64 * 2 / 3) <= 1

    def shown() -> bool:
        status = stage.get("tenant", "two").get("status", {})
        pending = 64 - len(stage.using(two))
        return status.get("used") == {GPU: str(64 - pending)} and status["pending"] == pending

    until("the status of the tenant says so", shown)
    table = stage.cluster.kubectl("get", "tenants")
    assert table.split()[:6] == ["NAME", "WEIGHT", "SHARE", "USED", "PENDING", "AGE"]


def test_priority_orders_only_pods_of_the_same_user(stage: Stage) -> None:
    wall, team = stage.namespace("wall"), stage.namespace("team")
    stage.tenant("team", "1", team)
    high = stage.priority_class("e2e-high", 1_000_000)
    blockers = stage.block(wall)
    alice, bob = stage.as_user("alice", team), stage.as_user("bob", team)
    stage_apply = ("apply", "-n", team, "-f", "-")
    for who, pods in (
        (bob, [pod("bob-first", 8), pod("bob-second", 8)]),
        (alice, [pod("alice-low", 8), pod("alice-high", 8, priority=high)]),
    ):
        for item in pods:
            who.run(*stage_apply, stdin=json.dumps(item))
    until("all are held", lambda: len(stage.held(team)) == 4)
    submitters = {
        name_of(p): p["metadata"]["annotations"]["fairgate.io/submitter"] for p in stage.pods(team)
    }
    assert submitters["alice-low"] == "alice"
    for number, blocker in enumerate(blockers[:4], start=1):
        stage.delete(wall, blocker)
        until("one more is released", lambda n=number: len(stage.using(team)) == n)
    order = released_in_order(stage.pods(team))
    assert order.index("alice-high") < order.index("alice-low")
    for turn in (order[:2], order[2:]):  # alice's priority does not delay bob
        assert {name.partition("-")[0] for name in turn} == {"alice", "bob"}


def test_a_pod_deleted_while_held_leaves_the_queue(stage: Stage) -> None:
    wall, ours = stage.namespace("wall"), stage.namespace("leaver")
    stage.tenant("leaver", "1", ours)
    blockers = stage.block(wall)
    stage.apply(ours, pod("goes", 8), pod("stays", 8))
    pending = lambda: stage.get("tenant", "leaver").get("status", {}).get("pending")  # noqa: E731
    until("both wait", lambda: pending() == 2)
    stage.delete(ours, "goes")
    until("one waits", lambda: pending() == 1)
    stage.delete(wall, blockers[0])
    until("the other runs", lambda: stage.running(ours) == ["stays"])


def test_pod_events_report_waiting_and_release(stage: Stage) -> None:
    wall, ours = stage.namespace("wall"), stage.namespace("told")
    blockers = stage.block(wall)
    stage.apply(ours, pod("first", 8), pod("second", 8))

    def said(reason: str) -> list[str]:
        found = stage.get("events", "-n", ours, f"--field-selector=reason={reason}")["items"]
        return [str(event["message"]) for event in found]

    until("it is said why both wait", lambda: len(said("Held")) == 2)
    for message in said("Held"):
        assert message.startswith("queued: ")
        assert " in ns.told/" in message
        assert "; waits for 8 nvidia.com/gpu of pool default" in message
    assert any(" of 2 " in message for message in said("Held"))
    stage.delete(wall, blockers[0])
    until("it is said that one was released", lambda: len(said("Released")) == 1)
    assert said("Released")[0].startswith("to pool default after ")


def test_without_the_webhook_gpu_pods_are_refused_and_others_are_not(stage: Stage) -> None:
    ours = stage.namespace("outage")
    stage.cluster.stop_fairgate("webhook")
    try:
        with pytest.raises(ClusterError, match=r"hold\.fairgate\.io"):
            stage.apply(ours, pod("gpu"))
        stage.apply(ours, pod("cpu", 0))
    finally:
        stage.cluster.start_fairgate("webhook")
    stage.apply(ours, pod("gpu"))
    until("it runs", lambda: set(stage.running(ours)) == {"cpu", "gpu"})


def test_forged_stamps_are_overwritten_with_a_warning(stage: Stage) -> None:
    wall, ours = stage.namespace("wall"), stage.namespace("forger")
    stage.block(wall)
    forged = pod("forged", 8)
    forged["metadata"]["annotations"] = {
        "fairgate.io/release": "9.9",
        "fairgate.io/submitter": "somebody-else",
    }
    forged["metadata"]["labels"] = {"fairgate.io/tenant": "rich"}
    stage.apply(ours, forged)
    (item,) = stage.pods(ours)
    assert gates(item) == [GATE]
    assert stamp(item) == "0"
    assert item["metadata"]["annotations"]["fairgate.io/submitter"] != "somebody-else"
    assert item["metadata"]["labels"]["fairgate.io/tenant"] == "ns.forger"


@pytest.mark.parametrize("damage", ['{"fairgate.io/release": null}', "null"], ids=["key", "all"])
def test_pod_without_its_release_annotation_is_still_released(stage: Stage, damage: str) -> None:
    wall, ours = stage.namespace("wall"), stage.namespace("eraser")
    blockers = stage.block(wall)
    stage.apply(ours, pod("erased", 8))
    patch = f'{{"metadata": {{"annotations": {damage}}}}}'
    stage.cluster.kubectl("patch", "pod", "erased", "-n", ours, "--type=merge", "-p", patch)
    assert stamp(stage.pods(ours)[0]) == ""
    stage.delete(wall, blockers[0])
    until("it runs", lambda: stage.running(ours) == ["erased"])
