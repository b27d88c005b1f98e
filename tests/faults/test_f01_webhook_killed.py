"""F1 and F2: one or all webhooks are killed or suspended under load."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable
from contextlib import ExitStack

import pytest

from app.core.errors import ClusterError
from tests.faults.creators import Creators, Tally
from tests.faults.fault_cluster import Rig
from tests.faults.program import Program
from tests.faults.service import Service
from tests.support.cluster_driver import pod

WORKERS, CROWD = 4, 8
ASKED = "fairgate_admission_requests_total"


def busy(rig: Rig, tally: Tally, more: int = 20) -> None:
    """Wait until `more` additional creates have succeeded."""
    target = len(tally.created) + more
    rig.until("creates succeed", lambda: len(tally.created) >= target)


def test_f01_killed_webhook_causes_refused_creates_for_a_moment_only(rig: Rig) -> None:
    namespace = rig.stage.namespace("f01")
    rig.start("controller")
    with ExitStack() as stack:
        service = stack.enter_context(Service(rig))
        doomed = rig.start("webhook")
        endpoint = service.add(doomed.listens, doomed.ready)
        rig.until("it is in the Service", lambda: endpoint.is_in)
        load = stack.enter_context(
            Creators(rig.cluster.kubeconfig, namespace, workers=CROWD, pace=0.1)
        ).tally
        busy(rig, load)
        rig.until("it is asked", lambda: (doomed.metric(ASKED) or 0) > CROWD)
        killed_at = time.monotonic()
        doomed.kill()
        rig.until("it is out of the Service", lambda: not endpoint.is_in)
        rig.took("until it was out of the Service", endpoint.left_at - killed_at)
        busy(rig, load, 50)
    refused = [each for each in load.refused if "fairgate.io" in each.said]
    rig.took("creates refused", len(refused))
    rig.took("creates", len(load.created))
    assert refused == load.refused
    assert not load.ungated
    # An existing connection may fail late. A new request reaches the other webhook.
    assert [each for each in refused if each.at > endpoint.left_at] == []


def kill(program: Program) -> None:
    program.kill(signal.SIGKILL)


@pytest.mark.parametrize("way", ["killed", "stopped"])
def test_f02_without_webhooks_device_pods_are_refused_and_all_others_are_not(
    rig: Rig, way: str
) -> None:
    harm: Callable[[Program], None] = kill if way == "killed" else Program.stop
    devices, others = rig.stage.namespace("f02-gpu"), rig.stage.namespace("f02-cpu")
    kubeconfig = rig.cluster.kubeconfig
    rig.start("controller")
    rig.start("webhook")
    webhooks = rig.of("webhook")
    with (
        Creators(kubeconfig, devices, workers=WORKERS) as gpu,
        Creators(kubeconfig, others, gpus=0, workers=2) as cpu,
    ):
        busy(rig, gpu.tally)
        for webhook in webhooks:
            harm(webhook)
        harmed_at = time.monotonic()
        with pytest.raises(ClusterError, match=r'calling webhook "hold\.fairgate\.io"'):
            rig.stage.apply(devices, pod("by-hand"))
        rig.until("all are refused", lambda: len(gpu.tally.refused) >= 2 * WORKERS)
        busy(rig, cpu.tally)
        healed_at = time.monotonic()
        for webhook in webhooks:
            rig.start("webhook", wait=False) if way == "killed" else webhook.cont()
        again = lambda: len(gpu.tally.begun_after(healed_at)) > 0  # noqa: E731
        rig.until("device pods are held again", again)
        busy(rig, gpu.tally)
    first = min(each.ended for each in gpu.tally.begun_after(healed_at))
    rig.took(f"{way}: until pods were held again", first - healed_at)
    rig.took(f"{way}: device pods refused", len(gpu.tally.refused))
    rig.took(f"{way}: p99 of other calls", cpu.tally.p99())
    # Each refusal names the webhook.
    assert all('webhook "hold.fairgate.io"' in each.said for each in gpu.tally.refused)
    assert not [e for e in gpu.tally.begun_after(harmed_at) if e.ended < healed_at]
    assert not gpu.tally.ungated
    assert not cpu.tally.refused
