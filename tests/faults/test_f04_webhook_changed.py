"""F4: webhooks are restarted one by one; their certificate changes or expires."""

from __future__ import annotations

import asyncio
import signal
import time
from datetime import timedelta

from tests.faults.creators import Creators
from tests.faults.fault_cluster import Rig
from tests.faults.program import Program
from tests.faults.service import Service
from tests.faults.serving_secret import LIFE, keep

WORKERS = 4
DRAIN = 10
"""Seconds. Longer than the Service needs to notice, even on a busy machine."""

USABLE = timedelta(seconds=60)
"""Life of a certificate that ends in use. A slow machine starts a webhook in this time."""

EXPIRY = "fairgate_certificate_expiry_seconds"
ENDED = "certificate has expired or is not yet valid"


def test_f04_a_rolling_restart_refuses_no_create(rig: Rig) -> None:
    namespace = rig.stage.namespace("f04-rolling")
    rig.start("controller")
    for _ in range(2):
        rig.start("webhook", drain_seconds=DRAIN)
    rig.of("webhook")[0].kill()  # the webhook of the `Rig`, which does not drain
    with (
        Service(rig) as service,
        Creators(rig.cluster.kubeconfig, namespace, workers=WORKERS) as load,
    ):
        for old in rig.of("webhook"):
            before = len(load.tally.created)
            new = rig.start("webhook", drain_seconds=DRAIN, wait=False)
            endpoint = service.add(new.listens, new.ready)
            rig.until("the new one is in the Service", lambda e=endpoint: e.is_in)  # type: ignore[misc]
            began = time.monotonic()
            old.send(signal.SIGTERM)
            rig.until("the old one has ended", lambda o=old: not o.alive)  # type: ignore[misc]
            rig.took("until an old one had ended", time.monotonic() - began)
            enough = before + 100
            rig.until("creates go on", lambda n=enough: len(load.tally.created) > n)  # type: ignore[misc]
    rig.took("creates", len(load.tally.created))
    assert load.tally.refused == []
    assert load.tally.ungated == []


def test_f04_a_certificate_that_ended_meanwhile_fails_closed_and_is_replaced(rig: Rig) -> None:
    namespace = rig.stage.namespace("f04-ended")
    rig.start("controller")
    for webhook in rig.of("webhook"):
        webhook.kill()
    asyncio.run(keep(rig, -timedelta(days=1)))
    with Creators(rig.cluster.kubeconfig, namespace, workers=WORKERS) as load:
        began = time.monotonic()
        webhook = rig.start("webhook", wait=False)
        rig.until("pods are held again", lambda: len(load.tally.created) > 20)
    rig.took("from the start to the first pod held", load.tally.created[0].ended - began)
    assert ENDED in {_why(each.said) for each in load.tally.refused}
    assert load.tally.ungated == []
    assert _left(webhook) > LIFE.total_seconds()  # a year, by default


def test_f04_a_certificate_that_ends_in_use_fails_closed_and_is_replaced(rig: Rig) -> None:
    """Its renewal is late, because the API server is unreachable."""
    namespace = rig.stage.namespace("f04-ends")
    rig.start("controller")
    for webhook in rig.of("webhook"):
        webhook.kill()
    asyncio.run(keep(rig, USABLE))
    webhook = rig.start("webhook")
    webhook.api.cut()
    rig.until("it ends soon", lambda: _left(webhook) < 5)
    with Creators(rig.cluster.kubeconfig, namespace, workers=WORKERS) as load:
        rig.until("it has ended", lambda: _left(webhook) < 0)
        rig.front.drop()  # existing connections are not checked again
        ended_at = time.monotonic()
        rig.until("all are refused", lambda: len(load.tally.refused) > 2 * WORKERS)
        assert load.tally.begun_after(ended_at) == []
        mended_at = time.monotonic()
        webhook.api.mend()
        again = lambda: len(load.tally.begun_after(mended_at)) > 20  # noqa: E731
        rig.until("pods are held again", again)
    healed = load.tally.begun_after(mended_at)[0].ended
    rig.took("from its way being free to the first pod held", healed - mended_at)
    assert ENDED in {_why(each.said) for each in load.tally.refused}
    assert load.tally.ungated == []


def _why(said: str) -> str:
    return ENDED if ENDED in said else said


def _left(webhook: Program) -> float:
    left = webhook.metric(EXPIRY)
    return LIFE.total_seconds() if left is None else left
