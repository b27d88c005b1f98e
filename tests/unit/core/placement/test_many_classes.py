"""Thousands of different waiting pods do not delay other pods or count against other users."""

from __future__ import annotations

from dataclasses import replace

import pytest

from app.controller.pod_costs import LARGE_SECONDS, PodCosts
from app.core import events as ev
from app.core.effects import Release, WakeAt
from app.core.engine import Engine
from app.core.engine_options import EngineOptions
from app.core.model import Millis, Node, NodeName, Pod, PoolName, Resource, Uid
from app.core.placement.allocations import Allocations, ReservedCapacity
from app.core.placement.assignment import Assignment
from app.core.podspec.equivalence_class import EquivalenceClass
from app.core.quantities import CPU, PODS, ManagedResources
from app.core.scheduling import cycle
from app.sim.cluster.virtual_cluster import held_pod

GPU = Resource("nvidia.com/gpu")
NOW = Millis(1000)
MANY = 60
SMALL = 10


class Searches:
    """Counts the searches for capacity, and lets each search for a large workload take a second."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.count = 0
        self.seconds = 0.0
        self._find = Allocations._search_assignment

        def find(
            placement: Allocations,
            shape: EquivalenceClass,
            pool: PoolName,
            withheld: ReservedCapacity,
        ) -> Assignment | None:
            return self.find(placement, shape, pool, withheld)

        monkeypatch.setattr(Allocations, "_search_assignment", find)

    def find(
        self,
        placement: Allocations,
        shape: EquivalenceClass,
        pool: PoolName,
        withheld: ReservedCapacity,
    ) -> Assignment | None:
        self.count += 1
        self.seconds += shape.total[GPU] > 1
        return self._find(placement, shape, pool, withheld)


@pytest.fixture
def searches(monkeypatch: pytest.MonkeyPatch) -> Searches:
    return Searches(monkeypatch)


def large(number: int) -> Pod:
    """Return a pod that fits on no node and is unlike any other pod."""
    pod = held_pod(f"large{number}", "evil", user="evil", since=number)
    return replace(pod, demand={GPU: 9, PODS: 1, CPU: number})


def leader(costs: PodCosts) -> Engine:
    """Return a leader of 80 free devices with many different pods that never fit."""
    engine = Engine(ManagedResources([GPU]), EngineOptions(on_evaluate=costs.start_pod))
    engine.handle(ev.LeadershipGained(NOW, 1))
    engine.handle(ev.StoreReady(NOW))
    for source in ev.WatchedSource:
        engine.handle(ev.SourceFresh(NOW, source))
    for number in range(10):
        name = NodeName(f"n{number}")
        engine.handle(ev.NodeObserved(NOW, Node(name, {}, {GPU: 8, CPU: 64_000, PODS: 99}, True)))
    for number in range(MANY):
        engine.handle(ev.PodObserved(NOW, large(number)))
    engine.handle(ev.Pass(NOW))
    for number in range(SMALL):
        pod = held_pod(f"small{number}", "good", user="good", since=NOW)
        engine.handle(ev.PodObserved(NOW, pod))
    return engine


def releases(engine: Engine, at: int) -> int:
    return sum(isinstance(each, Release) for each in engine.handle(ev.Pass(Millis(at))))


def test_releases_do_not_repeat_searches_that_found_no_capacity(searches: Searches) -> None:
    engine = leader(PodCosts())
    searches.count = 0
    assert releases(engine, NOW + 1) == SMALL
    assert searches.count < MANY + 4 * SMALL


def test_new_capacity_is_found_by_pods_that_did_not_fit_before(searches: Searches) -> None:
    engine = leader(PodCosts())
    node = Node(NodeName("n0"), {}, {GPU: 9, CPU: 64_000, PODS: 99}, True)
    engine.handle(ev.NodeObserved(NOW, node))
    assert releases(engine, NOW + 1) == SMALL + 1


def test_evaluation_time_is_attributed_to_the_pod_that_caused_it(searches: Searches) -> None:
    costs = PodCosts(lambda: searches.seconds * LARGE_SECONDS)
    engine = leader(costs)
    engine.handle(ev.NodeGone(NOW, NodeName("n9")))  # all are searched again
    costs.end_step()
    assert releases(engine, NOW + 1) == SMALL
    blamed = costs.end_step()
    assert Uid(large(3).uid) in blamed
    assert {uid for uid in blamed if "small" in uid} == set()


def test_pass_with_too_many_looks_ends_and_another_follows(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    engine = leader(PodCosts())
    monkeypatch.setattr(cycle, "MAX_EVALUATIONS", 2 * MANY)
    effects = engine.handle(ev.Pass(Millis(NOW + 1)))
    released = sum(isinstance(each, Release) for each in effects)
    assert 0 < released < SMALL
    assert WakeAt(Millis(NOW + 2)) in effects
    for at in range(2, SMALL + 2):
        released += releases(engine, NOW + at)
    assert released == SMALL
    effects = engine.handle(ev.Pass(Millis(NOW + 100)))
    assert not any(isinstance(each, WakeAt) and each.at == NOW + 101 for each in effects)
