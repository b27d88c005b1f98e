"""Contract of the checkpoint store, for the fake and for a real API server."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator
from dataclasses import dataclass, replace
from typing import Protocol

import msgspec
import pytest

from app.core.errors import ClusterRefused
from app.core.fairshare.checkpoint import MAX_USER_NAME, FairnessState, TenantCheckpoint
from app.core.model import DEFAULT_POOL, Millis, Resource, TenantName, UserName
from app.core.quantities import CPU
from app.k8s_types import objects
from app.kube.checkpoint_store import NAME, KeptCheckpoints, read_checkpoint
from app.kube.client import Client
from app.ports.cluster import CheckpointStore
from tests.fakes.fake_checkpoint_store import FakeKeeper

GPU = Resource("nvidia.com/gpu")
TENANTS = "/apis/fairgate.io/v1alpha1/tenants"
MAPS = "/api/v1/namespaces/default/configmaps"
KEPT = FairnessState((7, 12), {GPU: 0.125}, {DEFAULT_POOL: {GPU: 10**15 + 1, CPU: 123_456}})
USERS = dict.fromkeys((UserName("ä@example.com"), UserName("ü" * MAX_USER_NAME)), KEPT)
CHECKPOINT = TenantCheckpoint(Millis(1_700_000_000_123), 7, KEPT, USERS)


class Place(Protocol):
    """A `CheckpointStore`, and a view of its stored objects from outside."""

    keeper: CheckpointStore

    async def make(self, name: TenantName) -> None: ...
    async def found(self, name: TenantName) -> TenantCheckpoint | None: ...
    async def another(self) -> CheckpointStore:
        """Return the `CheckpointStore` of another process."""


@dataclass
class Fake:
    keeper: FakeKeeper

    async def make(self, name: TenantName) -> None:
        self.keeper.tenants.add(name)

    async def found(self, name: TenantName) -> TenantCheckpoint | None:
        return self.keeper.kept.get(name)

    async def another(self) -> CheckpointStore:
        return FakeKeeper(self.keeper.map)


@dataclass
class Real:
    client: Client
    keeper: KeptCheckpoints

    async def make(self, name: TenantName) -> None:
        body = {
            "apiVersion": "fairgate.io/v1alpha1",
            "kind": "Tenant",
            "metadata": {"name": name},
            "spec": {},
        }
        await self.client.request("POST", TENANTS, body=body)

    async def found(self, name: TenantName) -> TenantCheckpoint | None:
        answer = await self.client.request("GET", f"{TENANTS}/{name}")
        return read_checkpoint(
            msgspec.json.decode(answer, type=objects.TenantObject).status.checkpoint
        )

    async def another(self) -> CheckpointStore:
        return KeptCheckpoints(self.client, "default")


@pytest.fixture(params=["fake", "real"])
async def place(request: pytest.FixtureRequest) -> AsyncIterator[Place]:
    if request.param == "fake":
        yield Fake(FakeKeeper())
        return
    cluster = request.getfixturevalue("cluster")
    await asyncio.to_thread(cluster.install)
    client = await Client.connect(cluster.kubeconfig)
    yield Real(client, KeptCheckpoints(client, "default"))
    if await KeptCheckpoints(client, "default").read_other_checkpoints():
        await client.request("DELETE", f"{MAPS}/{NAME}")
    await client.close()


@pytest.fixture
def name() -> TenantName:
    return TenantName(f"team-{uuid.uuid4().hex[:8]}")


async def test_a_tenant_holds_its_last_checkpoint_whole(place: Place, name: TenantName) -> None:
    await place.make(name)
    await place.keeper.store_checkpoint(name, CHECKPOINT)
    assert await place.found(name) == CHECKPOINT
    later = replace(CHECKPOINT, at=Millis(CHECKPOINT.at + 60_000), users={UserName("b"): KEPT})
    await place.keeper.store_checkpoint(name, later)
    assert await place.found(name) == later


async def test_a_tenant_that_is_gone_is_no_error(place: Place, name: TenantName) -> None:
    await place.keeper.store_checkpoint(name, CHECKPOINT)


async def test_other_checkpoints_are_replaced_as_one_set(place: Place) -> None:
    assert await place.keeper.read_other_checkpoints() == {}
    for names in (["ns.a", "ns.b"], ["ns.b", ""]):
        kept = {TenantName(each): CHECKPOINT for each in names}
        await place.keeper.store_other_checkpoints(kept)
        assert await place.keeper.read_other_checkpoints() == kept


async def test_checkpoint_write_after_a_later_leaders_write_is_refused(place: Place) -> None:
    first = place.keeper
    await first.store_other_checkpoints({TenantName("ns.a"): CHECKPOINT})
    later = await place.another()
    assert await later.read_other_checkpoints() == {TenantName("ns.a"): CHECKPOINT}
    newer = {TenantName("ns.a"): replace(CHECKPOINT, epoch=8)}
    await later.store_other_checkpoints(newer)
    with pytest.raises(ClusterRefused):
        await first.store_other_checkpoints({TenantName("ns.a"): CHECKPOINT})
    assert await later.read_other_checkpoints() == newer
    await first.store_other_checkpoints(newer)  # this also reads the stored state
