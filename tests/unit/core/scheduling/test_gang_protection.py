"""Protection of gang pods from a reclaim. Changes of the gang after the release do not add any."""

from __future__ import annotations

from dataclasses import replace

import pytest

from app.core import events as ev
from app.core.effects import Release
from app.core.model import Millis, Phase, Pod
from app.sim.cluster.virtual_cluster import held_pod
from tests.support.eviction_cluster import NODE, EvictionCluster

LEAST_RUN_TIME = 300_000


@pytest.fixture
def town() -> EvictionCluster:
    return EvictionCluster()


def gang(size: int, least: int = 0) -> dict[str, object]:
    return {"gang": "x", "gang_size": size, "gang_min_count": least}


def grown_gang(town: EvictionCluster) -> list[Pod]:
    """Let a gang of one pod that is not preemptible grow by eight borrowed pods."""
    pods = town.run("b0", **gang(2), preemptible=False)
    pods += town.run(*(f"b{number}" for number in range(1, 9)), **gang(9))
    return pods


def test_pod_that_is_not_preemptible_does_not_protect_those_that_joined_its_gang_later(
    town: EvictionCluster,
) -> None:
    grown_gang(town)
    town.lead()
    town.submit("a-four", 4)
    assert town.evicted() == [f"b{number}" for number in range(1, 9)]


def test_raised_minimum_of_an_elastic_gang_protects_no_borrowed_pod(town: EvictionCluster) -> None:
    town.run("b0", **gang(40, 1), preemptible=False)
    town.run(*(f"b{number}" for number in range(1, 8)), **gang(40, 1))
    town.run("b8", **gang(40, 9))
    town.lead()
    town.submit("a-four", 4)
    assert set(town.evicted()) == {f"b{number}" for number in range(1, 9)}


@pytest.mark.parametrize("further", [1, 2])
@pytest.mark.parametrize("wanted", [1, 4])
def test_further_pods_beside_a_protected_minimum_are_taken_once(
    town: EvictionCluster, further: int, wanted: int
) -> None:
    town.run("b0", **gang(9, 1), preemptible=False)
    town.run(*(f"b{number}" for number in range(1 + further, 9)))
    town.run(*(f"b{number}" for number in range(1, 1 + further)), **gang(9, 1))
    town.lead()
    town.submit("a-some", wanted)
    evicted = town.evicted()
    assert len(evicted) == len(set(evicted)) == wanted
    assert len({"b1", "b2"} & set(evicted)) >= min(further, wanted)
    assert "b0" not in evicted


def test_pods_that_were_given_the_labels_of_a_gang_after_the_release_are_not_protected(
    town: EvictionCluster,
) -> None:
    kept = town.run("b0", preemptible=False)
    others = town.run(*(f"b{number}" for number in range(1, 9)))
    town.lead()
    labelled = (replace(pod, gang="x", gang_size=9) for pod in (*kept, *others))
    town.hear(*(ev.PodObserved(town.at, pod) for pod in labelled))
    town.submit("a-four", 4)
    assert set(town.evicted()) == {f"b{number}" for number in range(1, 9)}


@pytest.mark.parametrize("preemptible", [True, False])
def test_release_states_of_each_pod_whether_all_that_are_released_with_it_are_preemptible(
    town: EvictionCluster, preemptible: bool
) -> None:
    town.lead()
    for name, may_be_evicted in (("b0", True), ("b1", preemptible)):
        pod = replace(held_pod(name, "b", since=town.now), gang="x", gang_size=2)
        town.hear(ev.PodObserved(town.at, replace(pod, preemptible=may_be_evicted)))
    assert [order.preemptible for order in town.take(Release)] == [preemptible] * 2


def run_since(town: EvictionCluster, started_at: int, *names: str) -> None:
    """Let pods of a gang of nine run since a time."""
    for number, name in enumerate(names):
        pod = replace(held_pod(name, "b", since=1), gates=(), node=NODE, phase=Phase.RUNNING)
        stamp = f"5.{started_at + number}"
        more = {"release_annotation": stamp, "started_at": Millis(started_at), **gang(9)}
        town.hear(ev.PodObserved(town.at, replace(pod, **more)))  # type: ignore[arg-type]


def test_new_pod_of_a_gang_does_not_start_its_least_run_time_again(town: EvictionCluster) -> None:
    town.rule(min_runtime=Millis(LEAST_RUN_TIME))
    run_since(town, town.now - LEAST_RUN_TIME, *(f"b{number}" for number in range(8)))
    run_since(town, town.now, "b8")
    town.lead()
    town.submit("a-four", 4)
    assert len(town.evicted()) == 9


def test_gang_is_protected_until_its_oldest_pod_has_run_the_least_time(
    town: EvictionCluster,
) -> None:
    town.rule(min_runtime=Millis(LEAST_RUN_TIME))
    run_since(town, town.now, *(f"b{number}" for number in range(9)))
    town.lead()
    town.submit("a-four", 4)
    town.wait(LEAST_RUN_TIME - 1)
    assert town.evicted() == []
    town.wait(1)
    assert len(town.evicted()) == 9
