"""Duration without a leader after a graceful or sudden stop, and the epochs afterwards."""

from __future__ import annotations

import signal

import pytest

from app.devcluster.fairgate_install import NAMESPACE
from tests.faults.fault_cluster import Rig
from tests.faults.program import Program
from tests.support.cluster_driver import pod


def waiting_work(rig: Rig, name: str) -> str:
    """Return a namespace with more pods than fit, so that a next release always exists."""
    namespace = rig.stage.namespace(name)
    rig.stage.apply(namespace, *(pod(f"work-{n}", 8) for n in range(6)))
    return namespace


def measure(rig: Rig, namespace: str, second: Program) -> None:
    """Measure when the other replica leads, and when it has released a pod itself."""
    leads = rig.until("the other leads", lambda: second.metric("fairgate_leader") == 1)
    before = len(rig.stage.using(namespace))
    rig.stage.delete(namespace, *[p["metadata"]["name"] for p in rig.stage.using(namespace)][:1])
    releases = rig.until(
        "it releases",
        lambda: (second.metric("fairgate_release_total", "released") or 0) > 0,
    )
    rig.took("the other leads after", leads)
    rig.took("and releases after", leads + releases)
    assert before > 0


@pytest.mark.parametrize(
    ("sign", "lease"), [(signal.SIGTERM, 15), (signal.SIGKILL, 3)], ids=["politely", "killed"]
)
def test_another_leads_soon(rig: Rig, sign: signal.Signals, lease: int) -> None:
    first = rig.start("controller", lease_seconds=lease)
    rig.until("the first leads", lambda: first.metric("fairgate_leader") == 1)
    second = rig.start("controller", lease_seconds=lease)
    namespace = waiting_work(rig, f"hand-over-{sign}-{lease}")
    rig.until("the pool is full", lambda: len(rig.stage.using(namespace)) == 4)
    epoch = first.metric("fairgate_leader_epoch")
    assert epoch is not None
    first.send(sign)
    measure(rig, namespace, second)
    assert second.metric("fairgate_leader_epoch") == epoch + 1


def test_epochs_do_not_turn_back_without_lease_redis_and_pods(rig: Rig) -> None:
    first = rig.start("controller")
    rig.until("the first leads", lambda: first.metric("fairgate_leader") == 1)
    epoch = first.metric("fairgate_leader_epoch")
    assert epoch is not None
    first.kill()
    rig.stage.cluster.kubectl("delete", "lease", "-n", NAMESPACE, "--all")
    rig.redis_server.flush()
    second = rig.start("controller")
    rig.took("it leads again", rig.until("it leads", lambda: second.metric("fairgate_leader") == 1))
    assert (second.metric("fairgate_leader_epoch") or 0) > epoch
