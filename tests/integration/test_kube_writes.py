"""What Fairgate writes to the API server besides releases: events, status, the webhook's trust."""

from __future__ import annotations

import asyncio
import contextlib
import json
import ssl
import uuid
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
import yaml

from app.core.effects import Notice, PodRef, Tell
from app.core.errors import ClusterRefused
from app.core.model import Uid
from app.kube.announce import PodAnnouncer
from app.kube.bundle import Bundle
from app.kube.client import Client
from app.kube.sources import GROUP
from app.kube.status import ResourceStatus

EVENTS = "/api/v1/namespaces/default/events"
HOOKS = "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations"


@pytest.fixture
async def client(request: pytest.FixtureRequest) -> AsyncIterator[Client]:
    client = await Client.connect(request.getfixturevalue("cluster").kubeconfig)
    yield client
    await client.close()


def tell(name: str, notice: Notice = Notice.WAITING, message: str = "3rd of 41") -> Tell:
    return Tell(PodRef(Uid(f"uid-{name}"), "default", name), notice, message)


async def test_owner_reads_the_event_on_the_pod(client: Client) -> None:
    announcer = PodAnnouncer(client)
    running = asyncio.create_task(announcer.run())
    name = f"pod-{uuid.uuid4().hex[:8]}"
    announcer.tell(tell(name, message="ä" * 2000))
    query = [("fieldSelector", f"involvedObject.uid=uid-{name}")]
    items: list[Any] = []
    async with asyncio.timeout(10):
        while not items:
            items = json.loads(await client.request("GET", EVENTS, query=query))["items"]
    [event] = items
    assert event["reason"] == "Waiting"
    assert event["type"] == "Normal"
    assert event["source"] == {"component": "fairgate"}
    assert event["message"].startswith("ää")
    running.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await running
    assert announcer.dropped == 0


@pytest.fixture
async def hooks(client: Client) -> AsyncIterator[str]:
    name = f"hooks-{uuid.uuid4().hex[:8]}"
    nowhere = {"url": "https://127.0.0.1:1/admit"}
    never = {"matchLabels": {"no-such-label": name}}
    hook = {
        "clientConfig": nowhere,
        "namespaceSelector": never,
        "sideEffects": "None",
        "admissionReviewVersions": ["v1"],
    }
    body = {
        "metadata": {"name": name},
        "webhooks": [{**hook, "name": "a.fairgate.io"}, {**hook, "name": "b.fairgate.io"}],
    }
    await client.request("POST", HOOKS, body=body)
    yield name
    await client.request("DELETE", f"{HOOKS}/{name}")


async def test_ca_is_written_into_every_webhook_once(
    client: Client, hooks: str, certificate: bytes
) -> None:
    bundle = Bundle(client)
    assert await bundle.publish_ca(hooks, certificate)
    before = await client.request("GET", f"{HOOKS}/{hooks}")
    assert not await bundle.publish_ca(hooks, certificate)
    assert await client.request("GET", f"{HOOKS}/{hooks}") == before
    written = [hook["clientConfig"].get("caBundle") for hook in json.loads(before)["webhooks"]]
    assert written[0]
    assert written[0] == written[1]


async def test_ca_is_written_into_the_validating_webhooks_too(
    client: Client, hooks: str, certificate: bytes
) -> None:
    validating = HOOKS.replace("mutating", "validating")
    mutating = json.loads(await client.request("GET", f"{HOOKS}/{hooks}"))
    webhooks = [
        {key: value for key, value in hook.items() if key != "reinvocationPolicy"}
        for hook in mutating["webhooks"]
    ]
    body = {"metadata": {"name": hooks}, "webhooks": webhooks}
    bundle = Bundle(client)
    assert await bundle.publish_ca(hooks, certificate)
    await client.request("POST", validating, body=body)
    try:
        assert await bundle.publish_ca(hooks, certificate)
        assert not await bundle.publish_ca(hooks, certificate)
        after = json.loads(await client.request("GET", f"{validating}/{hooks}"))
    finally:
        await client.request("DELETE", f"{validating}/{hooks}")
    assert all(hook["clientConfig"].get("caBundle") for hook in after["webhooks"])


@pytest.fixture
def certificate(request: pytest.FixtureRequest) -> bytes:
    """Any certificate will do; the API server insists that it is one."""
    kubeconfig = Path(request.getfixturevalue("cluster").kubeconfig)
    config = yaml.safe_load(kubeconfig.read_text())
    server = urlsplit(config["clusters"][0]["cluster"]["server"])
    return ssl.get_server_certificate((str(server.hostname), server.port or 443)).encode()


async def test_status_is_merged_and_the_spec_left_alone(
    client: Client, request: pytest.FixtureRequest
) -> None:
    request.getfixturevalue("cluster").install()
    name = f"tenant-{uuid.uuid4().hex[:8]}"
    body = {
        "apiVersion": "fairgate.io/v1alpha1",
        "kind": "Tenant",
        "metadata": {"name": name},
        "spec": {"weight": "2"},
    }
    await client.request("POST", f"{GROUP}/tenants", body=body)
    writer = ResourceStatus(client)
    await writer.write_status("tenants", name, {"pending": 3, "share": "0.5"})
    await writer.write_status("tenants", name, {"pending": 4})
    stored = json.loads(await client.request("GET", f"{GROUP}/tenants/{name}"))
    assert stored["spec"]["weight"] == "2"
    assert stored["status"] == {"pending": 4, "share": "0.5"}
    await client.request("DELETE", f"{GROUP}/tenants/{name}")
    await writer.write_status("tenants", name, {"pending": 5})  # gone meanwhile: no error


async def test_missing_configuration_says_what_to_do(client: Client) -> None:
    with pytest.raises(ClusterRefused, match="install the chart"):
        await Bundle(client).publish_ca("no-such-thing", b"x")
