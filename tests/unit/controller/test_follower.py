"""The follower of an API replica: ignored replaced observations, and the age of its data."""

from __future__ import annotations

from dataclasses import replace

from app.controller.event_queue import EventQueue
from app.controller.follower import Follower, newest_pods
from app.core import events as ev
from app.core.engine import Engine
from app.core.engine_options import EngineOptions
from app.core.events import NewsEvent
from app.core.model import Millis, NodeName
from app.core.quantities import ManagedResources
from app.ports.liveness import Liveness, Steps
from app.sim.cluster.virtual_cluster import held_pod

AT = Millis(0)


def test_the_newest_observation_of_each_pod_remains_at_its_place() -> None:
    first, second = held_pod("p", "team"), held_pod("q", "team")
    bound = replace(first, gates=(), node=NodeName("n"))
    node = ev.NodeGone(AT, NodeName("n"))
    events: list[NewsEvent] = [
        ev.PodObserved(AT, first),
        ev.PodObserved(AT, second),
        node,
        ev.PodObserved(AT, bound),
    ]
    assert newest_pods(events) == [events[1], node, events[3]]


def test_a_pod_that_is_gone_is_not_observed_before() -> None:
    pod = held_pod("p", "team")
    gone = ev.PodGone(AT, pod.uid)
    assert newest_pods([ev.PodObserved(AT, pod), gone]) == [gone]


def test_data_age_follows_a_stale_watch_even_if_passes_continue() -> None:
    now, lag = AT, 0.0
    engine = Engine(ManagedResources([]), EngineOptions(evicts=False))
    steps = Steps(Liveness(), lambda _: None)
    follower = Follower(engine, EventQueue(), steps, lambda: now, lambda: lag)
    now = Millis(400)
    assert follower.age_milliseconds() == 400
    lag = 61.5
    assert follower.age_milliseconds() == 61_500
