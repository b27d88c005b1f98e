"""Contract of Secrets with concurrent writers, for the fake and for a real API server."""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator

import pytest

from app.kube.client import Client
from app.kube.secrets import Bundle
from app.ports.cluster import Secrets
from tests.fakes.fake_secrets import FakeSecrets

DATA = {"tls.crt": b"\x00binary", "tls.key": b""}


@pytest.fixture(params=["fake", "real"])
async def secrets(request: pytest.FixtureRequest) -> AsyncIterator[Secrets]:
    if request.param == "fake":
        yield FakeSecrets()
        return
    client = await Client.connect(request.getfixturevalue("cluster").kubeconfig)
    yield Bundle(client)
    await client.close()


@pytest.fixture
def name() -> str:
    return f"secret-{uuid.uuid4().hex[:8]}"


async def test_it_is_created_once_and_read_back(secrets: Secrets, name: str) -> None:
    assert await secrets.read_secret("default", name) is None
    assert await secrets.create_secret("default", name, DATA, "Opaque")
    assert not await secrets.create_secret("default", name, {"tls.crt": b"other"})

    found = await secrets.read_secret("default", name)

    assert found is not None
    assert found.data == DATA
    assert found.ours


async def test_all_of_it_is_replaced(secrets: Secrets, name: str) -> None:
    await secrets.create_secret("default", name, DATA)
    before = await secrets.read_secret("default", name)
    assert before is not None

    assert await secrets.replace_secret("default", name, {"next": b"1"}, before.version)

    after = await secrets.read_secret("default", name)
    assert after is not None
    assert after.data == {"next": b"1"}
    assert after.ours
    assert after.version != before.version


async def test_replace_of_an_outdated_version_is_refused(secrets: Secrets, name: str) -> None:
    await secrets.create_secret("default", name, DATA)
    before = await secrets.read_secret("default", name)
    assert before is not None
    assert await secrets.replace_secret("default", name, {"first": b"1"}, before.version)

    assert not await secrets.replace_secret("default", name, {"second": b"2"}, before.version)

    after = await secrets.read_secret("default", name)
    assert after is not None
    assert after.data == {"first": b"1"}


async def test_absent_secret_is_not_replaced(secrets: Secrets, name: str) -> None:
    assert not await secrets.replace_secret("default", name, DATA, "1")
