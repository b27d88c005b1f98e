"""Redis equals a plain count after any writes, repeats, delays and rebuilds."""

from __future__ import annotations

from collections.abc import Iterator
from random import Random
from uuid import uuid4

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from app.core.effects import (
    Charge,
    Dequeue,
    Enqueue,
    Intend,
    ListOrder,
    PodRef,
    Refund,
    StoreWrite,
)
from app.core.fairshare.user_queue import QueueKey
from app.core.model import Millis, PoolName, Resource, TenantName, Uid, UserName
from app.store.connection import Server
from app.store.leader_store import RedisStore
from tests.fakes.fake_store import Contents
from tests.support.depth import cases
from tests.support.recount import compare
from tests.support.redis import RedisProcess


def enqueue(
    ref: PodRef, tenant: TenantName, user: UserName, precedence: int, order: ListOrder
) -> Enqueue:
    rank = QueueKey(precedence, Millis(precedence * 7 % 5), ref.uid).rank
    return Enqueue(ref, tenant, user, rank, order)


uids = st.sampled_from([Uid(name) for name in "abcdef"])
refs = st.builds(PodRef, uids, st.just("space"), st.just("pod"))
tenants = st.sampled_from([TenantName("t1"), TenantName("t:2")])
users = st.sampled_from([UserName("u1"), UserName("u%2")])
pools = st.sampled_from([PoolName("p1"), PoolName("p2")])
demands = st.dictionaries(
    st.sampled_from([Resource("nvidia.com/gpu"), Resource("cpu")]), st.integers(0, 2**50)
)
numbers = st.integers(1, 9)
writes = st.lists(
    st.one_of(
        st.builds(enqueue, refs, tenants, users, st.integers(0, 9), st.sampled_from(ListOrder)),
        st.builds(Dequeue, uids),
        st.builds(Intend, refs, tenants, users, pools, demands, numbers, numbers),
        st.builds(Charge, uids, tenants, users, pools, demands),
        st.builds(Refund, uids),
    ),
    max_size=12,
)
steps = st.lists(st.tuples(st.sampled_from(["write", "write", "rebuild", "elect"]), writes))


class Echo(Server):
    """Sends commands twice at random, and sends old commands again."""

    def __init__(self, server: Server, random: Random) -> None:
        self._server = server
        self._random = random
        self._sent: list[tuple[str | bytes | int, ...]] = []

    async def call(self, *command: str | bytes | int) -> object:
        if self._sent and self._random.random() < 0.3:
            await self._server.call(*self._random.choice(self._sent))
        answer = await self._server.call(*command)
        if command[0] == "EVALSHA":
            self._sent.append(command)
        if self._random.random() < 0.3:
            answer = await self._server.call(*command)
        return answer


@pytest.fixture(scope="module")
def redis_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisProcess]:
    process = RedisProcess(tmp_path_factory.mktemp("redis"))
    yield process
    process.kill()


@settings(
    max_examples=cases(60, 150),
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(steps=steps, seed=st.integers(0, 10**6))
async def test_redis_equals_a_plain_count(
    redis_server: RedisProcess, steps: list[tuple[str, list[StoreWrite]]], seed: int
) -> None:
    server = Server.connect(redis_server.url)
    try:
        store = RedisStore(Echo(server, Random(seed)), uuid4().hex)
        epoch, known = 1, list[StoreWrite]()
        await store.rebuild(epoch, known)
        for step, batch in steps:
            if step != "write":
                epoch += step == "elect"
                known = []
                await store.rebuild(epoch, batch)
            else:
                await store.write(epoch, batch)
            known += batch
            assert await compare(store, known) == []
            assert await store.read_open_intents() == Contents.of(known).intents()
            assert await store.read_epoch_floor() == epoch
    finally:
        await server.close()
