"""The copy in the store and the engine list the same workloads, for the fake and a real Redis."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from app.core import events as ev
from app.core.effects import Charge, Dequeue, Enqueue, Intend, Refund, Release, StoreWrite
from app.core.engine import Engine
from app.core.engine_options import EngineOptions
from app.core.explain.queue_listing import QueueRow
from app.core.fairshare.usage_record import UsageEnded, UsageStarted
from app.core.model import Pod, ReleaseOutcome, TenantName, Uid, UserName
from app.core.quantities import ManagedResources
from app.ports.store import QueueReader
from app.sim.cluster.virtual_cluster import held_pod
from app.web.api.queue_sources import EngineQueues
from tests.support.rest_app import GPU, NOW, node, pool, tenant
from tests.support.shared_stores import World
from tests.support.store_cases import world as world  # the fixture

TEAM = TenantName("team-a")
ALICE = UserName("alice")
WRITES = (Enqueue, Dequeue, Intend, Charge, Refund, UsageStarted, UsageEnded)


class Leader:
    """A leading engine whose effects are written to a store at once."""

    def __init__(self, world: World) -> None:
        self.engine = Engine(
            ManagedResources([GPU]),
            EngineOptions(emits_audit_records=False, follows_binding_rate=False),
        )
        self.store = world.store()

    async def lead(self, *events: ev.Event) -> None:
        fresh = [ev.SourceFresh(NOW, source) for source in ev.WatchedSource]
        await self.store.rebuild(1, [])
        await self.hear(*events, *fresh, ev.LeadershipGained(NOW, 1), ev.StoreReady(NOW))

    async def hear(self, *events: ev.Event) -> None:
        """Handle the events and a pass, and answer each release with success."""
        todo = [*events, ev.Pass(NOW)]
        while todo:
            effects = [effect for event in todo for effect in self.engine.handle(event)]
            writes: list[StoreWrite] = [each for each in effects if isinstance(each, WRITES)]
            await self.store.write(1, writes)
            orders = [each.intent for each in effects if isinstance(each, Release)]
            await self.store.write(1, orders)
            answers = [
                ev.ReleaseAnswered(NOW, each.ref.uid, ReleaseOutcome.RELEASED) for each in orders
            ]
            todo = [*answers, ev.Pass(NOW)] if answers else []

    async def compare(self) -> list[tuple[str, int, int]]:
        """Check each row against the engine; return uid, position and pods of each."""
        people = self.engine.queries.user_views(TEAM)
        pending = {each.user: each.pods for each in await self.store.read_pending_counts(TEAM)}
        assert pending == {each.name: each.pending for each in people if each.pending}
        used: dict[UserName, dict[Any, dict[Any, int]]] = {}
        for each in await self.store.read_used_amounts(TEAM):
            if each.resource == GPU:
                used.setdefault(each.user, {}).setdefault(each.pool, {})[GPU] = each.amount
        assert used == {each.name: each.used for each in people if each.used}
        rows = await self.store.read_page(TEAM, sorted(pending), None, 500)
        await self._compare_sources(rows)
        listed = 0
        for row in rows:
            view = self.engine.queries.held_view(row.ref.uid)
            assert view is not None
            assert view.ref == row.ref
            assert (view.position, view.length) == (row.position, row.length)
            assert (view.gang, view.pods) == (row.gang, row.pods)
            assert (view.priority, view.since) == (
                row.mark.queue_key.priority,
                row.mark.queue_key.since,
            )
            listed += row.pods
        assert listed == sum(pending.values())
        return [(row.ref.uid, row.position, row.pods) for row in rows]

    async def _compare_sources(self, rows: Sequence[QueueRow]) -> None:
        """Check that the engine as a source, whole and in pages, has the rows of the store."""
        own = EngineQueues(self.engine.queries)
        assert await own.read_pending_counts(TEAM) == await self.store.read_pending_counts(TEAM)
        of_gpus = [
            each for each in await self.store.read_used_amounts(TEAM) if each.resource == GPU
        ]
        assert list(await own.read_used_amounts(TEAM)) == of_gpus
        assert set(of_gpus) <= set(await own.read_used_amounts(None))
        users = sorted({row.mark.user for row in rows})
        sources: tuple[QueueReader, ...] = (own, self.store)
        for source in sources:
            paged, after = list[QueueRow](), None
            while users:
                rest = users[users.index(after.user) :] if after else users
                page = await source.read_page(TEAM, rest, after, 2)
                paged += page
                if len(page) < 2:
                    break
                after = page[-1].mark
            assert paged == list(rows)


def pod(name: str, devices: int = 1, age: int = 0, **more: Any) -> Pod:
    made = held_pod(name, TEAM, devices, user=more.pop("user", "alice"), since=NOW - age)
    return replace(made, uid=Uid(name), **more)


def seen(*pods: Pod) -> list[ev.PodObserved]:
    return [ev.PodObserved(NOW, each) for each in pods]


async def leader(world: World, *pods: Pod) -> Leader:
    leader = Leader(world)
    await leader.lead(pool("h100"), node("n0", 2), tenant(TEAM), *seen(*pods))
    return leader


async def test_queued_unqueued_and_released_pods(world: World) -> None:
    gates = ("fairgate.io/queue", "example.com/other")
    pods = [pod("a", 2, 9), pod("b", 2, 8), pod("c", 2, 7, priority=5), pod("d", 2, 6, user="bob")]
    one = await leader(world, *pods, pod("e", 2, 99, gates=gates))
    assert await one.compare() == [("a", 1, 1), ("b", 2, 1), ("e", 0, 1), ("d", 1, 1)]
    await one.hear(*seen(pod("e", 2, 99)))
    assert await one.compare() == [("e", 1, 1), ("a", 2, 1), ("b", 3, 1), ("d", 1, 1)]
    await one.hear(ev.PodGone(NOW, Uid("c")))
    assert [uid for uid, *_ in await one.compare()] == ["e", "a", "b"]


async def test_a_gang_while_it_grows_waits_and_shrinks(world: World) -> None:
    ring = [pod(f"r{n}", 2, 50 - n, gang="ring", gang_size=3) for n in range(3)]
    one = await leader(world, pod("wall", 2, 99), pod("a", 1, 40), *ring[1:2])
    assert await one.compare() == [("a", 1, 1), ("r1", 0, 1)]
    await one.hear(*seen(ring[0]))
    assert await one.compare() == [("a", 1, 1), ("r0", 0, 2)]
    await one.hear(*seen(ring[2]))
    assert await one.compare() == [("r0", 1, 3), ("a", 2, 1)]
    await one.hear(ev.PodGone(NOW, Uid("r0")))
    assert await one.compare() == [("a", 1, 1), ("r1", 0, 2)]


async def test_page_continues_after_a_workload_that_left_the_queue(world: World) -> None:
    gates = ("fairgate.io/queue", "example.com/other")
    queued = [pod(name, 2, age) for name, age in (("wall", 99), ("a", 9), ("b", 8), ("c", 7))]
    other = [pod(name, 2, age, gates=gates) for name, age in (("d", 6), ("e", 5), ("f", 4))]
    one = await leader(world, *queued, *other)
    marks = {row.ref.uid: row.mark for row in await one.store.read_page(TEAM, (ALICE,), None, 9)}
    await one.hear(ev.PodGone(NOW, Uid("b")), ev.PodGone(NOW, Uid("e")))
    sources: tuple[QueueReader, ...] = (EngineQueues(one.engine.queries), one.store)
    for source in sources:
        for gone, rest in (("b", [("c", 2, 2), ("d", 0, 0), ("f", 0, 0)]), ("e", [("f", 0, 0)])):
            rows = await source.read_page(TEAM, (ALICE,), marks[gone], 9)
            assert [(row.ref.uid, row.position, row.length) for row in rows] == rest


async def test_a_paused_tenant(world: World) -> None:
    one = await leader(world, pod("wall", 2, 99), pod("a", 2, 9), pod("b", 2, 8))
    await one.hear(tenant(TEAM, paused=True))
    assert await one.compare() == [("a", 0, 1), ("b", 0, 1)]
    await one.hear(tenant(TEAM))
    assert await one.compare() == [("a", 1, 1), ("b", 2, 1)]


async def test_a_rebuild_writes_the_same_list(world: World) -> None:
    ring = [pod(f"r{n}", 1, 50 - n, gang="ring", gang_size=3) for n in range(2)]
    one = await leader(world, pod("wall", 2, 99), pod("a", 2, 9), *ring)
    before = await one.compare()
    one.store = world.store()
    await one.store.rebuild(2, one.engine.store_writes())
    assert await one.compare() == before


async def test_an_elastic_gang_before_and_after_its_minimum_is_released(world: World) -> None:
    more = {"gang": "ring", "gang_size": 4, "gang_min_count": 2}
    ring = [pod(f"r{n}", 1, 50 - n, **more) for n in range(4)]
    one = await leader(world, pod("wall", 1, 99), *ring)
    assert await one.compare() == [("r0", 1, 2), ("r2", 0, 2)]
    await one.hear(ev.PodGone(NOW, Uid("wall")))
    assert await one.compare() == [("r2", 1, 1), ("r3", 2, 1)]
    gates = ("fairgate.io/queue", "example.com/other")
    await one.hear(*seen(replace(ring[2], gates=gates)))
    assert await one.compare() == [("r3", 1, 1), ("r2", 0, 1)]
