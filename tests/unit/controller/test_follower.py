"""The follower of an API replica gathers events, and ignores replaced observations."""

from __future__ import annotations

from dataclasses import replace

from app.controller.follower import newest_pods
from app.core import events as ev
from app.core.events import NewsEvent
from app.core.model import Millis, NodeName
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
