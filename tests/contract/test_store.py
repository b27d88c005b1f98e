"""Contract of the leader's copy in Redis, for the fake and for a real Redis."""

from __future__ import annotations

from dataclasses import replace

import pytest

from app.core.effects import Charge, Dequeue, Enqueue, ListOrder, PodRef, Refund, StoreWrite
from app.core.errors import EpochStale, StoreEmptied
from app.core.fairshare.user_queue import QueueKey
from app.core.model import Millis, TenantName, Uid, UserName
from app.ports.store import PendingCount, UsedAmount
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

RANK = QueueKey(1, Millis(1), Uid("x")).rank


async def pods(store: AnyStore, user: UserName, limit: int = 500) -> list[PodRef]:
    """Return the first pods of the listed workloads of a user."""
    return [row.ref for row in await store.read_page(TEAM, (user,), None, limit)]


@pytest.fixture
async def store(world: World) -> AnyStore:
    """An empty store claimed by a leader of epoch 7."""
    store = world.store()
    await store.rebuild(7, [])
    return store


async def test_an_empty_store_has_no_floor_and_no_intents(world: World) -> None:
    assert await world.store().read_epoch_floor() == 0
    assert await world.store().read_open_intents() == ()


async def test_rebuild_raises_the_floor(world: World) -> None:
    await world.store().rebuild(7, [])
    assert await world.store().read_epoch_floor() == 7


async def test_reads_raise_store_emptied_before_the_first_rebuild(world: World) -> None:
    with pytest.raises(StoreEmptied):
        await world.store().read_page(TEAM, (ALICE,), None, 5)
    with pytest.raises(StoreEmptied):
        await world.store().read_used_amounts(TEAM)
    with pytest.raises(StoreEmptied):
        await world.store().read_pending_counts(TEAM)


async def test_claimed_epoch_refuses_older_leaders_and_keeps_their_intents(
    world: World, store: AnyStore
) -> None:
    await store.write(7, [intend("a", 4)])
    new = world.store()
    await new.claim_epoch(8)
    with pytest.raises(EpochStale):
        await store.write(7, [intend("b", 4)])
    assert await new.read_epoch_floor() == 8
    assert await new.read_open_intents() == (intend("a", 4),)
    with pytest.raises(EpochStale):
        await world.store().claim_epoch(7)
    await new.rebuild(8, [])
    await new.write(8, [intend("c", 1)])


async def test_a_queue_is_in_the_order_of_ranks(store: AnyStore) -> None:
    await store.write(7, [enqueue("c", "2"), enqueue("a", "3"), enqueue("b", "1")])
    assert await pods(store, ALICE) == [ref("b"), ref("c"), ref("a")]
    assert await pods(store, ALICE, 1) == [ref("b")]
    assert await pods(store, ALICE, 0) == []


async def test_position_counts_queued_workloads_from_one(store: AnyStore) -> None:
    unqueued = replace(enqueue("c", "0", BOB), order=ListOrder.UNQUEUED)
    await store.write(7, [enqueue("a", "1", BOB), enqueue("b", "2", BOB), unqueued])
    rows = await store.read_page(TEAM, (BOB,), None, 9)
    found = [(row.ref.uid, row.position, row.length, row.mark.is_queued) for row in rows]
    assert found == [("a", 1, 2, True), ("b", 2, 2, True), ("c", 0, 0, False)]


async def test_gang_is_listed_as_its_first_pod(store: AnyStore) -> None:
    first = replace(enqueue("a", "1"), gang="ring", pods=3)
    others = [replace(enqueue(uid, "0"), order=ListOrder.MEMBER, gang="ring") for uid in "bc"]
    await store.write(7, [first, *others, enqueue("d", "2")])
    rows = await store.read_page(TEAM, (ALICE,), None, 9)
    found = [(row.ref.uid, row.gang, row.pods, row.position, row.length) for row in rows]
    assert found == [("a", "ring", 3, 1, 2), ("d", "", 1, 2, 2)]
    assert await store.read_pending_counts(TEAM) == (PendingCount(TEAM, ALICE, 4),)


