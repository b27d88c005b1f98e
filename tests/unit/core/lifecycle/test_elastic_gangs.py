"""Elastic gangs: the minimum starts as one, each further pod by itself, and numbers are live."""

from __future__ import annotations

from dataclasses import replace

import pytest

from app.core import events as ev
from app.core.model import Millis, Pod
from app.core.podspec.pod_groups import UNBOUNDED, GangDeclaration
from app.sim.cluster.virtual_cluster import held_pod
from tests.support.gang_driver import MINUTE, Lead, member


def members(count: int, least: int = 2, size: int = 4, **more: object) -> list[Pod]:
    return [elastic(n, least, size, **more) for n in range(count)]


def elastic(number: int, least: int = 2, size: int = 4, **more: object) -> Pod:
    return replace(member(number, size, "train", **more), gang_min_count=least)


def of_group(count: int) -> list[Pod]:
    return [member(n, 0, "podgroup/g") for n in range(count)]


def group(least: int) -> ev.GroupObserved:
    stated = GangDeclaration("a", "podgroup/g", UNBOUNDED, min_count=least)
    return ev.GroupObserved(Millis(1000), stated)


BASIC = ev.GroupObserved(
    Millis(1000), GangDeclaration("a", "podgroup/g", 1, is_released_singly=True)
)


# Release.


def test_elastic_gang_does_not_start_before_its_minimum_exists() -> None:
    lead = Lead()
    pods = members(3, least=4, size=8)
    lead.see(*pods)
    assert lead.released == []
    assert "is not complete, 3 of 4 pods are there" in lead.text(pods[0])


def test_elastic_gang_does_not_start_before_its_minimum_fits() -> None:
    lead = Lead(gpus=3)
    lead.see(*members(8, least=4, size=8))
    assert lead.released == []
    lead.room(4)
    assert lead.released == ["g0", "g1", "g2", "g3"]


def test_each_further_pod_starts_by_itself() -> None:
    lead = Lead(gpus=5)
    lead.see(*members(8, least=4, size=8))
    assert lead.released == [f"g{n}" for n in range(5)]
    lead.room(7)
    assert lead.released == [f"g{n}" for n in range(7)]


def test_further_pods_wait_in_fair_order() -> None:
    """The gang of tenant a has four of six devices, so tenant b is next each time."""
    lead = Lead(gpus=4)
    lead.see(*members(8, least=4, size=8))
    lead.see(*(held_pod(f"b{n}", "b", since=5000) for n in range(3)))
    lead.room(7)
    assert lead.released[4:] == ["b0", "b1", "b2"]


def test_a_pod_beyond_the_size_waits_alone() -> None:
    lead = Lead(gpus=4)
    lead.see(*members(4), elastic(9))
    assert sorted(lead.released) == ["g0", "g1", "g2", "g3"]
    assert "gang train has all its pods without it" in lead.text(elastic(9))


def test_the_minimum_waits_for_a_replacement_and_further_pods_with_it() -> None:
    lead = Lead(gpus=3)
    lead.see(*members(3, least=3, size=6))
    lead.gone("a/g0", "a/g1")
    lead.see(elastic(4, 3, 6))
    assert len(lead.released) == 3
    lead.see(elastic(5, 3, 6), elastic(6, 3, 6))
    assert lead.released[3:] == ["g4", "g5"]
    lead.room(4)
    assert lead.released[5:] == ["g6"]


def test_new_leader_completes_a_half_released_minimum_first() -> None:
    left = [replace(pod, release_annotation="0@7.0") for pod in members(4, least=3, size=6)]
    run = replace(left[0], gates=(), release_annotation="7.1")
    lead = Lead(3, run, *left[1:])
    assert lead.released == ["g1", "g2"]


# Numbers.


