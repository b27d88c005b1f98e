"""Contract of the leader's copy in Redis, for the fake and for a real Redis."""

from __future__ import annotations

import pytest

from app.core.effects import Dequeue, Enqueue, Refund, StoreWrite
from app.core.errors import EpochStale, StoreEmptied
from app.core.model import TenantName, Uid, UserName
from app.store.reader import PendingCount, QueuePosition, UsedAmount
from tests.support.recount import compare
from tests.support.shared_stores import AnyStore, World, real
from tests.support.store_cases import world as world  # the fixture
from tests.support.store_writes import (
    ALICE,
    BOB,
    CPU,
    GPU,
    POOL,
    TEAM,
    charge,
    enqueue,
    intend,
    ref,
)


@pytest.fixture
async def store(world: World) -> AnyStore:
    """An empty store claimed by a leader of epoch 7."""
    store = world.store()
    await store.rebuild(7, [])
    return store


async def test_an_empty_store_has_no_floor_and_no_intents(world: World) -> None:
    assert await world.store().floor() == 0
    assert await world.store().intents() == ()


async def test_rebuild_raises_the_floor(world: World) -> None:
    await world.store().rebuild(7, [])
    assert await world.store().floor() == 7


async def test_a_reader_is_never_told_nothing_waits_before_the_first_rebuild(world: World) -> None:
    with pytest.raises(StoreEmptied):
        await world.store().place(Uid("a"))
    with pytest.raises(StoreEmptied):
        await world.store().queue(TEAM, ALICE, 5)
    with pytest.raises(StoreEmptied):
        await world.store().usage()
    with pytest.raises(StoreEmptied):
        await world.store().counts()


async def test_a_claim_stops_older_leaders_and_keeps_what_they_left(
    world: World, store: AnyStore
) -> None:
    await store.write(7, [intend("a", 4)])
    new = world.store()
    await new.claim(8)
    with pytest.raises(EpochStale):
        await store.write(7, [intend("b", 4)])
    assert await new.floor() == 8
    assert await new.intents() == (intend("a", 4),)
    with pytest.raises(EpochStale):
        await world.store().claim(7)
    await new.rebuild(8, [])
    await new.write(8, [intend("c", 1)])


async def test_a_queue_is_in_the_order_of_ranks(store: AnyStore) -> None:
    await store.write(7, [enqueue("c", "2"), enqueue("a", "3"), enqueue("b", "1")])
    assert await store.queue(TEAM, ALICE, 10) == (ref("b"), ref("c"), ref("a"))
    assert await store.queue(TEAM, ALICE, 1) == (ref("b"),)
    assert await store.queue(TEAM, ALICE, 0) == ()


async def test_a_rank_that_begins_with_another_comes_after_it(store: AnyStore) -> None:
    await store.write(
        7, [Enqueue(ref("a"), TEAM, ALICE, "11"), Enqueue(ref("b"), TEAM, ALICE, "1")]
    )
    assert await store.queue(TEAM, ALICE, 10) == (ref("b"), ref("a"))


async def test_a_place_is_counted_from_one(store: AnyStore) -> None:
    await store.write(7, [enqueue("a", "1", BOB), enqueue("b", "2", BOB), enqueue("c", "1")])
    assert await store.place(Uid("b")) == QueuePosition(TEAM, BOB, 2, 2)
    assert await store.place(Uid("c")) == QueuePosition(TEAM, ALICE, 1, 1)


async def test_who_does_not_wait_has_no_place(store: AnyStore) -> None:
    await store.write(7, [enqueue("a", "1"), Dequeue(Uid("a")), Dequeue(Uid("never seen"))])
    assert await store.place(Uid("a")) is None
    assert await store.counts() == ()


async def test_a_pod_waits_in_one_queue_only(store: AnyStore) -> None:
    await store.write(7, [enqueue("a", "1"), enqueue("a", "2", BOB), enqueue("a", "2", BOB)])
    assert await store.counts() == (PendingCount(TEAM, BOB, 1),)
    assert await store.queue(TEAM, ALICE, 10) == ()


async def test_an_open_intent_counts_as_used(store: AnyStore) -> None:
    await store.write(7, [intend("a", 4)])
    assert await store.usage() == (
        UsedAmount(TEAM, ALICE, POOL, CPU, 500),
        UsedAmount(TEAM, ALICE, POOL, GPU, 4),
    )


async def test_intents_come_back_as_they_were_written(world: World, store: AnyStore) -> None:
    await store.write(7, [intend("b", 1), intend("a", 4, sequence=2)])
    assert await world.store().intents() == (intend("a", 4, sequence=2), intend("b", 1))


async def test_amounts_of_zero_are_left_out(store: AnyStore) -> None:
    await store.write(7, [intend("a", 0)])
    assert await store.usage() == (UsedAmount(TEAM, ALICE, POOL, CPU, 500),)
    assert [dict(intent.demand) for intent in await store.intents()] == [{CPU: 500}]


async def test_an_intent_replaces_an_earlier_one(store: AnyStore) -> None:
    await store.write(7, [intend("a", 4), intend("a", 2, sequence=2)])
    assert await store.intents() == (intend("a", 2, sequence=2),)
    assert UsedAmount(TEAM, ALICE, POOL, GPU, 2) in await store.usage()