async def test_pages_continue_behind_a_pod_that_is_gone(store: AnyStore) -> None:
    waiting = [enqueue(f"p{n}", str(n)) for n in range(9)]
    unqueued = [replace(enqueue(f"u{n}", str(n)), order=ListOrder.UNQUEUED) for n in range(3)]
    await store.write(7, [*waiting, *unqueued, enqueue("z", "1", BOB)])
    users, seen = (ALICE, BOB), list[str]()
    rows = await store.read_page(TEAM, users, None, 4)
    while rows:
        seen += [row.ref.uid for row in rows]
        await store.write(7, [Dequeue(rows[-1].ref.uid)])
        users = users[users.index(rows[-1].mark.user) :]
        rows = await store.read_page(TEAM, users, rows[-1].mark, 4)
    assert seen == [*(f"p{n}" for n in range(9)), "u0", "u1", "u2", "z"]


async def test_unqueued_pod_is_listed_after_the_queue(store: AnyStore) -> None:
    await store.write(7, [enqueue("a", "1"), enqueue("b", "2")])
    await store.write(7, [replace(enqueue("a", "1"), order=ListOrder.UNQUEUED)])
    assert await pods(store, ALICE) == [ref("b"), ref("a")]


async def test_a_tenant_is_read_without_the_others(store: AnyStore) -> None:
    other = TenantName("team-a.b")
    await store.write(7, [enqueue("a", "1"), Enqueue(ref("b"), other, ALICE, RANK)])
    await store.write(7, [charge("c", 4), Charge(Uid("d"), other, BOB, POOL, {GPU: 2})])
    assert await store.read_pending_counts(TEAM) == (PendingCount(TEAM, ALICE, 1),)
    assert await store.read_pending_counts(other) == (PendingCount(other, ALICE, 1),)
    assert await store.read_used_amounts(TEAM) == (UsedAmount(TEAM, ALICE, POOL, GPU, 4),)
    assert await store.read_used_amounts(other) == (UsedAmount(other, BOB, POOL, GPU, 2),)
    assert (
        len(await store.read_pending_counts(None)) == len(await store.read_used_amounts(None)) == 2
    )


async def test_dequeued_pod_is_not_listed(store: AnyStore) -> None:
    await store.write(7, [enqueue("a", "1"), Dequeue(Uid("a")), Dequeue(Uid("never seen"))])
    assert await pods(store, ALICE) == []
    assert await store.read_pending_counts(TEAM) == ()


async def test_pod_is_in_one_queue_only(store: AnyStore) -> None:
    await store.write(7, [enqueue("a", "1"), enqueue("a", "2", BOB), enqueue("a", "2", BOB)])
    assert await store.read_pending_counts(None) == (PendingCount(TEAM, BOB, 1),)
    assert await pods(store, ALICE) == []


async def test_an_open_intent_counts_as_used(store: AnyStore) -> None:
    await store.write(7, [intend("a", 4)])
    assert await store.read_used_amounts(None) == (
        UsedAmount(TEAM, ALICE, POOL, CPU, 500),
        UsedAmount(TEAM, ALICE, POOL, GPU, 4),
    )


async def test_intents_are_read_back_unchanged(world: World, store: AnyStore) -> None:
    await store.write(7, [intend("b", 1), intend("a", 4, sequence=2)])
    assert await world.store().read_open_intents() == (intend("a", 4, sequence=2), intend("b", 1))


async def test_amounts_of_zero_are_left_out(store: AnyStore) -> None:
    await store.write(7, [intend("a", 0)])
    assert await store.read_used_amounts(None) == (UsedAmount(TEAM, ALICE, POOL, CPU, 500),)
    assert [dict(intent.demand) for intent in await store.read_open_intents()] == [{CPU: 500}]


async def test_an_intent_replaces_an_earlier_one(store: AnyStore) -> None:
    await store.write(7, [intend("a", 4), intend("a", 2, sequence=2)])
    assert await store.read_open_intents() == (intend("a", 2, sequence=2),)
    assert UsedAmount(TEAM, ALICE, POOL, GPU, 2) in await store.read_used_amounts(None)


async def test_a_charge_settles_the_intent_and_counts_once(store: AnyStore) -> None:
    await store.write(7, [intend("a", 4), charge("a", 4)])
    assert await store.read_open_intents() == ()
    assert await store.read_used_amounts(None) == (UsedAmount(TEAM, ALICE, POOL, GPU, 4),)


async def test_the_same_charge_counts_once(store: AnyStore) -> None:
    await store.write(7, [charge("a", 4)])
    await store.write(7, [charge("a", 4), charge("a", 4)])
    assert await store.read_used_amounts(None) == (UsedAmount(TEAM, ALICE, POOL, GPU, 4),)


