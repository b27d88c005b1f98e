"""The observer can read the keys that the product writes to Redis."""

from __future__ import annotations

import redis

from tests.faults.observer.redis_copy import Copy, compare, read
from tests.support.shared_stores import real
from tests.support.store_writes import BOB, CPU, GPU, POOL, TEAM, charge, enqueue, intend

ALICES = (TEAM, "alice")
BOBS = (TEAM, str(BOB))


def copied(url: str, cluster: str) -> Copy:
    found = read(url, cluster)
    assert found is not None
    return found


async def test_observer_reads_the_keys_of_the_store(store_url: str) -> None:
    async with real(store_url) as world:
        store = world.store()
        await store.rebuild(7, [enqueue("b", "2"), enqueue("a", "1"), enqueue("c", "1", BOB)])
        await store.write(7, [charge("d", 4), charge("e", 2, BOB), intend("f", 1)])
        found = copied(store_url, world.cluster)
    assert found.queues == {ALICES: ["a", "b"], BOBS: ["c"]}
    assert found.waiting == {ALICES: 2, BOBS: 1}
    assert found.held == {"a", "b", "c"}
    assert found.intents == {"f"}
    assert found.charges == {"d", "e"}
    assert found.used == {
        (*ALICES, POOL, GPU): 5,
        (*ALICES, POOL, CPU): 500,
        (*BOBS, POOL, GPU): 2,
    }


async def test_observer_finds_an_increment_that_was_repeated(store_url: str) -> None:
    async with real(store_url) as world:
        await world.store().rebuild(7, [charge("d", 4)])
        right = copied(store_url, world.cluster)
        with redis.Redis.from_url(store_url) as server:
            (key,) = server.scan_iter(f"fairgate:{{{world.cluster}}}:*:used")
            (cell,) = server.hkeys(key)
            server.hincrby(key, cell, 4)
        found = compare(right, copied(store_url, world.cluster))
    assert found == [f"used of {TEAM}:alice:{POOL}:{GPU}: 8, should be 4"]


async def test_observer_finds_no_state_in_an_emptied_redis(store_url: str) -> None:
    async with real(store_url) as world:
        await world.store().rebuild(7, [charge("d", 4)])
        await world.flush()
        assert read(store_url, world.cluster) is None
