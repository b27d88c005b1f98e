"""Lost or late commands to Redis never cause double counting or missing data.

The test acts as the leader: after a failure it rebuilds Redis from its own state.
"""

from __future__ import annotations

import asyncio
from collections import deque
from enum import Enum
from uuid import uuid4

import pytest
from hypothesis import given
from hypothesis import strategies as st
from redis import exceptions as redis_errors
from redis.asyncio import Redis

from app.core.effects import Refund, StoreWrite
from app.core.errors import StoreError
from app.core.model import Uid
from app.store import redis_url
from app.store.connection import Server
from app.store.leader_store import CHUNK, RedisStore
from app.store.reader import RedisReader
from tests.fakes.fake_store import Contents
from tests.support.recount import compare
from tests.support.redis import RedisProcess
from tests.support.store_writes import ALICE, BOB, charge, enqueue, intend

UIDS = ("a", "b", "c")


class Fate(Enum):
    """The fault applied to one command on the wire."""

    FINE = "carried"
    REQUEST = "the request is lost"
    REPLY = "done, and the reply is lost"
    LATE = "silence; it arrives when nobody waits for it any more"


class Wire(Redis):
    """A connection that applies one fault to each command in turn, and then works normally."""

    fates: deque[Fate]
    late: list[tuple[object, ...]]

    async def execute_command(self, *command: object, **options: object) -> object:  # type: ignore[override]
        fate = self.fates.popleft() if self.fates else Fate.FINE
        if fate is Fate.LATE:
            self.late.append(command)
            raise redis_errors.TimeoutError("silence")
        if fate is Fate.REQUEST:
            raise redis_errors.ConnectionError("cut")
        answer = await super().execute_command(*command, **options)
        if fate is Fate.REPLY:
            raise redis_errors.ConnectionError("cut")
        return answer

    async def deliver(self) -> None:
        """Deliver the late commands now, in their order."""
        late, self.late = self.late, []
        for command in late:
            try:
                await super().execute_command(*command)
            except redis_errors.NoScriptError:
                continue  # no client sends it again


def any_write() -> st.SearchStrategy[StoreWrite]:
    uid, gpus = st.sampled_from(UIDS), st.integers(1, 4)
    return st.one_of(
        st.builds(enqueue, uid, st.sampled_from("12"), st.sampled_from([ALICE, BOB])),
        st.builds(intend, uid, gpus),
        st.builds(charge, uid, gpus),
        st.builds(lambda each: Refund(Uid(each)), uid),
    )


@given(
    batches=st.lists(st.lists(any_write(), min_size=1, max_size=3), min_size=1, max_size=4),
    fates=st.lists(st.sampled_from(Fate), max_size=24),
    before=st.integers(0, 3),
    arrive=st.integers(1, 4),
)
def test_no_loss_on_the_wire_is_counted_twice_or_forgotten(
    shared_redis: RedisProcess,
    batches: list[list[StoreWrite]],
    fates: list[Fate],
    before: int,
    arrive: int,
) -> None:
    asyncio.run(_play(shared_redis.url, batches, fates, before, arrive))


@pytest.mark.parametrize("fate", [Fate.REQUEST, Fate.REPLY, Fate.LATE])
@pytest.mark.parametrize("times", [1, 2])
@pytest.mark.parametrize("position", range(10))
@pytest.mark.parametrize("arrive", [1, 2])
async def test_each_command_of_a_rebuild_and_of_writes_may_be_lost(
    store_url: str, fate: Fate, times: int, position: int, arrive: int
) -> None:
    fates = [Fate.FINE] * position + [fate] * times
    await _play(
        store_url, [[charge("a", 2)], [Refund(Uid("a")), intend("b", 1)]], fates, CHUNK + 1, arrive
    )


async def _play(
    url: str, batches: list[list[StoreWrite]], fates: list[Fate], before: int, arrive: int
) -> None:
    """Write batch after batch and compare Redis with the truth after each one.

    `before` is the number of writes already stored. Late commands are delivered after every
    `arrive` batches.
    """
    wire = Wire.from_url(url, **redis_url.connection_options())
    wire.fates, wire.late = deque(fates), []
    reading = Server.connect(url)
    cluster = uuid4().hex
    store = RedisStore(Server(wire, "there"), cluster)
    truth: list[StoreWrite] = [charge(f"old-{number}", 1) for number in range(before)]
    try:
        await _rebuild(store, wire, truth)
        for number, batch in enumerate(batches, 1):
            truth += batch
            try:
                await store.write(7, batch)
            except StoreError:
                await _rebuild(store, wire, truth)
            assert await compare(RedisReader(reading, cluster), truth) == []
            if number % arrive == 0:
                await wire.deliver()
                assert await compare(RedisReader(reading, cluster), truth) == []
        wire.fates.clear()
        try:
            await store.write(7, [])
        except StoreError:
            await _rebuild(store, wire, truth)
        assert await compare(RedisReader(reading, cluster), truth) == []
        assert await store.read_open_intents() == Contents.of(truth).intents()
    finally:
        await reading.close()
        await wire.aclose()


async def _rebuild(store: RedisStore, wire: Wire, truth: list[StoreWrite]) -> None:
    while True:
        try:
            await store.rebuild(7, truth)
        except StoreError:
            await wire.deliver()
        else:
            return
