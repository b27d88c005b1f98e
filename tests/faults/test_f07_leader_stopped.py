"""F7: the leader is suspended between its last check of the lease and its patch, then resumed.

The tests wait for events and not for 60 s. The next leader leads, has settled open releases, and
has released or fenced the pod before the late patch arrives.
"""

from __future__ import annotations

import json

from app.core.release_patch import fence_annotation
from tests.faults.fault_cluster import Rig
from tests.faults.program import Program
from tests.support.cluster_driver import pod, stamp, tenant


def stopped_before_a_patch(rig: Rig, namespace: str) -> Program:
    """Let a leader stop itself right before it releases pod `p`; return it."""
    leader = rig.start("controller", stop_at="before_patch")
    rig.until("it leads", lambda: rig.leader() is leader)
    rig.stage.apply(namespace, pod("p"))
    rig.until("it stands still", lambda: leader.stopped)
    assert rig.stage.held(namespace) == ["p"]
    return leader


def refused_patches(rig: Rig, name: str) -> int:
    """Return the number of patches of a pod that the API server refused."""
    log = rig.cluster.audit_log.read_text().splitlines()
    entries = (json.loads(line) for line in log if f'"name":"{name}"' in line)
    return sum(
        entry["objectRef"].get("name") == name
        and entry["verb"] == "patch"
        and entry.get("responseStatus", {}).get("code") == 422
        for entry in entries
    )


def test_f07_stale_patch_does_not_release_a_pod_held_by_the_next_leader(rig: Rig) -> None:
    ours = rig.stage.namespace("f07-held")
    rig.stage.tenant("f07", "1", ours)
    old = stopped_before_a_patch(rig, ours)
    rig.stage.apply("default", tenant("f07", "1", ours, paused=True))
    new = rig.start("controller")
    rig.took("another leads", rig.until("another leads", lambda: rig.leader() is new))
    epoch = new.metric("fairgate_leader_epoch")
    assert epoch is not None
    mark = fence_annotation(int(epoch))
    rig.until("it is fenced", lambda: stamp(rig.stage.pods(ours)[0]) == mark)
    goes_on(rig, old, new, "p")
    assert rig.stage.held(ours) == ["p"]
    assert stamp(rig.stage.pods(ours)[0]) == mark


def test_f07_stale_patch_does_not_change_a_pod_of_the_next_leader(rig: Rig) -> None:
    ours = rig.stage.namespace("f07-released")
    old = stopped_before_a_patch(rig, ours)
    new = rig.start("controller")
    rig.took("another leads", rig.until("another leads", lambda: rig.leader() is new))
    rig.until("it is released", lambda: len(rig.stage.using(ours)) == 1)
    [before] = rig.stage.pods(ours)
    goes_on(rig, old, new, "p")
    [after] = rig.stage.pods(ours)
    assert stamp(after) == stamp(before)
    assert after["spec"] == before["spec"] | {"nodeName": after["spec"]["nodeName"]}


def goes_on(rig: Rig, old: Program, new: Program, name: str) -> None:
    """Resume the old leader, and wait until its patch was refused and it follows."""
    refused = refused_patches(rig, name)
    old.cont()
    rig.until("the stale patch was refused", lambda: refused_patches(rig, name) > refused)
    rig.until("it follows", lambda: bool(old.lines("following")))
    assert rig.leader() is new
    assert old.metric("fairgate_leader") == 0
