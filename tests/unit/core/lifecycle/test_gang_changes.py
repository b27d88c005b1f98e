"""Several changes of a gang between two cycles, changes of the mode, and new gang labels."""

from __future__ import annotations

from dataclasses import replace

import pytest

from app.core import events as ev
from app.core.effects import EvictPod
from app.core.model import Phase, Pod, Uid
from app.core.podspec.pod_groups import GangDeclaration
from app.core.policy import Mode, Policy
from app.sim.cluster.virtual_cluster import held_pod
from tests.support.gang_driver import MINUTE, Lead, member


def elastic(number: int) -> Pod:
    """Return a pod of a gang that starts with 2 of 4 pods."""
    return member(number, gang_min_count=2)


# --- several changes before one cycle ---


def started(lead: Lead) -> list[ev.PodObserved]:
    """Return the observation that the released pods run."""
    pods = [pod for pod in lead.pods.values() if not pod.gates]
    return [ev.PodObserved(lead.at, replace(pod, phase=Phase.RUNNING)) for pod in pods]


def test_a_further_pod_is_queued_once_if_its_minimum_starts_in_the_same_batch() -> None:
    lead = Lead(gpus=2)
    lead.runs = False
    lead.see(elastic(0), elastic(1))
    assert lead.released == ["g0", "g1"]
    further = lead.pods[Uid("a/g2")] = elastic(2)
    lead.hear(ev.PodObserved(lead.at, further), *started(lead))
    lead.room(3)
    assert lead.released == ["g0", "g1", "g2"]
    lead.room(8)
    assert lead.released == ["g0", "g1", "g2"]


def test_a_further_pod_is_queued_once_if_the_numbers_of_its_job_change_in_the_same_batch() -> None:
    def of_job(number: int) -> Pod:
        return member(number, size=0, gang_min_count=2)

    def job(succeeded: int) -> ev.GroupObserved:
        group = GangDeclaration("a", "train", 4, succeeded_count=succeeded, required_successes=10)
        return ev.GroupObserved(lead.at, group)

    lead = Lead(gpus=2)
    lead.hear(job(0))
    lead.see(of_job(0), of_job(1))
    assert lead.released == ["g0", "g1"]
    further = lead.pods[Uid("a/g2")] = of_job(2)
    lead.hear(ev.PodObserved(lead.at, further), job(1))
    lead.room(3)
    lead.room(8)
    assert lead.released == ["g0", "g1", "g2"]


# --- the mode ---


def broken(lead: Lead) -> None:
    """Three of the four pods of a gang are released."""
    lead.runs = False
    lead.refused = {"g0"}
    lead.see(*map(member, range(4)))
    lead.gone("a/g0")


def test_a_gang_that_became_overdue_in_observe_mode_is_evicted_once_the_mode_is_enforce() -> None:
    lead = Lead(policy=Policy(mode=Mode.OBSERVE))
    broken(lead)
    lead.wait(60 * MINUTE)
    assert lead.going() == []
    lead.hear(ev.PolicyObserved(lead.at, Policy()))
    assert lead.going() == []
    lead.wait(11 * MINUTE)
    assert lead.going() == ["g1", "g2", "g3"]


def test_a_gang_that_is_being_evicted_is_released_again_in_observe_mode() -> None:
    lead = Lead()
    broken(lead)
    lead.wait(11 * MINUTE)
    assert lead.going() == ["g1", "g2", "g3"]
    lead.gone("a/g2", "a/g3")
    assert lead.engine.is_eviction_needed(Uid("a/g1"))
    lead.hear(ev.PolicyObserved(lead.at, Policy(mode=Mode.OBSERVE)))
    assert not lead.engine.is_eviction_needed(Uid("a/g1"))
    before = len(lead.released)
    lead.see(*(member(number) for number in (4, 5, 6)))
    assert sorted(lead.released[before:]) == ["g4", "g5", "g6"]
    assert not [each for each in lead.wait(60 * MINUTE) if isinstance(each, EvictPod)]


def test_a_gang_that_was_overdue_in_an_earlier_term_is_evicted_in_a_later_one() -> None:
    lead = Lead(policy=Policy(mode=Mode.OBSERVE))
    broken(lead)
    lead.wait(60 * MINUTE)
    lead.hear(ev.LeadershipLost(lead.at), ev.PolicyObserved(lead.at, Policy()))
    lead.hear(ev.LeadershipGained(lead.at, 9), ev.StoreReady(lead.at))
    lead.wait(11 * MINUTE)
    assert lead.going() == ["g1", "g2", "g3"]


# --- labels ---


def test_a_pod_beyond_the_size_joins_when_a_member_leaves() -> None:
    lead = Lead(gpus=4)
    lead.see(held_pod("one", "b", 1), held_pod("three", "b", 3))
    lead.see(*map(member, range(5)))
    lead.gone("a/g3")
    lead.gone("b/one")
    assert sorted(lead.released) == ["one", "three"]
    lead.gone("b/three")
    assert sorted(lead.released[2:]) == ["g0", "g1", "g2", "g4"]


def test_the_pods_beyond_the_size_of_a_gang_form_a_gang_when_all_members_leave() -> None:
    lead = Lead(gpus=2)
    lead.see(held_pod("p", "b", 1), held_pod("q", "b", 1))
    lead.see(*(member(number, size=2) for number in range(4)))
    lead.gone("a/g0", "a/g1")
    lead.gone("b/p")
    assert sorted(lead.released) == ["p", "q"]
    lead.gone("b/q")
    assert sorted(lead.released[2:]) == ["g2", "g3"]


def test_a_held_pod_joins_the_gang_of_its_new_label() -> None:
    lead = Lead()
    first, moving = member(1, size=2), member(2, size=2)
    lead.see(first, member(3, size=2, gang="other"))
    lead.room(0)
    lead.see(moving)
    lead.room(1)
    assert lead.released == []
    lead.see(replace(moving, gang="other"))
    lead.room(2)
    assert sorted(lead.released) == ["g2", "g3"]


@pytest.mark.parametrize("size", [2, 3])
def test_a_held_pod_whose_gang_label_is_removed_waits_alone(size: int) -> None:
    lead = Lead(gpus=0)
    leaving = member(2, size=size)
    lead.see(member(1, size=size), leaving)
    lead.see(replace(leaving, gang="", gang_size=0))
    lead.room(8)
    assert lead.released == ["g2"]
    lead.see(held_pod("alone", "a"))
    assert lead.released == ["g2", "alone"]
