"""F21: kube-scheduler binds no pod for longer than twice the longest time-out. No pod is lost."""

from __future__ import annotations

import json
import time
from collections.abc import Callable

import pytest

from tests.faults.external_programs import Daemon
from tests.faults.fault_cluster import GPUS, Rig
from tests.faults.program import Program
from tests.support.cluster_driver import Object, gates, name_of, pod
from tests.support.shares import policy

TIMEOUT_SECONDS = 10.0
OUTAGE_SECONDS = 2.5 * TIMEOUT_SECONDS
CRASH_SECONDS = 3.0
CRASHES = 12
SHORT = {"schedulingTimeout": "10s", "gangTimeout": "10s"}
BARE = 20
OWNED = 20
AWAY = {"node.kubernetes.io/unreachable", "node.kubernetes.io/not-ready"}


class Work:
    """Pods of one namespace: some with a controller, and some without, including a gang."""

    def __init__(self, rig: Rig, namespace: str) -> None:
        self.rig = rig
        self.namespace = rig.stage.namespace(namespace)
        kind = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "owner"}}
        rig.stage.apply(self.namespace, kind)
        made = rig.stage.get("configmap", "owner", "-n", self.namespace)
        self.owner = {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "name": "owner",
            "uid": made["metadata"]["uid"],
            "controller": True,
        }

    def submit(self, owned: int = OWNED, bare: int = BARE, prefix: str = "p") -> None:
        """Create pods: with a controller, without one, and a gang of four."""
        gang = {"fairgate.io/gang": f"{prefix}-gang", "fairgate.io/gang-size": "4"}
        pods = [self._owned(pod(f"{prefix}-owned-{n:02}")) for n in range(owned)]
        pods += [pod(f"{prefix}-bare-{n:02}") for n in range(bare)]
        for number in range(4 if bare else 0):
            member = pod(f"{prefix}-gang-{number}")
            member["metadata"]["annotations"] = gang
            pods.append(member)
        self.rig.stage.apply(self.namespace, *pods)

    def _owned(self, item: Object) -> Object:
        item["metadata"]["ownerReferences"] = [self.owner]
        return item

    def uids(self) -> dict[str, str]:
        return {name_of(p): p["metadata"]["uid"] for p in self.rig.stage.pods(self.namespace)}

    def unbound(self) -> list[str]:
        """Return the released pods that are not bound."""
        pods = self.rig.stage.pods(self.namespace)
        return [name_of(p) for p in pods if not gates(p) and "nodeName" not in p["spec"]]

    def running(self) -> int:
        return len(self.rig.stage.running(self.namespace))


def let_pass(rig: Rig, seconds: float, meanwhile: Callable[[], None] = lambda: None) -> None:
    """Let this many seconds pass. The test checks that no action happens meanwhile."""
    ends = time.monotonic() + seconds

    def over() -> bool:
        meanwhile()
        return time.monotonic() > ends

    rig.until("the outage has lasted", over, seconds + 60.0)


def evictions(rig: Rig) -> list[str]:
    """Return the pods with an eviction request in the API server's audit log."""
    lines = rig.cluster.audit_log.read_text().splitlines()
    entries = (json.loads(line) for line in lines if '"eviction"' in line)
    refs = (entry["objectRef"] for entry in entries)
    return [f"{r['namespace']}/{r['name']}" for r in refs if r.get("subresource") == "eviction"]


def evicted(rig: Rig, work: Work) -> list[str]:
    return [each for each in evictions(rig) if each.startswith(work.namespace + "/")]


def stalled(leader: Program) -> bool:
    return leader.metric("fairgate_binding_stalled", 'pool="default"') == 1


def end_of(daemon: Daemon, how: str) -> None:
    if how == "stopped":
        daemon.stop()
    else:
        daemon.kill()


@pytest.mark.parametrize("how", ["stopped", "killed"])
def test_f21_no_pod_is_lost_while_the_scheduler_is_away(rig: Rig, how: str) -> None:
    policy(rig.stage, **SHORT)
    leader = rig.start("controller")
    work = Work(rig, f"f21-{how}")
    work.submit(4, 4, "before")
    rig.until("they run", lambda: work.running() == 12)
    for daemon in (rig.scheduler, rig.controller_manager):
        end_of(daemon, how)
    work.submit()
    before = work.uids()
    rig.until("binding is stalled", lambda: stalled(leader))
    ahead = work.unbound()
    let_pass(rig, OUTAGE_SECONDS)
    leader.kill()
    leader = rig.start("controller")
    rig.until("another leads", lambda: rig.leader() is leader)
    let_pass(rig, OUTAGE_SECONDS)
    assert set(work.unbound()) >= set(ahead)
    assert work.uids() == before
    for daemon in (rig.scheduler, rig.controller_manager):
        daemon.cont()
        daemon.start()
    rig.took("all GPUs in use again", rig.until("all run", lambda: work.running() == GPUS))
    rig.until("nothing is stalled", lambda: not stalled(leader))
    assert work.uids() == before
    assert not evicted(rig, work)


def test_f21_no_pod_is_lost_to_a_scheduler_that_crashes_again_and_again(rig: Rig) -> None:
    policy(rig.stage, **SHORT)
    rig.start("controller")
    work = Work(rig, "f21-crashing")
    work.submit()
    before = work.uids()
    for _ in range(CRASHES):
        rig.scheduler.kill()
        rig.scheduler.start()
        let_pass(rig, CRASH_SECONDS)
    assert work.uids() == before
    rig.until("all run", lambda: work.running() == GPUS)
    assert work.uids() == before
    assert not evicted(rig, work)


def test_f21_no_pod_is_evicted_because_no_node_is_ready(rig: Rig) -> None:
    policy(rig.stage, **SHORT)
    rig.start("controller")
    work = Work(rig, "f21-nodes")
    rig.scheduler.kill()
    work.submit(8, 4)
    rig.until("some are released", lambda: len(work.unbound()) == 16)
    before = work.uids()
    rig.kwok.stop()
    rig.until("no node is ready", lambda: not schedulable(rig), 120.0)
    rig.scheduler.start()  # a new one reads the nodes before it binds
    said = lambda: all(judged(p) for p in rig.stage.pods(work.namespace))  # noqa: E731
    rig.until("the scheduler finds no node", said)
    let_pass(rig, OUTAGE_SECONDS)
    assert work.uids() == before
    rig.kwok.cont()
    rig.until("all run", lambda: work.running() == 16)
    assert work.uids() == before
    assert not evicted(rig, work)


def schedulable(rig: Rig) -> list[str]:
    """Return the nodes without a taint for missing heartbeats."""
    nodes = rig.stage.get("nodes")["items"]
    return [name_of(node) for node in nodes if AWAY.isdisjoint(taints(node))]


def taints(node: Object) -> list[str]:
    return [each["key"] for each in node["spec"].get("taints", ())]


def judged(item: Object) -> bool:
    conditions = item["status"].get("conditions", ())
    return any(each.get("reason") == "Unschedulable" for each in conditions)
