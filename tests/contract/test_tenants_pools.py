"""Contract of reading and writing Tenants and Pools, for the fake and for a real API server."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import pytest
import yaml

from app.core.errors import WriteRefused
from app.devcluster.cluster import LocalCluster
from app.kube.client import MERGE_PATCH, Client
from app.kube.tenants_pools import KubeResources
from app.ports.api import Stored, TenantsAndPools
from tests.fakes.fake_tenants_and_pools import FakeResources

TENANTS = "/apis/fairgate.io/v1alpha1/tenants"


class Place(Protocol):
    """Tenants and Pools, and a leader that publishes their status."""

    resources: TenantsAndPools

    async def publish(self, name: str, pending: int) -> None: ...


@dataclass
class Fake:
    resources: FakeResources

    async def publish(self, name: str, pending: int) -> None:
        self.resources.touch("tenants", name)


@dataclass
class Real:
    """Writes with Fairgate's own account, the only one that may name another caller."""

    admin: Client
    resources: KubeResources

    async def publish(self, name: str, pending: int) -> None:
        body: dict[str, Any] = {"status": {"pending": pending}}
        path = f"{TENANTS}/{name}/status"
        await self.admin.request("PATCH", path, body=body, content_type=MERGE_PATCH)


@pytest.fixture(params=["fake", "real"])
async def place(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Place]:
    if request.param == "fake":
        yield Fake(FakeResources())
        return
    cluster = request.getfixturevalue("cluster")
    await asyncio.to_thread(cluster.install)
    admin = await Client.connect(cluster.kubeconfig)
    client = await Client.connect(await asyncio.to_thread(_own_kubeconfig, cluster, tmp_path))
    yield Real(admin, KubeResources(client))
    await client.close()
    await admin.close()


def _own_kubeconfig(cluster: LocalCluster, folder: Path) -> Path:
    """Return the kubeconfig of an api process."""
    token = cluster.kubectl("-n", "fairgate-system", "create", "token", "fairgate-api").strip()
    document = yaml.safe_load(cluster.kubeconfig.read_text())
    document["users"][0]["user"] = {"token": token}
    path = folder / "api.kubeconfig"
    path.write_text(yaml.safe_dump(document))
    return path


@pytest.fixture
def name() -> str:
    return f"team-{uuid.uuid4().hex[:8]}"


async def made(place: Place, name: str) -> Stored:
    stored = await place.resources.write("tenants", name, {"weight": "2"}, "alice", None)
    assert stored is not None
    return stored


def author(stored: Stored) -> str:
    return str(stored.document["metadata"]["annotations"]["fairgate.io/changed-by"])


async def test_created_object_is_read_with_its_author(place: Place, name: str) -> None:
    assert await place.resources.read("tenants", name) is None
    await made(place, name)
    found = await place.resources.read("tenants", name)
    assert found is not None
    assert (found.name, author(found)) == (name, "alice")
    assert found.spec == {"weight": "2", "paused": False}


async def test_existing_object_cannot_be_created_again(place: Place, name: str) -> None:
    await made(place, name)
    assert await place.resources.write("tenants", name, {}, "bob", None) is None
    found = await place.resources.read("tenants", name)
    assert found is not None
    assert author(found) == "alice"


async def test_write_replaces_the_spec_and_changes_the_edition(place: Place, name: str) -> None:
    before = await made(place, name)
    after = await place.resources.write("tenants", name, {"maxPending": 3}, "bob", before)
    assert after is not None
    assert after.spec == {"weight": "1", "paused": False, "maxPending": 3}
    assert (author(after), after.edition != before.edition) == ("bob", True)


async def test_status_write_changes_the_version_but_not_the_edition(
    place: Place, name: str
) -> None:
    before = await made(place, name)
    await place.publish(name, 7)
    after = await place.resources.read("tenants", name)
    assert after is not None
    assert (after.edition, after.version != before.version) == (before.edition, True)


async def test_write_and_delete_of_an_outdated_version_are_refused(place: Place, name: str) -> None:
    before = await made(place, name)
    await place.publish(name, 7)
    assert await place.resources.write("tenants", name, {"weight": "9"}, "bob", before) is None
    assert not await place.resources.delete("tenants", before, "bob")
    found = await place.resources.read("tenants", name)
    assert found is not None
    assert found.spec["weight"] == "2"


async def test_deleted_object_cannot_be_written_or_deleted_again(place: Place, name: str) -> None:
    before = await made(place, name)
    assert await place.resources.delete("tenants", before, "bob")
    assert await place.resources.read("tenants", name) is None
    assert await place.resources.write("tenants", name, {}, "bob", before) is None
    assert not await place.resources.delete("tenants", before, "bob")
    again = await made(place, name)
    assert again.edition != before.edition


async def test_a_dry_run_stores_nothing(place: Place, name: str) -> None:
    tried = await place.resources.write("tenants", name, {}, "bob", None, dry_run=True)
    assert tried is not None
    assert tried.spec == {"weight": "1", "paused": False}
    assert await place.resources.read("tenants", name) is None
    before = await made(place, name)
    await place.resources.write("tenants", name, {"weight": "9"}, "bob", before, dry_run=True)
    assert await place.resources.delete("tenants", before, "bob", dry_run=True)
    assert await place.resources.read("tenants", name) == before


async def test_invalid_spec_is_refused_with_a_reason(place: Place, name: str) -> None:
    before = await made(place, name)
    for dry_run in (True, False):
        with pytest.raises(WriteRefused) as caught:
            await place.resources.write("tenants", name, {"weight": "0007"}, "bob", before, dry_run)
        assert caught.value.status == 422
        said = str(caught.value)
        assert said.startswith("spec.weight: ")
        assert "must be a decimal number" in said
