"""Equivalence classes are stored only while their pods exist."""

from __future__ import annotations

from dataclasses import replace

from app.core import events as ev
from app.core.model import Millis, Pod, PoolName
from app.core.placement.equivalence_table import EquivalenceTable, sort_by_part
from app.core.quantities import CPU
from app.sim.cluster.virtual_cluster import held_pod
from tests.support.call_counts import calls_of
from tests.support.gang_term import Term


def test_shapes_of_pods_that_are_gone_are_forgotten() -> None:
    term = Term(gpus=0)
    shapes = term.engine._registry._equivalence_table
    stays = held_pod("stays", "a")
    term.hear(ev.PodObserved(Millis(1000), stays))
    for number in range(100):
        pod = replace(held_pod("p", "a"), max_runtime=Millis(1000 + number))
        term.hear(ev.PodObserved(Millis(1000), pod), ev.PodGone(Millis(1000), pod.uid))
        assert len(shapes) <= 4
    term.node(1)
    assert term.names() == ["stays"]


def unlike_pods(count: int) -> list[Pod]:
    plain = held_pod("p", "a")
    return [replace(plain, demand={**plain.demand, CPU: 1 + i % count}) for i in range(2 * count)]


def test_pods_are_in_the_order_of_their_parts() -> None:
    pods = unlike_pods(3)
    shape = EquivalenceTable().class_of(pods, (PoolName("p"),))
    parts = [(pod.demand[CPU]) for pod in sort_by_part(pods, shape)]
    assert parts == [demand[CPU] for demand, count in shape.request_counts for _ in range(count)]


def test_the_order_of_unlike_pods_costs_linear_time() -> None:
    costs = []
    for count in (50, 100):
        pods = unlike_pods(count)
        shape = EquivalenceTable().class_of(pods, (PoolName("p"),))
        costs.append(calls_of(lambda pods=pods, shape=shape: sort_by_part(pods, shape)))  # type: ignore[misc]
    assert costs[1] < 2.5 * costs[0]
