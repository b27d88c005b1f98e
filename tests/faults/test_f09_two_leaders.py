"""F9: the lease is edited, given away or deleted under a leader; epochs never decrease."""

from __future__ import annotations

import time
from collections.abc import Callable

from app.core.errors import ClusterRefused
from tests.faults.fault_cluster import Rig
from tests.faults.program import Program

LEASE = "/apis/coordination.k8s.io/v1/namespaces/fairgate-system/leases/fairgate-controller"


def edit(rig: Rig, holder: str) -> None:
    """Write another holder into the lease."""
    with rig.admin() as api:
        while True:
            lease = api.call("GET", LEASE)
            lease["spec"]["holderIdentity"] = holder
            try:
                api.call("PUT", LEASE, lease)
            except ClusterRefused as error:
                if error.status != 409:
                    raise
            else:
                return


def delete(rig: Rig) -> None:
    with rig.admin() as api:
        api.call("DELETE", LEASE)


def to_a_stranger(rig: Rig, leader: Program, other: Program) -> None:
    edit(rig, "a-stranger")


def to_the_other(rig: Rig, leader: Program, other: Program) -> None:
    edit(rig, other.identity)


def deleted(rig: Rig, leader: Program, other: Program) -> None:
    delete(rig)


def deleted_and_redis_emptied(rig: Rig, leader: Program, other: Program) -> None:
    delete(rig)
    rig.redis_server.flush()


def stopped(rig: Rig, leader: Program, other: Program) -> None:
    leader.stop()
    rig.until("the other leads", lambda: rig.leader() is other)
    leader.cont()


Force = Callable[[Rig, Program, Program], None]
FORCED: list[Force] = [to_a_stranger, to_the_other, deleted, deleted_and_redis_emptied, stopped]


def test_f09_forced_leader_changes_cause_no_bypass_and_raise_epochs(rig: Rig) -> None:
    for _ in range(2):
        rig.start("controller")
    load = rig.load(pods=600, rate=6.0, runtime="1s")
    for force in FORCED:
        took = forced(rig, force)
        rig.took(force.__name__, took)
    assert not load.over, "there was work all the time"
    load.stop()
    bypassed = [each.metric("fairgate_bypassed_pods_total") for each in rig.of("controller")]
    assert bypassed
    assert all(each == 0 for each in bypassed), "a leader reported releases of the other"
    assert not load.refused
    assert not load.unanswered


def forced(rig: Rig, force: Force) -> float:
    """Force a change of leader; return the seconds until pods are released under a new epoch."""
    leader = rig.leader()
    [other] = [each for each in rig.of("controller") if each is not leader]
    epoch = newest_epoch(rig)
    began = time.monotonic()
    force(rig, leader, other)
    rig.until("a later epoch", lambda: newest_epoch(rig) > epoch)
    done = released(rig)
    rig.until("pods are released", lambda: released(rig) > done)
    return time.monotonic() - began


def newest_epoch(rig: Rig) -> float:
    return max(each.metric("fairgate_leader_epoch") or 0 for each in rig.of("controller"))


def released(rig: Rig) -> float:
    label = 'result="released"'
    return sum(each.metric("fairgate_release_total", label) or 0 for each in rig.of("controller"))
