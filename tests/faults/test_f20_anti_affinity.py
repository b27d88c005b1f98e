"""F20: anti-affinity of an existing pod bars one team's pods from every node. No pod is lost."""

from __future__ import annotations

from tests.faults.fault_cluster import Rig
from tests.faults.waiting_pods import FITTING, Crowd
from tests.support.cluster_driver import Object, gates, pod
from tests.support.pod_events import events

EXEMPT = "kube-system"
REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
POLICY = {
    "apiVersion": "fairgate.io/v1alpha1",
    "kind": "Policy",
    "metadata": {"name": "default"},
    "spec": {"schedulingTimeout": "2s"},
}


def wall(team: str) -> Object:
    """Return a pod without devices with anti-affinity to a team's pods on all nodes of a kind."""
    term = {
        "topologyKey": "type",
        "namespaceSelector": {},
        "labelSelector": {"matchLabels": {"fairgate.io/tenant": team}},
    }
    return pod("wall", 0, affinity={"podAntiAffinity": {REQUIRED: [term]}})


def test_f20_pods_wait_behind_a_wall_of_anti_affinity_and_none_is_lost(rig: Rig) -> None:
    rig.stage.apply("default", POLICY)
    rig.stage.objects.append(("policy", "default"))
    rig.start("controller")
    rig.stage.tenant("walled", "1", "walled")
    rig.stage.apply(EXEMPT, wall("walled"))
    try:
        running = lambda: "wall" in rig.stage.running(EXEMPT)  # noqa: E731
        rig.until("the wall stands", running)
        walled = Crowd(rig, "walled", FITTING // 2)
        free = Crowd(rig, "free", FITTING // 2)
        everybody = {p["metadata"]["uid"] for p in rig.pods()}
        rig.until("the other team runs", lambda: len(free.released()) == FITTING // 2)
        leader = rig.leader()
        passes = leader.metric("fairgate_engine_seconds_count") or 0
        more = lambda: (leader.metric("fairgate_engine_seconds_count") or 0) > passes + 5  # noqa: E731
        rig.until("the leader has thought again", more)
        assert walled.released() == []
        why = "anti-affinity of existing pods"
        told = lambda: any(why in text for _, text in events(rig, "walled", "p-000"))  # noqa: E731
        rig.until("an event of a waiting pod names the cause", told)
    finally:
        rig.stage.delete(EXEMPT, "wall")
    rig.until("all go on", lambda: len(walled.released()) == FITTING // 2)
    rig.until("all run", lambda: len(rig.stage.running("walled")) == FITTING // 2)
    assert {p["metadata"]["uid"] for p in rig.pods()} == everybody
    assert not any(gates(p) for p in rig.pods())
