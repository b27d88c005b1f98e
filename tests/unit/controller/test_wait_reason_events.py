"""A pod gets an event when the reason of its wait changes, with limits per pod and in total."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

import pytest

from app.controller.wait_reason_events import (
    MAX_CHECKED_PODS,
    MAX_EVENTS,
    PAUSE_MS,
    REPEAT_MS,
    WaitReasonEvents,
)
from app.core import events as ev
from app.core.effects import EmitEvent, EventReason
from app.core.engine import Engine
from app.core.engine_options import EngineOptions
from app.core.model import Millis, Node, NodeName, Pod, Resource, Tenant, TenantName, Uid
from app.core.quantities import PODS, ManagedResources
from app.sim.cluster.virtual_cluster import held_pod

GPU = Resource("nvidia.com/gpu")


class Board:
    """Records its events."""

    def __init__(self) -> None:
        self.told: list[EmitEvent] = []

    def emit(self, notice: EmitEvent) -> None:
        self.told.append(notice)


class Room:
    """A full cluster, its waiting pods, and the reporter of wait reasons."""

    def __init__(self, *pods: Pod) -> None:
        self.now = Millis(0)
        self.engine = Engine(ManagedResources([GPU]), EngineOptions(evicts=False))
        self.board = Board()
        self.narrator = WaitReasonEvents(self.engine, self.board, lambda: True, lambda: self.now)
        wall = replace(
            held_pod("wall", "w", 8), gates=(), release_annotation="1.1", node=NodeName("n")
        )
        node = Node(NodeName("n"), {}, {GPU: 8, PODS: 9999}, True)
        self.hear(ev.NodeObserved(self.now, node))
        for pod in (wall, *pods):
            self.hear(ev.PodObserved(self.now, pod))
        for source in ev.WatchedSource:
            self.engine.handle(ev.SourceFresh(self.now, source))
        self.look()

    def hear(self, event: ev.ClusterEvent) -> None:
        self.engine.handle(event)

    def look(self, rounds: int = 1) -> None:
        self.engine.handle(ev.Pass(self.now))
        for _ in range(rounds):
            self.narrator.check_next()

    def later(self) -> None:
        self.now = Millis(self.now + PAUSE_MS)


def weigh(name: str, weight: int) -> ev.TenantObserved:
    tenant = Tenant(TenantName(name), Millis(0), Fraction(weight), namespaces=(name,))
    return ev.TenantObserved(Millis(0), tenant)


def test_pods_get_an_event_if_their_order_changes() -> None:
    room = Room(held_pod("mine", "a", 4), held_pod("theirs", "b", 4, since=5))
    room.later()
    room.look()
    assert room.board.told == []
    room.hear(weigh("b", 9))
    room.hear(weigh("a", 1))
    room.look()
    told = {each.ref.name: each for each in room.board.told}
    assert told.keys() == {"mine", "theirs"}
    assert told["mine"].reason is EventReason.WAITING
    reasons = {name: room.engine.queries.wait_reason(each.ref.uid) for name, each in told.items()}
    assert (reasons["mine"] or "").endswith("; tenant b comes first")
    assert "comes first" not in (reasons["theirs"] or "")


def test_an_event_is_repeated_before_the_api_server_deletes_it() -> None:
    room = Room(held_pod("mine", "a", 4))
    room.now = Millis(REPEAT_MS - 1)
    room.look(2)
    assert room.board.told == []
    room.now = Millis(REPEAT_MS)
    room.look(3)
    assert [each.ref.name for each in room.board.told] == ["mine"]


def test_another_leader_repeats_it_at_the_same_age() -> None:
    room = Room(held_pod("mine", "a", 4))
    room.now = Millis(REPEAT_MS // 2)
    room.narrator = WaitReasonEvents(room.engine, room.board, lambda: True, lambda: room.now)
    room.look(2)
    room.now = Millis(REPEAT_MS)
    room.look(2)
    assert len(room.board.told) == 1


def test_pod_gets_no_second_event_at_once() -> None:
    room = Room(held_pod("mine", "a", 4), held_pod("theirs", "b", 4, since=5))
    room.hear(weigh("b", 9))
    room.hear(weigh("a", 1))
    room.look()
    assert room.board.told == []
    room.later()
    room.look()
    assert len(room.board.told) == 2
    room.hear(weigh("a", 99))
    room.look(3)
    assert len(room.board.told) == 2


def test_a_pod_is_not_explained_again_within_the_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    room, explained = Room(held_pod("mine", "a", 4)), list[Uid]()
    monkeypatch.setattr(room.engine.queries, "held_view", explained.append)
    room.look(3)
    assert explained == []
    room.later()
    room.look()
    assert len(explained) == 1


def test_each_round_emits_few_events_and_no_pod_is_left_out() -> None:
    many = MAX_CHECKED_PODS + 50
    room = Room(*(held_pod(f"p{n}", f"n{n}", 9 if n % 2 else 8) for n in range(many)))
    room.look()
    room.later()
    room.hear(ev.NodeObserved(room.now, Node(NodeName("n"), {}, {GPU: 1, PODS: 9999}, True)))
    counts = []
    for _ in range(many):
        before = len(room.board.told)
        room.look()
        counts.append(len(room.board.told) - before)
    assert max(counts) == MAX_EVENTS
    waits = {p.name for p in room.engine.held_pods()}
    names = [each.ref.name for each in room.board.told]
    assert len(names) == len(set(names))
    assert {name for name in waits if int(name[1:]) % 2 == 0} <= set(names)
