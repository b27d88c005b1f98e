"""Contract of the leader state that other replicas read, for the fake and for a real Redis."""

from __future__ import annotations

from dataclasses import replace

import pytest

from app.core.errors import EpochStale
from app.core.explain.views import LeaderStateMessage, PublishedReservation
from app.core.model import Millis, NodeName, PoolName, TenantName, Uid, UserName
from app.store.leader_state_store import RedisLeaderState
from tests.fakes.fake_leader_state_store import FakeLeaderState
from tests.support.shared_stores import Reals, World, real
from tests.support.store_writes import CPU, GPU

KEPT = PublishedReservation(
    PoolName("h100"), Uid("u"), TenantName("a:b"), {NodeName("n"): {GPU: 8, CPU: 500}}
)
KIND = (TenantName("team"), UserName("\ud800/%"), frozenset({(GPU, 4), (CPU, 100)}))
CLOSED = {PoolName("auto"): Millis(9)}
BARRED = {(PoolName("auto"), (KIND[0], KIND[1])): Millis(8)}
DEFERRED = {("ns", KIND[1], "job/train:1"): Millis(7)}
REFUSED = {Uid("r"): 3}
TOLD = (REFUSED, frozenset({KIND}), CLOSED, BARRED, DEFERRED)
MESSAGE = LeaderStateMessage(Millis(5), 7, 0.25, (KEPT,), *TOLD)


@pytest.fixture
def store(stores: World) -> RedisLeaderState | FakeLeaderState:
    if isinstance(stores, Reals):
        return RedisLeaderState(stores.server, stores.cluster)
    return FakeLeaderState(stores.memory)


async def test_message_is_none_before_the_first_write(
    store: RedisLeaderState | FakeLeaderState,
) -> None:
    assert await store.read_message() is None


async def test_stored_message_is_read_back_unchanged(
    store: RedisLeaderState | FakeLeaderState,
) -> None:
    await store.store_message(MESSAGE)
    assert await store.read_message() == MESSAGE
    empty = LeaderStateMessage(Millis(6), 7, 0.0)
    await store.store_message(empty)
    assert await store.read_message() == empty


async def test_old_leader_cannot_store_a_message(
    stores: World, store: RedisLeaderState | FakeLeaderState
) -> None:
    await store.store_message(MESSAGE)
    await stores.store().claim_epoch(8)
    with pytest.raises(EpochStale):
        await store.store_message(replace(MESSAGE, drift=1.0))
    assert await store.read_message() == MESSAGE


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "null",
        '{"at": "x"}',
        '{"at":1,"epoch":1,"drift":0,"reserved":[7]}',
        "x" * 5_000_000,
    ],
)
async def test_invalid_stored_message_is_read_as_none(store_url: str, text: str) -> None:
    async with real(store_url) as world:
        store = RedisLeaderState(world.server, world.cluster)
        await store.store_message(MESSAGE)
        await world.server.call("SET", f"fairgate:{{{world.cluster}}}:bulletin", text)
        assert await store.read_message() is None
