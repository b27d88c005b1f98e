"""Fairgate's writes to the API server other than releases: events, status, Secrets."""

from __future__ import annotations

import asyncio
import contextlib
import json
import uuid
from collections.abc import AsyncIterator
from typing import Any

import pytest

from app.core.effects import EmitEvent, EventReason, PodRef
from app.core.model import Millis, Uid
from app.kube.client import Client
from app.kube.event_recorder import PodAnnouncer
from app.kube.informer.sources import GROUP
from app.kube.secrets import Bundle
from app.kube.tenants_pools import ResourceStatus
from app.ports.cluster import StoredCondition

EVENTS = "/api/v1/namespaces/default/events"


@pytest.fixture
async def client(request: pytest.FixtureRequest) -> AsyncIterator[Client]:
    client = await Client.connect(request.getfixturevalue("cluster").kubeconfig)
    yield client
    await client.close()


def tell(
    name: str, notice: EventReason = EventReason.WAITING, message: str = "3rd of 41"
) -> EmitEvent:
    return EmitEvent(PodRef(Uid(f"uid-{name}"), "default", name), notice, message)


async def test_owner_reads_the_event_on_the_pod(client: Client) -> None:
    announcer = PodAnnouncer(client, lambda _: None)
    running = asyncio.create_task(announcer.send_events())
    name = f"pod-{uuid.uuid4().hex[:8]}"
    announcer.emit(tell(name, message="ä" * 2000))
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


async def test_status_write_is_merged_and_does_not_change_the_spec(
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
    ready = {"type": "Ready", "status": "True", "lastTransitionTime": "2026-01-02T03:04:05Z"}
    await writer.write_status(
        "tenants", name, {"conditions": [ready, {"type": "Other", "status": "True"}]}
    )
    await writer.write_status("tenants", name, {"used": {"a": "1", "b": "2"}})
    await writer.write_status("tenants", name, {"used": {"a": None, "b": "3"}})
    kept = await writer.read_status("tenants")
    assert kept.keys[name, "used"] == {"b"}
    found = {kind: each for (of, kind), each in kept.conditions.items() if of == name}
    since = Millis(1_767_323_045_000)
    assert found == {"Ready": StoredCondition(stored["metadata"]["uid"], True, since)}
    await client.request("DELETE", f"{GROUP}/tenants/{name}")
    await writer.write_status("tenants", name, {"pending": 5})  # gone meanwhile: no error


async def test_secret_is_created_once_and_read_back(client: Client) -> None:
    bundle, name = Bundle(client), f"secret-{uuid.uuid4().hex[:8]}"
    assert await bundle.read_secret("default", name) is None
    data = {"tls.crt": b"\x00binary", "tls.key": b""}
    assert await bundle.create_secret("default", name, data, "Opaque")
    assert not await bundle.create_secret("default", name, {"tls.crt": b"other"})
    kept = await bundle.read_secret("default", name)
    assert kept is not None
    assert kept.data == data
    await client.request("DELETE", f"/api/v1/namespaces/default/secrets/{name}")
