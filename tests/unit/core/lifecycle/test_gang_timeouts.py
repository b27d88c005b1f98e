"""Incomplete gangs: required number of pods, reports, evictions and restarts."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import replace

import pytest

from app.core import events as ev
from app.core.effects import EventReason, WakeAt
from app.core.explain.reasons import Rule
from app.core.lifecycle.gang_timeouts import PAUSE
from app.core.model import Millis, Phase, Pod, Tenant, TenantName, Uid
from app.core.podspec.pod_groups import GangDeclaration
from app.core.policy import Mode, Policy
from app.core.retry import LONG, MOST_DOUBLINGS
from app.sim.cluster.virtual_cluster import held_pod
from tests.support.gang_driver import GPU, MINUTE, NODE, Lead, member, round_of


def members(count: int, size: int = 4, gang: str = "train", **more: object) -> list[Pod]:
    return [member(n, size, gang, **more) for n in range(count)]


def of_job(count: int, **more: object) -> list[Pod]:
    return members(count, 0, "job/j", **more)


def job(size: int, total: int | None = None, succeeded: int = 0) -> ev.GroupObserved:
    return ev.GroupObserved(Millis(1000), GangDeclaration("a", "job/j", size, total, succeeded))


# Required number of pods.


def test_gang_of_unknown_size_waits_and_reports_the_reason() -> None:
    lead = Lead()
    pods = of_job(3)
    lead.see(*pods)
    assert lead.released == []
    assert "3 pods are there, and no Job j states its size" in lead.text(pods[0])
    lead.hear(job(3))
    assert lead.released == ["g0", "g1", "g2"]


def test_job_observed_before_its_pods_sets_the_gang_size() -> None:
    lead = Lead()
    lead.hear(job(2))
    lead.see(*of_job(1))
    assert lead.released == []
    lead.see(*of_job(2)[1:])
    assert lead.released == ["g0", "g1"]


def test_the_size_that_an_object_states_is_read_live() -> None:
    lead = Lead()
    lead.hear(job(4, total=4))
    lead.see(*of_job(3))
    lead.hear(job(8, total=8))
    assert "3 of 8 pods are there" in lead.text(of_job(3)[0])
    lead.hear(job(3, total=3))
    assert lead.released == ["g0", "g1", "g2"]


def test_pods_beyond_a_size_join_their_gang_when_it_grows() -> None:
    lead = Lead(gpus=0)
    lead.hear(job(3))
    lead.see(*of_job(4))
    lead.hear(job(4))
    lead.room(3)
    assert lead.released == []
    lead.room(4)
    assert sorted(lead.released) == ["g0", "g1", "g2", "g3"]


def test_size_of_a_new_gang_with_the_same_name_is_read_again() -> None:
    lead = Lead()
    lead.hear(job(4))
    lead.see(*of_job(2))
    lead.gone("a/g0", "a/g1")
    lead.hear(job(2))
    lead.see(*of_job(2))
    assert lead.released == ["g0", "g1"]


@pytest.mark.parametrize("known", [True, False])
def test_pods_beyond_the_size_wait_each_alone(known: bool) -> None:
    lead = Lead(gpus=2)
    news = (job(4),) if known else ()
    lead.hear(*news)
    lead.see(*of_job(6))
    lead.hear(job(4))
    assert lead.released == ["g4", "g5"]
    lead.room(6)
    assert lead.released == ["g4", "g5", "g0", "g1", "g2", "g3"]


def test_pod_beyond_the_gang_size_reports_that_the_gang_is_complete() -> None:
    lead = Lead(gpus=0)
    lead.room(0)
    lead.see(*members(5))
    assert "gang train has all its pods without it" in lead.text(member(4))


def test_last_pods_of_a_job_do_not_wait_for_pods_beyond_its_completions() -> None:
    """Ten completions with parallelism four: the last two pods do not wait for two more."""
    lead = Lead()
    lead.hear(job(4, total=10))
    lead.see(*of_job(4))
    lead.finish("a/g0", "a/g1", "a/g2", "a/g3")
    lead.hear(job(4, total=10, succeeded=8))
    lead.see(member(8, 0, "job/j"), member(9, 0, "job/j"))
    assert lead.released[4:] == ["g8", "g9"]


def test_the_last_of_a_gang_is_replaced_after_the_others_succeeded() -> None:
    lead = Lead()
    lead.see(*members(4))
    lead.finish("a/g0", "a/g1", "a/g2")
    lead.finish("a/g3", failed=True)
    lead.see(member(9))
    assert lead.released[4:] == ["g9"]


def test_succeeded_gang_does_not_count_in_the_next_gang_of_its_name() -> None:
    lead = Lead()
    lead.see(*members(4))
    lead.finish(*(f"a/g{n}" for n in range(4)))
    lead.see(member(10), member(11))
    assert len(lead.released) == 4
    lead.see(member(12), member(13))
    assert len(lead.released) == 8


def test_pods_that_succeeded_before_the_term_count() -> None:
    done = [
        replace(p, phase=Phase.FINISHED, gates=(), release_annotation="7.1") for p in members(3)
    ]
    lead = Lead(8, *done, member(9))
    assert lead.released == ["g9"]


def test_terminating_pod_of_a_gang_does_not_count() -> None:
    lead = Lead(gpus=8, policy=Policy(gang_timeout=Millis(0)))
    lead.see(*members(4))
    lead.see(replace(lead.pods[Uid("a/g0")], terminating=True))
    lead.see(member(9))
    assert lead.released[4:] == ["g9"]


# Reports.


def test_an_incomplete_gang_is_reported_once() -> None:
    lead = Lead()
    pods = members(3)
    lead.see(*pods)
    lead.told.clear()
    lead.wait(9 * MINUTE)
    assert lead.told == []
    assert "more than" not in lead.text(pods[0])
    lead.wait(2 * MINUTE)
    assert [(t.ref.name, t.reason) for t in lead.told] == [
        (p.name, EventReason.WAITING) for p in pods
    ]
    assert "3 of 4 pods are there, for more than 600 s" in lead.text(pods[0])
    lead.wait(60 * MINUTE)
    assert len(lead.told) == 3
    assert lead.expelled == []


def test_engine_requests_a_wakeup_when_a_gang_becomes_overdue() -> None:
    lead = Lead()
    effects = lead.hear(*(ev.PodObserved(lead.at, p) for p in members(3)))
    wakes = [each.at for each in effects if hasattr(each, "at") and not hasattr(each, "facts")]
    assert wakes == [900 + 10 * MINUTE]


def test_a_gang_that_becomes_whole_is_not_reported() -> None:
    lead = Lead(gpus=0)
    lead.see(*members(3))
    lead.see(member(3))
    lead.told.clear()
    lead.wait(60 * MINUTE)
    assert lead.told == []


def test_nothing_is_reported_without_a_gang_timeout() -> None:
    lead = Lead(policy=Policy(gang_timeout=Millis(0)))
    lead.see(*members(3))
    lead.told.clear()
    lead.wait(60 * MINUTE)
    assert lead.told == []


# Evictions.


def broken(lead: Lead, pods: Sequence[Pod] | None = None) -> None:
    """Release a gang and delete one pod before it runs."""
    lead.runs = False
    lead.see(*(pods or members(4)))
    assert len(lead.released) == 4
    for n in (1, 2, 3):
        lead.see(replace(lead.pods[Uid(f"a/g{n}")], phase=Phase.RUNNING))
    lead.gone("a/g0")


def test_incomplete_gang_is_evicted_after_the_timeout() -> None:
    lead = Lead()
    broken(lead)
    lead.wait(9 * MINUTE)
    assert lead.expelled == []
    lead.wait(MINUTE)
    assert lead.going() == ["g1", "g2", "g3"]
    assert {e.cause for e in lead.expelled} == {"gang"}
    assert "only 3 of the 4 pods of its gang train" in lead.expelled[0].why


def test_no_gang_is_evicted_because_others_took_its_tenant_away() -> None:
    lead = Lead()
    tenant = Tenant(TenantName("team"), Millis(0), parent=TenantName("above"), namespaces=("a",))
    lead.hear(
        ev.TenantObserved(lead.at, Tenant(TenantName("above"), Millis(0))),
        ev.TenantObserved(lead.at, tenant),
    )
    broken(lead)
    lead.hear(ev.TenantGone(lead.at, TenantName("above")))
    lead.see(member(10))
    assert "tenant team" in lead.text(member(10))
    lead.wait(60 * MINUTE)
    lead.wait(60 * MINUTE)
    assert lead.expelled == []
    lead.hear(ev.TenantObserved(lead.at, replace(tenant, parent=None)))
    assert lead.released[-1] == "g10"


def test_evicted_gang_waits_for_all_its_pods_again() -> None:
    lead = Lead()
    broken(lead)
    lead.wait(10 * MINUTE)
    lead.see(member(10))
    assert "3 pods are being evicted" in lead.text(member(10))
    assert len(lead.released) == 4
    lead.gone("a/g1", "a/g2", "a/g3")
    lead.see(member(11), member(12))
    assert len(lead.released) == 4
    lead.runs = True
    lead.see(member(13))
    assert lead.released[4:] == ["g10", "g11", "g12", "g13"]
    lead.expelled.clear()
    lead.wait(60 * MINUTE)
    assert lead.expelled == []


def test_replacement_in_time_prevents_the_eviction_of_the_gang() -> None:
    lead = Lead()
    broken(lead)
    lead.wait(9 * MINUTE)
    lead.runs = True
    lead.see(member(9))
    assert lead.released[4:] == ["g9"]
    lead.wait(60 * MINUTE)
    assert lead.expelled == []


def test_gang_is_not_evicted_once_all_its_pods_have_run() -> None:
    lead = Lead()
    lead.see(*members(4))
    lead.finish("a/g0", failed=True)
    lead.room(3)
    lead.see(member(9))
    lead.wait(60 * MINUTE)
    assert lead.expelled == []


def test_refused_eviction_is_retried() -> None:
    lead = Lead()
    broken(lead)
    lead.wait(10 * MINUTE)
    lead.hear(ev.EvictionRefused(lead.at, Uid("a/g1")))
    lead.gone("a/g2", "a/g3")
    lead.expelled.clear()
    lead.wait(5_000)
    assert lead.going() == ["g1"]


def test_no_pod_of_a_gang_is_released_during_its_eviction() -> None:
    lead = Lead()
    broken(lead)
    lead.wait(10 * MINUTE)
    lead.see(member(9))
    lead.wait(MINUTE)
    assert lead.released[4:] == []


def test_no_gang_is_evicted_in_observe_mode() -> None:
    lead = Lead(policy=Policy(mode=Mode.OBSERVE))
    broken(lead, members(4, restart_gang=True))
    lead.wait(60 * MINUTE)
    assert lead.expelled == []


def test_new_leader_does_not_evict_a_running_incomplete_gang() -> None:
    """A new leader cannot know whether all pods ever ran together."""
    half = [
        replace(
            member(n), gates=(), release_annotation=f"7.{n + 1}", node=NODE, phase=Phase.RUNNING
        )
        for n in range(3)
    ]
    lead = Lead(8, *half)
    lead.wait(60 * MINUTE)
    assert lead.expelled == []


@pytest.mark.parametrize("leaves", [False, True])
def test_new_leader_evicts_an_incomplete_gang_if_none_of_its_pods_runs(leaves: bool) -> None:
    """An earlier leader was about to evict it, and that process has ended."""
    there = replace(member(0), gates=(), release_annotation="7.1", node=NODE, phase=Phase.PENDING)
    found = [there]
    if leaves:
        going = replace(
            member(4), gates=(), release_annotation="7.2", node=NODE, phase=Phase.RUNNING
        )
        found.append(replace(going, terminating=True))
    lead = Lead(2, *found, member(1), member(2))
    lead.wait(9 * MINUTE)
    assert lead.expelled == []
    lead.wait(MINUTE)
    assert lead.going() == ["g0"]


def test_half_released_gang_is_evicted_if_its_remaining_pods_do_not_fit() -> None:
    half = [
        replace(
            member(n), gates=(), release_annotation=f"7.{n + 1}", node=NODE, phase=Phase.RUNNING
        )
        for n in range(2)
    ]
    rest = [replace(member(n), release_annotation="0@8") for n in (2, 3)]
    big = replace(
        held_pod("b", "b"), gates=(), release_annotation="7.9", node=NODE, phase=Phase.RUNNING
    )
    lead = Lead(4, *half, *rest, replace(big, demand={GPU: 2}))
    assert lead.released == []
    lead.wait(10 * MINUTE)
    assert lead.going() == ["g0", "g1"]
    lead.gone("a/g0", "a/g1")
    lead.see(held_pod("small", "c"), held_pod("small2", "c"))
    assert lead.released == ["small", "small2"]


# Restarts.


def test_gang_with_restart_is_restarted_if_a_pod_is_lost_before_all_run() -> None:
    lead = Lead()
    broken(lead, members(4, restart_gang=True))
    assert lead.going() == ["g1", "g2", "g3"]
    assert "fairgate.io/gang-failure: restart" in lead.expelled[0].why
    lead.gone("a/g1", "a/g2", "a/g3")
    lead.runs = True
    lead.see(*(member(n, restart_gang=True) for n in (10, 11, 12)))
    assert len(lead.released) == 4
    lead.see(member(13, restart_gang=True))
    assert len(lead.released) == 4
    lead.wait(PAUSE)
    assert len(lead.released) == 8
    assert len(lead.expelled) == 3


def test_failed_pod_restarts_the_gang_like_a_deleted_pod() -> None:
    lead = Lead()
    lead.runs = False
    lead.see(*members(4, restart_gang=True))
    lead.finish("a/g0", failed=True)
    assert lead.going() == ["g1", "g2", "g3"]


def test_a_pod_that_succeeded_early_is_no_failure() -> None:
    lead = Lead()
    lead.runs = False
    lead.see(*members(4, restart_gang=True))
    lead.finish("a/g0")
    lead.wait(60 * MINUTE)
    assert lead.expelled == []


def test_gang_without_restart_continues_with_a_replacement() -> None:
    lead = Lead()
    broken(lead)
    assert lead.expelled == []
    lead.see(member(9))
    assert lead.released[4:] == ["g9"]


def test_once_all_have_run_a_failure_is_the_owners_business() -> None:
    lead = Lead()
    lead.see(*members(4, restart_gang=True))
    lead.finish("a/g0", failed=True)
    lead.wait(60 * MINUTE)
    assert lead.expelled == []


def test_gang_that_ran_and_lost_a_pod_is_reported_and_not_evicted() -> None:
    lead = Lead()
    lead.see(*members(4))
    lead.finish("a/g0", "a/g1", failed=True)
    lead.see(member(9))
    lead.told.clear()
    lead.wait(10 * MINUTE)
    assert lead.told[0].reason is EventReason.WAITING
    waiting = lead.engine.queries.wait_reason(lead.told[0].ref.uid)
    assert "3 of 4 pods are there, for more than" in (waiting or "")
    assert lead.expelled == []


def test_recreated_gang_that_ran_before_is_treated_as_a_new_gang() -> None:
    lead = Lead(gpus=4)
    lead.see(*members(4, restart_gang=True))
    lead.see(*(replace(p, terminating=True) for p in list(lead.pods.values())))
    lead.see(*(member(n, restart_gang=True) for n in (5, 6, 7, 8)))
    lead.gone(*(f"a/g{n}" for n in range(3)))
    assert lead.expelled == []
    lead.runs = False
    lead.gone("a/g3")
    assert lead.released[4:] == ["g5", "g6", "g7", "g8"]
    lead.gone("a/g5")
    assert lead.going() == ["g6", "g7", "g8"]


def test_waiting_gang_is_not_restarted() -> None:
    lead = Lead(gpus=0)
    lead.see(*members(4, restart_gang=True))
    lead.gone("a/g0")
    lead.wait(MINUTE)
    assert lead.expelled == []


def test_new_leader_does_not_restart_a_gang_for_a_loss_before_its_term() -> None:
    lead = Lead()
    lead.hear(ev.LeadershipLost(lead.at))
    pods = [
        replace(p, gates=(), release_annotation="9.1", node=NODE)
        for p in members(4, restart_gang=True)
    ]
    lead.see(*members(4, restart_gang=True))
    lead.see(*pods)
    lead.gone("a/g0")
    lead.gone("a/g1", "a/g2", "a/g3")
    again = [member(n, restart_gang=True) for n in (5, 6, 7, 8)]
    lead.see(*again)
    lead.see(*(replace(p, gates=(), release_annotation="9.2", node=NODE) for p in again))
    lead.hear(ev.LeadershipGained(lead.at, 10), ev.StoreReady(lead.at))
    assert lead.expelled == []


def test_pause_before_a_restart_doubles_with_each_crash_up_to_a_maximum() -> None:
    lead = Lead()
    starts = []
    for number in range(MOST_DOUBLINGS + 4):
        round_of(lead, number)
        starts.append(lead.at)
    pauses = [later - sooner for sooner, later in itertools.pairwise(starts)]
    doubled = [PAUSE << n for n in range(MOST_DOUBLINGS + 1)]
    assert pauses == [*doubled, doubled[-1], doubled[-1]]


def test_the_pause_counts_from_the_loss_and_not_from_the_end_of_the_last_pod() -> None:
    lead = Lead()
    broken(lead, members(4, restart_gang=True))
    lead.wait(PAUSE)
    lead.gone("a/g1", "a/g2", "a/g3")
    lead.see(*(member(n, restart_gang=True) for n in (10, 11, 12, 13)))
    assert len(lead.released) == 8


def test_once_all_have_run_the_next_loss_counts_as_the_first() -> None:
    lead = Lead()
    for number in range(3):
        round_of(lead, number)
    lead.wait(PAUSE << 2)
    lead.runs = True
    lead.see(*(member(n, restart_gang=True) for n in (50, 51, 52, 53)))
    lead.gone(*(f"a/g{n}" for n in (50, 51, 52, 53)))
    round_of(lead, 6)
    lead.see(*(member(n, restart_gang=True) for n in (70, 71, 72, 73)))
    before = len(lead.released)
    lead.wait(PAUSE)
    assert len(lead.released) == before + 4


def test_restart_pause_is_reset_after_a_long_time_without_a_loss() -> None:
    lead = Lead()
    round_of(lead, 0)
    round_of(lead, 1)
    lead.wait((PAUSE << 1) + LONG)
    round_of(lead, 2)
    before = len(lead.released)
    lead.see(*(member(n, restart_gang=True) for n in (70, 71, 72, 73)))
    lead.wait(PAUSE)
    assert len(lead.released) == before + 4


def test_no_other_gang_of_the_same_user_waits_for_it() -> None:
    lead = Lead()
    round_of(lead, 0)
    lead.see(*members(4, gang="other", restart_gang=True))
    assert len(lead.released) == 8


def test_engine_requests_a_wakeup_when_a_gang_may_restart() -> None:
    lead = Lead()
    lead.runs = False
    lead.see(*members(4, restart_gang=True))
    effects = lead.engine.handle(ev.PodGone(lead.at, Uid("a/g0")))
    effects += lead.engine.handle(ev.Pass(lead.at))
    for each in [*lead.pods][1:]:
        effects += lead.engine.handle(ev.PodGone(lead.at, each))
    effects += lead.engine.handle(ev.Pass(lead.at))
    assert [each.at for each in effects if isinstance(each, WakeAt)][-1] == lead.at + PAUSE


def test_gang_that_waits_for_its_restart_reports_why_and_until_when() -> None:
    lead = Lead()
    round_of(lead, 0)
    lead.wait(4_000)
    lead.told.clear()
    lead.see(*(member(n, restart_gang=True) for n in (70, 71, 72, 73)))
    why = lead.engine.queries.explain_wait(Uid("a/g70"))
    assert why is not None
    assert why.rule is Rule.GANG_DEFERRED
    assert "tried again in 6 s: a pod of its gang train failed or was deleted" in why.text
    assert why.remedies == ("pods of gang train that run until the whole gang runs",)
    assert EventReason.HELD in {each.reason for each in lead.told}


def test_gang_does_not_wait_for_its_restart_in_observe_mode() -> None:
    lead = Lead()
    round_of(lead, 0)
    lead.see(*(member(n, restart_gang=True) for n in (70, 71, 72, 73)))
    assert len(lead.released) == 4
    lead.hear(ev.PolicyObserved(lead.at, Policy(mode=Mode.OBSERVE)))
    assert len(lead.released) == 8
