"""F4: certificate and CA change under a load of creates, and no create is refused."""

from __future__ import annotations

import asyncio
import base64
import ssl
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import pytest

from app.core.errors import ClusterError
from app.kube.client import Client
from app.ports.cluster import SecretData
from tests.faults.fault_cluster import Rig
from tests.faults.program import Program
from tests.faults.serving_secret import LIFE, admin, keep, kept
from tests.support.cluster_driver import gates, pod

SETTLE = 5
PATIENCE = 200.0
UNTIL_DUE = [timedelta(seconds=seconds) for seconds in (60, 120)]
"""Times until the change is due, tried until Fairgate serves in the first half of one, before the
change has begun."""

CREATORS = 4
PACE = 0.1
HOOKS = "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations/fairgate"
NAMESPACE = "f04-renewal"
PODS = f"/api/v1/namespaces/{NAMESPACE}/pods"


@dataclass(frozen=True)
class Aged:
    rig: Rig
    api: Program
    webhook: Program


@pytest.fixture
def aged(rig: Rig) -> Aged:
    """Start Fairgate with a certificate shortly before two thirds of its life have passed."""
    settings: dict[str, Any] = {"tls_settle_seconds": SETTLE, "tls_days": LIFE.days}
    rig.stage.namespace(NAMESPACE)
    for until_due in UNTIL_DUE:
        for webhook in rig.of("webhook"):
            webhook.kill()
        due = datetime.now(UTC) + until_due
        asyncio.run(keep(rig, LIFE / 3 + until_due))
        webhook = rig.start("webhook", **settings)
        if datetime.now(UTC) < due - until_due / 2:
            api = rig.start("api", wait=False, **settings)
            if not is_changing(rig) and datetime.now(UTC) < due - until_due / 4:
                return Aged(rig, api, webhook)
            api.kill()
    raise AssertionError(f"the webhook takes more than {UNTIL_DUE[-1]} to start")


def is_changing(rig: Rig) -> bool:
    """Return whether the change of the certificate has begun."""
    return "next.crt" in asyncio.run(kept(rig)).data


class Load:
    """Creates GPU pods continuously, and makes TLS handshakes like an API server with a delay."""

    def __init__(self, rig: Rig, client: Client) -> None:
        self._client = client
        self._port = rig.front.port
        self._pki = rig.cluster.folder / "pki"
        self.created = 0
        self.greeted = 0
        self.failures: list[str] = []

    async def create(self, name: str) -> None:
        """Create pods without end, each `PACE` seconds after the last."""
        number = 0
        while True:
            number += 1
            await asyncio.sleep(PACE)
            try:
                answer = await self._client.request("POST", PODS, body=pod(f"{name}-{number}"))
            except ClusterError as error:
                self.failures.append(str(error))
                continue
            if gates(msgspec.json.decode(answer)):
                self.created += 1
            else:
                self.failures.append("created without the gate")

    async def greet(self) -> None:
        """Make handshakes without end, with the CAs published a moment before."""
        while True:
            trusted = await self.published()
            await asyncio.sleep(SETTLE / 5)
            try:
                await self.served(trusted)
                self.greeted += 1
            except OSError as error:
                self.failures.append(f"no handshake: {error}")

    async def published(self) -> str:
        """Return the CAs in the webhook's configuration."""
        hooks = msgspec.json.decode(await self._client.request("GET", HOOKS))["webhooks"]
        [bundle] = {hook["clientConfig"]["caBundle"] for hook in hooks}
        return base64.b64decode(bundle).decode()

    async def served(self, trusted: str) -> str:
        """Return the certificate that the webhook presents to its API server. Raises OSError."""
        context = ssl.create_default_context(cadata=trusted)
        own = self._pki / "kube-apiserver-webhook-client"
        context.load_cert_chain(f"{own}.crt", f"{own}.key")
        _, writer = await asyncio.open_connection("127.0.0.1", self._port, ssl=context)
        shown = writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
        writer.close()
        await writer.wait_closed()
        return ssl.DER_cert_to_PEM_cert(shown)


def count(bundle: str | bytes) -> int:
    text = bundle if isinstance(bundle, str) else bundle.decode()
    return text.count("BEGIN CERTIFICATE")


async def test_f04_certificate_and_ca_change_and_no_create_is_refused(aged: Aged) -> None:
    rig = aged.rig
    async with admin(rig) as client, asyncio.timeout(PATIENCE):
        before = await kept(rig)
        assert "next.crt" not in before.data, "the change began before the load"
        load = Load(rig, client)
        works = [load.create(f"load-{number}") for number in range(CREATORS)]
        tasks = [asyncio.create_task(work) for work in (*works, load.greet())]
        try:
            seen = await watch_the_change(rig, load, before)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        after = await kept(rig)
        trusted = await load.published()
        shown = await load.served(trusted)

    assert load.failures == []
    assert seen == ["staged", "promoted", "dropped"]
    assert trusted.encode() == after.data["ca.crt"]
    assert before.data["ca.crt"].decode() not in trusted
    assert shown.encode().strip() == after.data["tls.crt"].strip()
    assert shown.encode().strip() != before.data["tls.crt"].strip()
    assert aged.api.ready()
    assert ssl.get_server_certificate(("127.0.0.1", aged.api.listens)) == shown
    left = aged.webhook.metric("fairgate_certificate_expiry_seconds")
    assert left is not None
    assert LIFE.total_seconds() - 600 < left <= LIFE.total_seconds()


async def watch_the_change(rig: Rig, load: Load, before: SecretData) -> list[str]:
    """Return the stages of the Secret until the old CA is no longer published."""
    seen: list[str] = []
    done_at = 0
    while not done_at or load.created < done_at:
        data = (await kept(rig)).data
        if "next.crt" in data:
            stage = "staged"
        elif data["tls.crt"] == before.data["tls.crt"]:
            stage = ""
        else:
            stage = "promoted" if count(data["ca.crt"]) == 2 else "dropped"
        if stage and stage not in seen:
            seen.append(stage)
        if stage == "dropped" and not done_at and count(await load.published()) == 1:
            # Creates still succeed after the API server has connected with the new CA.
            done_at = load.created + 100
        await asyncio.sleep(0.1)
    assert load.created > 200
    assert load.greeted > 5
    return seen
