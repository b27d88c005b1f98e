"""F3: the webhook is slow or gives invalid answers. Device pods always get a gate."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import pytest

from app.core.errors import ClusterError
from tests.faults.creators import Creators, Tally
from tests.faults.fault_cluster import Rig
from tests.faults.rogue_webhook import LIES, Liar
from tests.faults.serving_secret import kept
from tests.support.cluster_driver import gates, name_of, pod

WORKERS = 6
TIMEOUT = 5.0
"""Seconds that the API server waits for a webhook, as in the chart."""

SLOW, TOO_SLOW = 0.5, 3.0
"""Delay in seconds per direction. SLOW answers within the timeout even with a new connection (two
round trips and more); TOO_SLOW does not.
"""


@contextmanager
def beside(rig: Rig) -> Iterator[Tally]:
    """Create and read CPU pods continuously. These requests must not fail."""
    namespace = rig.stage.namespace("f03-cpu")
    with Creators(rig.cluster.kubeconfig, namespace, gpus=0, workers=2) as others:
        yield others.tally
    assert not others.tally.refused
    rig.took("other calls", len(others.tally.seconds))
    rig.took("p99 of other calls", others.tally.p99())


def test_f03_a_slow_webhook_within_its_timeout_holds_pods(rig: Rig) -> None:
    namespace = rig.stage.namespace("f03-slow")
    rig.start("controller")
    with beside(rig), Creators(rig.cluster.kubeconfig, namespace, workers=WORKERS) as devices:
        tally = devices.tally
        rig.until("pods are held", lambda: len(tally.created) > 0)
        rig.front.delay(SLOW)
        before = len(tally.created)
        rig.until("pods are held, slowly", lambda: len(tally.created) > before + 2 * WORKERS)
        rig.front.mend()
    assert not tally.refused
    assert not tally.ungated
    assert max(each.ended - each.began for each in tally.created) > SLOW


def test_f03_webhook_slower_than_its_timeout_refuses_only_device_pods(rig: Rig) -> None:
    namespace = rig.stage.namespace("f03-late")
    rig.start("controller")
    with beside(rig), Creators(rig.cluster.kubeconfig, namespace, workers=WORKERS) as devices:
        tally = devices.tally
        rig.until("pods are held", lambda: len(tally.created) > 0)
        rig.front.delay(TOO_SLOW)
        rig.until("all are refused", lambda: len(tally.refused) >= 2 * WORKERS)
        rig.front.mend()
        rig.until("pods are held again", lambda: len(tally.begun_after(tally.refused[-1].at)) > 9)
    rig.took("device pods refused", len(tally.refused))
    assert all('webhook "hold.fairgate.io"' in each.said for each in tally.refused)
    assert not tally.ungated


@pytest.fixture
def liar(rig: Rig) -> Iterator[Liar]:
    """Replace the webhook by a `Liar` with the same certificate."""
    secret = asyncio.run(kept(rig))
    with ExitStack() as stack:
        liar = stack.enter_context(Liar(secret.data["tls.crt"], secret.data["tls.key"]))
        rig.front.route(("127.0.0.1", liar.port))
        rig.front.drop()
        yield liar
        rig.front.route(*(("127.0.0.1", each.listens) for each in rig.of("webhook")))
        rig.front.drop()


def test_f03_whatever_a_webhook_answers_no_device_pod_is_let_in_ungated(
    rig: Rig, liar: Liar
) -> None:
    namespace = rig.stage.namespace("f03-lies")
    rig.start("controller")
    let_in: list[str] = []
    not_asked: list[str] = []

    def try_one(name: str) -> None:
        asked = liar.asked
        with contextlib.suppress(ClusterError):
            rig.stage.apply(namespace, pod("told-a-lie"))
            let_in.append(name)
        if liar.asked == asked:
            not_asked.append(name)

    with beside(rig) as others:
        for name, lie in LIES.items():
            liar.tell(lie)
            try_one(name)
        liar.tell(LIES["yes"], whole=False)
        try_one("half a TLS record")
        enough = len(others.created) + 20
        rig.until("others were created", lambda: len(others.created) > enough)
    rig.took("lies", len(LIES) + 1)
    assert not_asked == []
    assert let_in == []
    stored = rig.stage.pods(namespace)
    assert [(name_of(each), gates(each)) for each in stored] == []
