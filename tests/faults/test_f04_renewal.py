"""Certificate and CA change under a load of creates, and no create is refused."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import ssl
from collections.abc import AsyncIterator, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from urllib.parse import urlsplit

import msgspec
import pytest

from app.core.errors import ClusterError
from app.dev import folder as folders
from app.dev.cluster import Cluster
from app.dev.fairgate import NAMESPACE, SECRET
from app.dev.options import Options
from app.dev.tools import Tools
from app.kube.bundle import Bundle
from app.kube.client import Client
from app.ports import Secret
from app.tls.rotation import new_content
from tests.e2e.stage import PATIENCE, Stage, gates, pod

SETTLE = 5
LIFE = timedelta(days=90)
UNTIL_DUE = timedelta(seconds=20)
"""From the making of the certificate: until Fairgate serves, and creates are under way."""

CREATORS = 4
HOOKS = "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations/fairgate"
PODS = "/api/v1/namespaces/default/pods"


@pytest.fixture
def aged(cluster_tools: Tools) -> Iterator[Cluster]:
    """A cluster whose Fairgate serves with a certificate of which two thirds have nearly passed."""
    cluster = Cluster(folders.own_folder("renewal"))
    environment = {"FAIRGATE_TLS_SETTLE_SECONDS": str(SETTLE), "FAIRGATE_TLS_DAYS": str(LIFE.days)}
    try:
        cluster.up(Options(nodes=1, fairgate=False, environment=environment))
        cluster.install()
        asyncio.run(keep_aged(cluster))
        cluster.start_fairgate("api")
        cluster.start_fairgate("webhook")
        yield cluster
    finally:
        cluster.down()


@contextlib.asynccontextmanager
async def admin(cluster: Cluster) -> AsyncIterator[Client]:
    client = await Client.connect(cluster.kubeconfig, pool_size=CREATORS + 4)
    try:
        yield client
    finally:
        await client.close()


async def keep_aged(cluster: Cluster) -> None:
    made = datetime.now(UTC) - LIFE * 2 / 3 + UNTIL_DUE
    content = new_content(["127.0.0.1", "localhost"], made, LIFE.days)
    async with admin(cluster) as client:
        await Bundle(client).create_secret(NAMESPACE, SECRET, content, "kubernetes.io/tls")


class Load:
    """Creates GPU pods without a pause, and shakes hands as an API server that is a bit late."""

    def __init__(self, cluster: Cluster, client: Client) -> None:
        self._client = client
        self._webhook = urlsplit(cluster.details().webhook or "")
        self._pki = cluster.folder / "pki"
        self.created = 0
        self.greeted = 0
        self.failures: list[str] = []

    async def create(self, name: str) -> None:
        """Create one pod after the other, for ever."""
        number = 0
        while True:
            number += 1
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
        """Shake hands, for ever, with the trust that was published a moment before."""
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
        """Return the certificate the webhook shows to its API server. Raises OSError."""
        context = ssl.create_default_context(cadata=trusted)
        own = self._pki / "kube-apiserver-webhook-client"
        context.load_cert_chain(f"{own}.crt", f"{own}.key")
        at = self._webhook
        _, writer = await asyncio.open_connection(at.hostname, at.port, ssl=context)
        shown = writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
        writer.close()
        await writer.wait_closed()
        return ssl.DER_cert_to_PEM_cert(shown)


async def kept(client: Client) -> Secret:
    found = await Bundle(client).read_secret(NAMESPACE, SECRET)
    assert found is not None
    return found


def count(bundle: str | bytes) -> int:
    text = bundle if isinstance(bundle, str) else bundle.decode()
    return text.count("BEGIN CERTIFICATE")


async def test_certificate_and_ca_change_and_no_create_is_refused(
    aged: Cluster, tmp_path: Path
) -> None:
    async with admin(aged) as client, asyncio.timeout(PATIENCE):
        before = await kept(client)
        assert "next.crt" not in before.data, "the change began before the load"
        load = Load(aged, client)
        works = [load.create(f"load-{number}") for number in range(CREATORS)]
        tasks = [asyncio.create_task(work) for work in (*works, load.greet())]
        try:
            seen = await watch_the_change(client, load, before)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        after = await kept(client)
        trusted = await load.published()
        shown = await load.served(trusted)

    assert load.failures == []
    assert seen == ["staged", "promoted", "dropped"]
    assert trusted.encode() == after.data["ca.crt"]
    assert before.data["ca.crt"].decode() not in trusted
    assert shown.encode().strip() == after.data["tls.crt"].strip()
    assert shown.encode().strip() != before.data["tls.crt"].strip()
    api = urlsplit(aged.details().api or "")
    assert ssl.get_server_certificate((str(api.hostname), api.port or 443)) == shown
    left = Stage(aged, folder=tmp_path).metric("webhook", "fairgate_certificate_expiry_seconds")
    assert LIFE.total_seconds() - 600 < left <= LIFE.total_seconds()


async def watch_the_change(client: Client, load: Load, before: Secret) -> list[str]:
    """Return the stages the Secret went through, once the old CA is published no more."""
    seen: list[str] = []
    done_at = 0
    while not done_at or load.created < done_at:
        data = (await kept(client)).data
        if "next.crt" in data:
            stage = "staged"
        elif data["tls.crt"] == before.data["tls.crt"]:
            stage = ""
        else:
            stage = "promoted" if count(data["ca.crt"]) == 2 else "dropped"
        if stage and stage not in seen:
            seen.append(stage)
        if stage == "dropped" and not done_at and count(await load.published()) == 1:
            # And still afterwards: the API server has made connections of the new trust.
            done_at = load.created + 100
        await asyncio.sleep(0.1)
    assert load.created > 200
    assert load.greeted > 5
    return seen
