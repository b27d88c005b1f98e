"""Contract of the anchor of the audit chain, for the fake and for a real API server."""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator
from dataclasses import replace

import pytest

from app.core.audit.codec import SignedHead
from app.core.audit_entry import Head
from app.core.errors import EpochStale
from app.core.model import Millis
from app.devcluster.cluster import LocalCluster
from app.kube.audit_anchor import NAME, KeptAnchor
from app.kube.client import Client
from tests.fakes.fake_audit_stream import FakeAnchor

SIGNED = SignedHead("default", Head(4, "ab" * 32), 7, Millis(5), "c2lnbmF0dXJl", "a2V5")


@pytest.fixture(params=["fake", "real"])
async def anchor(request: pytest.FixtureRequest) -> AsyncIterator[FakeAnchor | KeptAnchor]:
    if request.param == "fake":
        yield FakeAnchor()
        return
    cluster: LocalCluster = request.getfixturevalue("cluster")
    namespace = f"anchor-{uuid.uuid4().hex[:8]}"
    cluster.kubectl("create", "namespace", namespace)
    client = await Client.connect(cluster.kubeconfig)
    yield KeptAnchor(client, namespace)
    await client.close()
    cluster.kubectl("delete", "namespace", namespace, "--wait=false")


async def test_empty_anchor_has_floor_zero_and_no_head(anchor: FakeAnchor | KeptAnchor) -> None:
    assert await anchor.read_epoch_floor() == 0
    assert await anchor.read_anchored_head() is None


async def test_an_epoch_is_claimed_once(anchor: FakeAnchor | KeptAnchor) -> None:
    await anchor.claim_epoch(7)
    assert await anchor.read_epoch_floor() == 7
    for epoch in (6, 7):
        with pytest.raises(EpochStale, match="7"):
            await anchor.claim_epoch(epoch)
    await anchor.claim_epoch(8)
    assert await anchor.read_epoch_floor() == 8


async def test_anchored_head_is_read_back_unchanged(anchor: FakeAnchor | KeptAnchor) -> None:
    await anchor.anchor_head(7, SIGNED)
    assert await anchor.read_anchored_head() == SIGNED
    later = replace(SIGNED, head=Head(9, "cd" * 32), at=Millis(6))
    await anchor.anchor_head(7, later)
    assert await anchor.read_anchored_head() == later
    assert await anchor.read_epoch_floor() == 7


async def test_claiming_an_epoch_does_not_change_the_anchored_head(
    anchor: FakeAnchor | KeptAnchor,
) -> None:
    await anchor.anchor_head(7, SIGNED)
    await anchor.claim_epoch(8)
    assert await anchor.read_anchored_head() == SIGNED


async def test_an_old_leader_cannot_anchor(anchor: FakeAnchor | KeptAnchor) -> None:
    await anchor.claim_epoch(8)
    with pytest.raises(EpochStale):
        await anchor.anchor_head(7, SIGNED)
    assert await anchor.read_anchored_head() is None


@pytest.mark.parametrize(
    ("key", "value", "floor"),
    [
        ("floor", "many", 0),
        ("floor", "100000000001", 0),
        ("floor", "-3", 0),
        ("floor", "5000000001", 5_000_000_001),
        ("epoch", "x", 7),
    ],
)
async def test_invalid_anchor_fields_are_ignored(
    cluster: LocalCluster, key: str, value: str, floor: int
) -> None:
    namespace = f"anchor-{uuid.uuid4().hex[:8]}"
    cluster.kubectl("create", "namespace", namespace)
    data = {"floor": "7", **{name: str(v) for name, v in SIGNED.json_fields().items()}}
    if key == "floor":
        data = {}
    data[key] = value
    literals = [f"--from-literal={name}={text}" for name, text in data.items()]
    cluster.kubectl("create", "configmap", NAME, "-n", namespace, *literals)
    client = await Client.connect(cluster.kubeconfig)
    try:
        kept = KeptAnchor(client, namespace)
        assert await kept.read_epoch_floor() == floor
        assert await kept.read_anchored_head() is None
    finally:
        await client.close()
        cluster.kubectl("delete", "namespace", namespace, "--wait=false")
