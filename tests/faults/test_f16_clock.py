"""F16: the wall clock of one process jumps by an hour. No behaviour depends on it."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from app.core.errors import ClusterError
from tests.faults.fault_cluster import GPUS, Rig
from tests.faults.program import Program
from tests.support.cluster_driver import Object, name_of, pod, released_in_order

HOUR = 3600.0
WORK = 8
ADMISSION = "admissionregistration.k8s.io/v1"


def test_f16_clock_steps_change_neither_the_leader_nor_the_order(rig: Rig) -> None:
    leader = rig.start("controller", clock=True)
    rig.until("it leads", lambda: rig.leader() is leader)
    standby = rig.start("controller", clock=True)
    wall, ours = rig.stage.namespace("f16-wall"), rig.stage.namespace("f16-ours")
    blockers = rig.stage.block(wall, GPUS // 8)
    for number in range(WORK):
        set_clocks(leader, standby, number)
        rig.stage.apply(ours, pod(f"work-{number}", 8))
    rig.until("all are held", lambda: len(rig.stage.held(ours)) == WORK)
    due = sorted(rig.stage.pods(ours), key=age)
    epoch = leader.metric("fairgate_leader_epoch")
    for number, blocker in enumerate(blockers, 1):
        set_clocks(leader, standby, number)
        rig.stage.delete(wall, blocker)
        await_released(rig, ours, number)
    assert released_in_order(rig.stage.pods(ours)) == [name_of(p) for p in due[: len(blockers)]]
    assert rig.leader() is leader
    assert leader.metric("fairgate_leader_epoch") == epoch
    assert standby.lines("leading") == []
    assert leader.lines("leadership ended") == []


def test_f16_clock_step_back_does_not_extend_the_backoff_of_a_pod(rig: Rig) -> None:
    """A refused pod backs off for some seconds. A clock step back must not make it an hour."""
    leader = rig.start("controller", clock=True)
    ours = rig.stage.namespace("f16-rests")
    rig.until("it leads", lambda: rig.leader() is leader)
    leader.set_clock(HOUR)
    with forbidden(rig, ours):
        rig.stage.apply(ours, pod("p"))
        refused = lambda: bool(leader.lines("release did not apply"))  # noqa: E731
        rig.until("its release was refused", refused)
        leader.set_clock(-HOUR)
    rig.took("released", await_released(rig, ours, 1))


def set_clocks(leader: Program, standby: Program, number: int) -> None:
    """Move the clock an hour forward, an hour back, and reset it; the standby's in reverse."""
    shift = (HOUR, -HOUR, 0.0)[number % 3]
    leader.set_clock(shift)
    standby.set_clock(-shift)


def await_released(rig: Rig, namespace: str, count: int) -> float:
    return rig.until(f"{count} are released", lambda: len(rig.stage.using(namespace)) == count)


def age(item: Object) -> tuple[str, str]:
    return item["metadata"]["creationTimestamp"], item["metadata"]["uid"]


@contextmanager
def forbidden(rig: Rig, namespace: str) -> Iterator[None]:
    """Forbid all updates of pods with GPU requests in a namespace."""
    rule = {"apiGroups": [""], "apiVersions": ["v1"], "operations": ["UPDATE"]}
    policy = {
        "matchConstraints": {
            "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": namespace}},
            "resourceRules": [{**rule, "resources": ["pods"]}],
        },
        "validations": [{"expression": "false"}],
    }
    binding = {"policyName": namespace, "validationActions": ["Deny"]}
    both = {"ValidatingAdmissionPolicy": policy, "ValidatingAdmissionPolicyBinding": binding}
    rig.stage.apply("default", *(document(kind, namespace, both[kind]) for kind in both))
    rig.stage.apply(namespace, pod("trial", 0))
    try:
        rig.until("it holds", lambda: is_forbidden(rig, namespace))
        rig.stage.delete(namespace, "trial")
        yield
    finally:
        for kind in both:
            rig.cluster.kubectl("delete", kind, namespace)


def document(kind: str, name: str, spec: Any) -> Object:
    return {"apiVersion": ADMISSION, "kind": kind, "metadata": {"name": name}, "spec": spec}


def is_forbidden(rig: Rig, namespace: str) -> bool:
    word = f"tried={time.monotonic()}"  # a new value each time, else no patch is sent
    try:
        rig.cluster.kubectl("label", "pod", "trial", "-n", namespace, "--overwrite", word)
    except ClusterError:
        return True
    return False