async def test_another_charge_replaces_the_first(store: AnyStore) -> None:
    await store.write(7, [charge("a", 4), charge("a", 1, BOB)])
    assert await store.read_used_amounts(None) == (UsedAmount(TEAM, BOB, POOL, GPU, 1),)


async def test_a_refund_drops_charge_and_intent(store: AnyStore) -> None:
    await store.write(7, [charge("a", 4), intend("b", 4), charge("c", 1)])
    await store.write(7, [Refund(Uid("a")), Refund(Uid("b")), Refund(Uid("never seen"))])
    assert await store.read_open_intents() == ()
    assert await store.read_used_amounts(None) == (UsedAmount(TEAM, ALICE, POOL, GPU, 1),)


async def test_large_amounts_are_exact(store: AnyStore) -> None:
    odd = 2**49 + 1
    await store.write(7, [charge(str(n), odd) for n in range(33)])
    assert await store.read_used_amounts(None) == (UsedAmount(TEAM, ALICE, POOL, GPU, 33 * odd),)


async def test_rebuild_replaces_everything(world: World, store: AnyStore) -> None:
    await store.write(7, [enqueue("a", "1"), charge("b", 4), intend("c", 1)])
    contents: list[StoreWrite] = [enqueue("d", "1", BOB), charge("e", 2, BOB), intend("f", 3)]
    await store.rebuild(7, contents)
    assert await compare(store, contents) == []
    assert await store.read_open_intents() == (intend("f", 3),)
    assert await pods(store, ALICE) == []


async def test_rebuild_takes_any_number_of_writes(world: World) -> None:
    contents: list[StoreWrite] = [
        enqueue(str(n), f"{n:05d}", UserName(f"user-{n % 7}")) for n in range(1234)
    ]
    contents.append(Enqueue(ref("last"), TEAM, ALICE, RANK))
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
    assert await pods(store, BOB) == []
    [first] = await store.read_page(TEAM, (ALICE,), None, 1)
    assert (first.ref.uid, first.position, first.length) == ("4", 1, 1297)


async def test_an_old_leader_cannot_write(world: World, store: AnyStore) -> None:
    newer = world.store()
    await newer.rebuild(8, [])
    with pytest.raises(EpochStale, match="8"):
        await store.write(7, [charge("a", 4)])
    assert await newer.read_used_amounts(None) == ()


async def test_an_old_leader_cannot_take_over(world: World, store: AnyStore) -> None:
    with pytest.raises(EpochStale):
        await world.store().rebuild(6, [charge("a", 4)])
    assert await store.read_epoch_floor() == 7
    assert await store.read_used_amounts(None) == ()


async def test_a_leader_must_rebuild_before_it_writes(world: World, store: AnyStore) -> None:
    with pytest.raises(StoreEmptied):
        await world.store().write(8, [charge("a", 4)])
    with pytest.raises(StoreEmptied):
        await world.store().write(7, [charge("a", 4)])
    with pytest.raises(StoreEmptied):
        await store.write(8, [charge("a", 4)])
    assert await store.read_used_amounts(None) == ()


async def test_reads_and_writes_raise_store_emptied_after_a_flush(
    world: World, store: AnyStore
) -> None:
    await world.flush()
    with pytest.raises(StoreEmptied):
        await store.write(7, [])
    with pytest.raises(StoreEmptied):
        await store.read_used_amounts(None)
    await store.rebuild(7, [charge("a", 4)])
    await store.write(7, [charge("b", 1)])
    assert await compare(store, [charge("a", 4), charge("b", 1)]) == []


async def test_clusters_do_not_see_each_other(store_url: str) -> None:
    async with real(store_url) as one, real(store_url) as other:
        await one.store().rebuild(7, [charge("a", 4)])
        await other.store().rebuild(3, [])
        assert await other.store().read_used_amounts(None) == ()
        assert await one.store().read_epoch_floor() == 7


async def test_names_with_any_characters_are_stored(world: World) -> None:
    for name in ("a:b", "100%", "{x}", "\ud800", "", "ns.é\0"):
        tenant, user = TenantName("t" + name), UserName(name)
        store = world.store()
        await store.rebuild(7, [Enqueue(ref("a"), tenant, user, RANK)])
        assert [row.ref for row in await store.read_page(tenant, (user,), None, 9)] == [ref("a")]
        assert await store.read_pending_counts(None) == (PendingCount(tenant, user, 1),)