def test_raised_minimum_evicts_no_pod_and_new_pods_wait_for_it() -> None:
    lead = Lead()
    lead.hear(group(2))
    lead.see(*of_group(2))
    assert len(lead.released) == 2
    lead.hear(group(4))
    lead.see(*of_group(3)[2:])
    lead.wait(20 * MINUTE)
    assert (len(lead.released), lead.expelled) == (2, [])
    lead.see(*of_group(4)[3:])
    assert len(lead.released) == 4


def test_minimum_raised_while_the_pods_start_evicts_no_pod() -> None:
    lead = Lead()
    lead.runs = False
    lead.hear(group(2))
    lead.see(*of_group(2))
    lead.hear(group(4))
    lead.wait(20 * MINUTE)
    lead.wait(20 * MINUTE)
    assert lead.expelled == []


def test_lowered_minimum_evicts_no_pod_and_starts_waiting_pods() -> None:
    lead = Lead(gpus=2)
    lead.hear(group(3))
    lead.see(*of_group(3))
    assert lead.released == []
    lead.hear(group(2))
    assert lead.released == ["g0", "g1"]
    lead.hear(group(1))
    assert lead.expelled == []
    lead.room(3)
    assert lead.released == ["g0", "g1", "g2"]


def test_the_numbers_on_the_newest_pod_apply() -> None:
    lead = Lead()
    lead.see(*members(3, least=4, size=8))
    lead.see(elastic(3, least=2, size=8, created_at=950))
    assert len(lead.released) == 4


def test_pods_of_a_basic_group_start_one_by_one_even_if_observed_earlier() -> None:
    lead = Lead(gpus=1)
    lead.see(*of_group(2))
    assert lead.released == []
    lead.hear(BASIC)
    assert lead.released == ["g0"]
    lead.see(*of_group(3)[2:])
    assert "gang" not in lead.text(of_group(3)[2])
    lead.room(3)
    assert lead.released == ["g0", "g1", "g2"]
    assert not lead.engine._registry.gangs._known


# Ends.


def test_an_elastic_gang_that_lost_its_minimum_before_it_ran_gives_back_its_capacity() -> None:
    lead = Lead()
    lead.runs = False
    lead.see(*(replace(pod, owner="job") for pod in members(4, least=3, size=4)))
    lead.gone("a/g0")
    lead.wait(20 * MINUTE)
    assert lead.going() == []
    lead.gone("a/g1")
    lead.wait(20 * MINUTE)
    assert lead.going() == ["g2", "g3"]


@pytest.mark.parametrize("lost", [1, 2])
def test_a_restart_concerns_the_minimum_only(lost: int) -> None:
    lead = Lead()
    lead.runs = False
    pods = members(4, least=3, size=4)
    lead.see(*(replace(pod, owner="job", restart_gang=True) for pod in pods))
    lead.gone(*(pod.uid for pod in pods[:lost]))
    lead.wait(1)
    assert lead.going() == (["g2", "g3"] if lost == 2 else [])


# Words.


def test_reason_states_how_many_pods_of_the_elastic_gang_run() -> None:
    lead = Lead(gpus=5)
    pods = members(8, least=4, size=8)
    lead.see(*pods)
    assert "gang train runs with 5 of up to 8 pods" in lead.text(pods[6])
    shown = lead.engine.queries.released_view(pods[0].uid)
    assert shown is not None
    assert shown.elastic_gang_clause == "; its gang train runs with 5 of up to 8 pods"


def test_reason_states_with_how_many_pods_the_elastic_gang_starts() -> None:
    lead = Lead(gpus=1)
    pods = members(8, least=4, size=8)
    lead.see(*pods)
    assert "gang train starts with 4 of up to 8 pods" in lead.text(pods[0])
    assert "each further pod waits in the queue by itself" in lead.text(pods[7])


def test_pods_created_after_the_minimum_succeeded_start_one_by_one() -> None:
    lead = Lead()
    lead.see(*members(2))
    lead.finish("a/g0", "a/g1")
    lead.see(elastic(2), elastic(3))
    assert lead.released == ["g0", "g1", "g2", "g3"]
