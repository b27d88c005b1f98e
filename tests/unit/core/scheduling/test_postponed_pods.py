"""Pods that are too expensive to evaluate are detected, and other pods go first."""

from __future__ import annotations

from dataclasses import replace

import pytest

from app.controller.pod_costs import LARGE_SECONDS, MOST_STEPS, NOTABLE_SECONDS, PodCosts
from app.core import events as ev
from app.core.effects import EmitEvent, EventReason, Release
from app.core.engine import Engine
from app.core.engine_options import EngineOptions
from app.core.explain.reasons import Rule
from app.core.model import Millis, Node, NodeName, Pod, Resource, Uid
from app.core.quantities import PODS, ManagedResources
from app.core.scheduling.release_backoff import FIRST_POSTPONEMENT
from app.sim.cluster.virtual_cluster import held_pod

GPU = Resource("nvidia.com/gpu")
NOW = Millis(0)
A, B = Uid("a"), Uid("b")


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def costs(clock: Clock) -> PodCosts:
    return PodCosts(clock)


def spend(costs: PodCosts, clock: Clock, uid: Uid | None, seconds: float) -> None:
    costs.start_pod(uid)
    clock.now += seconds
    costs.start_pod(None)


def test_one_costly_step_is_enough_to_report_a_pod(costs: PodCosts, clock: Clock) -> None:
    spend(costs, clock, A, LARGE_SECONDS)
    spend(costs, clock, B, NOTABLE_SECONDS / 2)
    assert costs.end_step() == [A]
    assert costs.end_step() == []


def test_time_within_one_step_is_summed(costs: PodCosts, clock: Clock) -> None:
    for _ in range(4):
        spend(costs, clock, A, LARGE_SECONDS / 4)
        spend(costs, clock, None, LARGE_SECONDS)
    assert costs.end_step() == [A]


def test_notable_cost_counts_in_several_steps(costs: PodCosts, clock: Clock) -> None:
    found = []
    for _ in range(MOST_STEPS):
        spend(costs, clock, A, NOTABLE_SECONDS)
        found.append(costs.end_step())
    assert found == [[]] * (MOST_STEPS - 1) + [[A]]


def test_steps_of_a_pod_that_is_gone_are_forgotten(costs: PodCosts, clock: Clock) -> None:
    for _ in range(MOST_STEPS - 1):
        spend(costs, clock, A, NOTABLE_SECONDS)
        costs.end_step()
    costs.forget_pod(A)
    spend(costs, clock, A, NOTABLE_SECONDS)
    assert costs.end_step() == []


def test_cheap_pods_are_never_postponed(costs: PodCosts, clock: Clock) -> None:
    for _ in range(1000):
        spend(costs, clock, A, NOTABLE_SECONDS / 10)
        assert costs.end_step() == []


def leader(considered: list[Uid | None], *pods: Pod) -> Engine:
    """Return a leader of one free device."""
    engine = Engine(ManagedResources([GPU]), EngineOptions(on_evaluate=considered.append))
    engine.handle(ev.LeadershipGained(NOW, 1))
    engine.handle(ev.StoreReady(NOW))
    for source in ev.WatchedSource:
        engine.handle(ev.SourceFresh(NOW, source))
    engine.handle(ev.NodeObserved(NOW, Node(NodeName("n"), {}, {GPU: 1, PODS: 100}, True)))
    for pod in pods:
        engine.handle(ev.PodObserved(NOW, pod))
    return engine


def released(engine: Engine, at: int) -> list[str]:
    effects = engine.handle(ev.Pass(Millis(at)))
    return [each.intent.ref.name for each in effects if isinstance(each, Release)]


FIRST, SECOND = held_pod("first", "n", user="x"), held_pod("second", "n", user="x", since=1)


def test_engine_reports_the_pods_that_it_considers() -> None:
    considered: list[Uid | None] = []
    released(leader(considered, FIRST, SECOND), 0)
    assert considered[0] is None
    assert considered[-1] is None
    assert {FIRST.uid, SECOND.uid} <= set(considered)


def test_postponed_pod_is_released_after_other_pods_and_a_delay() -> None:
    engine = leader([], FIRST, SECOND)
    engine.handle(ev.CostlyPod(NOW, FIRST.uid))
    assert released(engine, 0) == ["second"]
    why = engine.queries.explain_wait(FIRST.uid)
    assert why is not None
    assert why.rule is Rule.POSTPONED
    engine.handle(ev.PodGone(Millis(1), SECOND.uid))
    assert released(engine, FIRST_POSTPONEMENT - 1) == []
    assert released(engine, FIRST_POSTPONEMENT) == ["first"]


def test_postponed_pod_gets_an_event_with_the_reason() -> None:
    engine = leader([], replace(FIRST, demand={GPU: 9, PODS: 1}))
    engine.handle(ev.Pass(NOW))
    engine.handle(ev.CostlyPod(NOW, FIRST.uid))
    told = [each for each in engine.handle(ev.Pass(NOW)) if isinstance(each, EmitEvent)]
    assert [(each.ref.name, each.reason) for each in told] == [("first", EventReason.WAITING)]
    assert "took too long" in (engine.queries.wait_reason(FIRST.uid) or "")


def test_pod_is_postponed_twice_as_long_the_second_time() -> None:
    engine = leader([], FIRST)
    engine.handle(ev.CostlyPod(NOW, FIRST.uid))
    engine.handle(ev.NodeGone(NOW, NodeName("n")))
    again = Millis(FIRST_POSTPONEMENT)
    assert released(engine, again) == []
    engine.handle(ev.CostlyPod(again, FIRST.uid))
    engine.handle(ev.NodeObserved(again, Node(NodeName("n"), {}, {GPU: 1, PODS: 9}, True)))
    assert released(engine, 3 * FIRST_POSTPONEMENT - 1) == []
    assert released(engine, 3 * FIRST_POSTPONEMENT) == ["first"]


def test_replica_that_follows_gives_the_reason_of_its_leader() -> None:
    engine, replica = leader([], FIRST), leader([], FIRST)
    replica.handle(ev.LeadershipLost(NOW))
    engine.handle(ev.CostlyPod(NOW, FIRST.uid))
    engine.handle(ev.Pass(NOW))
    replica.apply_leader_state(engine.queries.leader_message(NOW, 1, 0.0))
    why = replica.queries.explain_wait(FIRST.uid)
    assert why is not None
    assert why.rule is Rule.POSTPONED


def test_released_pod_is_not_postponed() -> None:
    engine = leader([], FIRST)
    assert released(engine, 0) == ["first"]
    engine.handle(ev.CostlyPod(NOW, FIRST.uid))
    assert engine.handle(ev.Pass(NOW)) == ()
