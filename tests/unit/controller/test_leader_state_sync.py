"""Leader-only state reaches the other replicas, which then give the same answers as the leader."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

from app.controller.event_queue import EventQueue
from app.controller.follower import Follower
from app.controller.leader_state_sync import REPEAT_MS, LeaderStatePublisher, LeaderStateReader
from app.core import events as ev
from app.core.engine import Engine
from app.core.engine_options import EngineOptions
from app.core.explain.reasons import Rule
from app.core.explain.views import LeaderStateMessage
from app.core.model import Millis, Node, NodeName, Pod, ReleaseOutcome, Resource, Uid
from app.core.quantities import PODS, ManagedResources
from app.ports.liveness import Liveness, Steps
from app.sim.cluster.virtual_cluster import held_pod
from tests.fakes.fake_leader_state_store import FakeLeaderState
from tests.support.gang_driver import Lead, member, round_of

GPU = Resource("nvidia.com/gpu")


def engine(*pods: Pod, leads: bool) -> Engine:
    """Return an engine with one node of 4 devices and these pods."""
    made = Engine(ManagedResources([GPU]), EngineOptions(evicts=False))
    made.handle(ev.NodeObserved(Millis(0), Node(NodeName("n"), {}, {GPU: 4, PODS: 100}, True)))
    for pod in pods:
        made.handle(ev.PodObserved(Millis(0), pod))
    for source in ev.WatchedSource:
        made.handle(ev.SourceFresh(Millis(0), source))
    if leads:
        made.handle(ev.LeadershipGained(Millis(0), 7))
        made.handle(ev.StoreReady(Millis(0)))
    made.handle(ev.Pass(Millis(0)))
    return made


def rule(of: Engine, uid: str) -> Rule:
    found = of.queries.explain_wait(Uid(uid))
    assert found is not None
    return found.rule


@asynccontextmanager
async def running(*parts: Callable[[], Coroutine[Any, Any, None]]) -> AsyncIterator[None]:
    tasks = [asyncio.create_task(part()) for part in parts]
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def until(true: Callable[[], bool]) -> None:
    while not true():
        await asyncio.sleep(0)


class Line:
    """A leader that publishes its state through Redis, and a replica that reads it."""

    def __init__(self, leader: Engine) -> None:
        self.store = FakeLeaderState()
        self.heard: list[LeaderStateMessage] = []
        self.now = Millis(1000)
        self.epoch: int | None = 7
        self.looked = 0
        self.posting = LeaderStatePublisher(
            leader, self.store, self._epoch, lambda: self.now, seconds=0
        )
        self.hearing = LeaderStateReader(self.store, self.heard.append, seconds=0)

    def _epoch(self) -> int | None:
        self.looked += 1
        return self.epoch

    async def rounds(self, count: int = 3) -> None:
        """Wait until the leader has published `count` more times."""
        before = self.looked
        await until(lambda: self.looked >= before + count)


async def test_unchanged_state_is_published_again_only_after_an_interval() -> None:
    line = Line(engine(leads=True))
    async with running(line.posting.publish_state):
        await line.rounds()
        assert line.store.posted == 1
        line.now = Millis(line.now + REPEAT_MS - 1)
        await line.rounds()
        assert line.store.posted == 1
        line.now = Millis(line.now + 1)
        await line.rounds()
        assert line.store.posted == 2


async def test_replica_that_does_not_lead_publishes_no_state() -> None:
    line = Line(engine(leads=False))
    line.epoch = None
    async with running(line.posting.publish_state):
        await line.rounds()
    assert line.store.posted == 0


async def test_state_is_published_once_the_store_is_available_again() -> None:
    line = Line(engine(leads=True))
    line.store.memory.down = True
    async with running(line.posting.publish_state):
        await line.rounds()
        assert line.store.posted == 0
        line.store.memory.down = False
        await until(lambda: line.store.posted == 1)


async def test_last_published_state_stays_while_the_store_is_unavailable() -> None:
    line = Line(engine(leads=True))
    async with running(line.posting.publish_state, line.hearing.read_state):
        await until(lambda: bool(line.heard))
        line.store.memory.down = True
        line.heard.clear()
        await line.rounds()
        assert line.heard == []
        line.store.memory.down = False
        await until(lambda: bool(line.heard))


async def test_a_read_without_a_state_is_a_read() -> None:
    line = Line(engine(leads=False))
    line.store.memory.down = True
    async with running(line.hearing.read_state):
        await until(lambda: not line.hearing.is_reachable)
        assert not line.hearing.has_read
        line.store.memory.down = False
        await until(lambda: line.hearing.has_read)
    assert line.heard == []


async def test_replica_explains_reservations_like_the_leader() -> None:
    wall = [
        replace(
            held_pod(f"w{n}", "bbcc"[n]),
            gates=(),
            release_annotation=f"1.{n + 1}",
            node=NodeName("n"),
        )
        for n in range(4)
    ]
    gang = [held_pod(f"g{n}", "a", 1, since=1) for n in range(3)]
    gang = [replace(each, gang="g", gang_size=3) for each in gang]
    small = held_pod("small", "c", since=5)
    leader = engine(*wall, *gang, small, leads=True)
    replica = engine(*wall, *gang, small, leads=False)
    late = Millis(400_000)  # a head that waited this long has a reservation
    for each in (leader, replica):
        each.handle(ev.Pass(late))
        each.handle(ev.PodGone(late, wall[0].uid))
        each.handle(ev.Pass(late))
    leader_message = leader.queries.leader_message(late, 7, 0.0)
    assert [each.tenant for each in leader_message.reservations] == ["ns.a"]
    assert rule(leader, small.uid) is Rule.RESERVATION
    assert rule(replica, small.uid) is not Rule.RESERVATION
    replica.apply_leader_state(leader_message)
    replica.handle(ev.Pass(late))
    for pod in (*gang, small):
        assert replica.queries.explain_wait(pod.uid) == leader.queries.explain_wait(pod.uid)
    replica.apply_leader_state(replace(leader_message, reservations=()))
    assert rule(replica, small.uid) is not Rule.RESERVATION


async def test_replica_explains_deferred_gangs_like_the_leader() -> None:
    lead = Lead()
    round_of(lead, 0)
    pods = [member(n, restart_gang=True) for n in (20, 21, 22, 23)]
    lead.see(*pods)
    replica = engine(*pods, leads=False)
    replica.handle(ev.Pass(lead.at))
    leader_message = lead.engine.queries.leader_message(lead.at, 7, 0.0)
    replica.apply_leader_state(leader_message)
    why = replica.queries.explain_wait(pods[0].uid)
    assert why == lead.engine.queries.explain_wait(pods[0].uid)
    assert why is not None
    assert why.rule is Rule.GANG_DEFERRED
    replica.apply_leader_state(replace(leader_message, deferred_gangs={}))
    assert rule(replica, pods[0].uid) is not Rule.GANG_DEFERRED


async def test_a_replica_answers_as_its_leader_about_releases_that_were_refused() -> None:
    pods = [held_pod("p", "a"), held_pod("q", "a", since=5)]
    leader, replica = engine(*pods, leads=True), engine(*pods, leads=False)
    at = Millis(10)
    leader.handle(ev.ReleaseAnswered(at, pods[0].uid, ReleaseOutcome.HELD))
    leader.handle(ev.Pass(at))
    leader_message = leader.queries.leader_message(at, 7, 0.0)
    steps = Steps(Liveness(), lambda _: None)
    mirror = Follower(replica, EventQueue(), steps, lambda: at, lambda: 0.0)
    mirror.receive_leader_state(leader_message)
    async with running(mirror.follow_events):
        await until(lambda: rule(replica, pods[0].uid) is Rule.REFUSED)
    assert replica.queries.explain_wait(pods[0].uid) == leader.queries.explain_wait(pods[0].uid)
    replica.apply_leader_state(replace(leader_message, refusal_counts={}))
    replica.handle(ev.Pass(at))
    assert rule(replica, pods[0].uid) is not Rule.REFUSED
