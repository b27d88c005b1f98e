"""F18: one step of the engine takes several times as long as the Lease, or does not end."""

from __future__ import annotations

import urllib.error
import urllib.request
from typing import Any

from app.devcluster.fairgate_install import ops_url
from tests.faults.fault_cluster import Rig
from tests.faults.process_start import LEASE_SECONDS
from tests.faults.program import Program
from tests.support.cluster_driver import pod

LONG = 3 * LEASE_SECONDS


def livez(program: Program) -> tuple[int, str]:
    """Return status and text of `/livez`, within the time limit of the kubelet's probe."""
    try:
        with urllib.request.urlopen(f"{ops_url(program.process)}/livez", timeout=3.0) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as refused:
        return refused.code, refused.read().decode()


def slow_steps(program: Program) -> list[dict[str, Any]]:
    """Return the facts of the slow steps for pod `long`."""
    facts = [each["facts"] for each in program.lines("slow step")]
    return [each for each in facts if each.get("object") == "long"]


def test_f18_leader_keeps_lease_and_liveness_during_a_long_step(rig: Rig) -> None:
    ours = rig.stage.namespace("f18-long")
    leader = rig.start("controller", block=f"long:{LONG}")
    rig.start("controller")
    rig.until("it leads", lambda: rig.leader() is leader)
    epoch = leader.metric("fairgate_leader_epoch")
    rig.stage.apply(ours, pod("long"))
    rig.stage.apply(ours, pod("next"))
    answers: list[tuple[int, str]] = []

    def is_logged() -> bool:
        answers.append(livez(leader))
        return bool(slow_steps(leader))

    rig.until("the step ends", is_logged)
    assert {status for status, _ in answers} == {200}, answers
    [step] = slow_steps(leader)
    assert (step["step"], step["namespace"]) == ("PodObserved", ours)
    assert step["milliseconds"] >= LONG * 1000
    rig.until("the next is released", lambda: rig.stage.held(ours) == ["long"])
    assert leader.lines("pod postponed")
    assert rig.leader() is leader
    assert leader.metric("fairgate_leader_epoch") == epoch
    assert not leader.lines("leadership ended")
    assert (leader.metric("fairgate_slow_steps_total", 'step="PodObserved"') or 0) >= 1


def test_f18_stuck_leader_fails_liveness_and_another_leads(rig: Rig) -> None:
    ours = rig.stage.namespace("f18-stuck")
    stuck = rig.start("controller", block="stuck:600", stall=LEASE_SECONDS)
    rig.until("it leads", lambda: rig.leader() is stuck)
    other = rig.start("controller")
    rig.stage.apply(ours, pod("stuck"))
    rig.until("it fails", lambda: livez(stuck)[0] == 503)
    assert "not alive: engine finished no step for" in livez(stuck)[1]
    rig.took("another leads", rig.until("another leads", lambda: rig.leader() is other))
    rig.until("it is released", lambda: len(rig.stage.using(ours)) == 1)
    stuck.kill()