async def test_a_charge_settles_the_intent_and_counts_once(store: AnyStore) -> None:
    await store.write(7, [intend("a", 4), charge("a", 4)])
    assert await store.intents() == ()
    assert await store.usage() == (UsedAmount(TEAM, ALICE, POOL, GPU, 4),)


async def test_the_same_charge_counts_once(store: AnyStore) -> None:
    await store.write(7, [charge("a", 4)])
    await store.write(7, [charge("a", 4), charge("a", 4)])
    assert await store.usage() == (UsedAmount(TEAM, ALICE, POOL, GPU, 4),)


async def test_another_charge_replaces_the_first(store: AnyStore) -> None:
    await store.write(7, [charge("a", 4), charge("a", 1, BOB)])
    assert await store.usage() == (UsedAmount(TEAM, BOB, POOL, GPU, 1),)


async def test_a_refund_drops_charge_and_intent(store: AnyStore) -> None:
    await store.write(7, [charge("a", 4), intend("b", 4), charge("c", 1)])
    await store.write(7, [Refund(Uid("a")), Refund(Uid("b")), Refund(Uid("never seen"))])
    assert await store.intents() == ()
    assert await store.usage() == (UsedAmount(TEAM, ALICE, POOL, GPU, 1),)


async def test_large_amounts_are_exact(store: AnyStore) -> None:
    odd = 2**49 + 1
    await store.write(7, [charge(str(n), odd) for n in range(33)])
    assert await store.usage() == (UsedAmount(TEAM, ALICE, POOL, GPU, 33 * odd),)


async def test_rebuild_replaces_everything(world: World, store: AnyStore) -> None:
    await store.write(7, [enqueue("a", "1"), charge("b", 4), intend("c", 1)])
    contents: list[StoreWrite] = [enqueue("d", "1", BOB), charge("e", 2, BOB), intend("f", 3)]
    await store.rebuild(7, contents)
    assert await compare(store, contents) == []
    assert await store.intents() == (intend("f", 3),)
    assert await store.place(Uid("a")) is None


async def test_rebuild_takes_any_number_of_writes(world: World) -> None:
    contents: list[StoreWrite] = [
        enqueue(str(n), f"{n:05d}", UserName(f"user-{n % 7}")) for n in range(1234)
    ]
    contents.append(Enqueue(ref("last"), TEAM, ALICE, "x"))
    await world.store().rebuild(7, iter(contents))
    assert await compare(world.store(), contents) == []


async def test_rebuild_ends_as_its_writes_do(world: World) -> None:
    many = [enqueue(str(n), f"{n:05d}") for n in range(1300)]
    contents: list[StoreWrite] = [enqueue("0", "7", BOB), *many, intend("x", 1), charge("x", 2)]
    contents += [Dequeue(Uid("1")), enqueue("2", "0", BOB), Dequeue(Uid("3")), enqueue("3", "8")]
    store = world.store()
    await store.rebuild(7, contents)
    last: list[StoreWrite] = [*many[4:], many[0], enqueue("2", "0", BOB), enqueue("3", "8")]
    assert await compare(world.store(), [*last, charge("x", 2)]) == []
    await store.write(7, [Dequeue(Uid("2")), Dequeue(Uid("0"))])
    assert await store.queue(TEAM, BOB, 9) == ()
    assert await store.place(Uid("4")) == QueuePosition(TEAM, ALICE, 1, 1297)


async def test_an_old_leader_cannot_write(world: World, store: AnyStore) -> None:
    newer = world.store()
    await newer.rebuild(8, [])
    with pytest.raises(EpochStale, match="8"):
        await store.write(7, [charge("a", 4)])
    assert await newer.usage() == ()


async def test_an_old_leader_cannot_take_over(world: World, store: AnyStore) -> None:
    with pytest.raises(EpochStale):
        await world.store().rebuild(6, [charge("a", 4)])
    assert await store.floor() == 7
    assert await store.usage() == ()


async def test_a_leader_must_rebuild_before_it_writes(world: World, store: AnyStore) -> None:
    with pytest.raises(StoreEmptied):
        await world.store().write(8, [charge("a", 4)])
    with pytest.raises(StoreEmptied):
        await world.store().write(7, [charge("a", 4)])
    with pytest.raises(StoreEmptied):
        await store.write(8, [charge("a", 4)])
    assert await store.usage() == ()


async def test_a_store_that_lost_its_contents_says_so(world: World, store: AnyStore) -> None:
    await world.flush()
    with pytest.raises(StoreEmptied):
        await store.write(7, [])
    with pytest.raises(StoreEmptied):
        await store.usage()
    await store.rebuild(7, [charge("a", 4)])
    await store.write(7, [charge("b", 1)])
    assert await compare(store, [charge("a", 4), charge("b", 1)]) == []


async def test_clusters_do_not_see_each_other(store_url: str) -> None:
    async with real(store_url) as one, real(store_url) as other:
        await one.store().rebuild(7, [charge("a", 4)])
        await other.store().rebuild(3, [])
        assert await other.store().usage() == ()
        assert await one.store().floor() == 7


async def test_names_of_any_characters_come_back(world: World) -> None:
    for name in ("a:b", "100%", "{x}", "\ud800", "", "ns.é\0"):
        tenant, user = TenantName("t" + name), UserName(name)
        store = world.store()
        await store.rebuild(7, [Enqueue(ref("a"), tenant, user, "1")])
        assert await store.place(Uid("a")) == QueuePosition(tenant, user, 1, 1)
        assert await store.counts() == (PendingCount(tenant, user, 1),)
