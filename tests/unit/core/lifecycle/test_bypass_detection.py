"""Pods without a gate: released, adopted, or bypassing Fairgate."""

from __future__ import annotations

from dataclasses import replace

import pytest

from app.core import events as ev
from app.core.effects import (
    Adopt,
    Bypassed,
    Charge,
    EmitEvent,
    EventReason,
    EvictPod,
    Release,
)
from app.core.lifecycle.bypass_detection import DOUBT_MS
from app.core.model import (
    Millis,
    Phase,
    Pod,
    Pool,
    PoolName,
    ReleaseOutcome,
    Uid,
)
from app.core.policy import Mode, Policy
from app.core.retry import FIRST
from app.core.well_known import GATE, RELEASE_ADOPTED
from app.sim.cluster.virtual_cluster import held_pod
from tests.support.bypass_watch import EPOCH, NODE, SINCE, Watch, free


def names(effects: list[Bypassed] | list[Adopt] | list[EvictPod]) -> list[str]:
    return [each.ref.name for each in effects]


OLD, NEW = free("old", since=SINCE - 1), free("new", since=SINCE)


def test_who_was_there_before_us_is_adopted_and_charged() -> None:
    watch = Watch(OLD)
    [order] = watch.all(Adopt)
    assert order.ref.name == "old"
    assert order.labels == {
        "fairgate.io/tenant": "ns.a",
        "fairgate.io/user": "user",
        "fairgate.io/pool": "default",
    }
    assert not watch.all(Bypassed)
    assert [w.uid for w in watch.engine.store_writes() if isinstance(w, Charge)] == [OLD.uid]


def test_an_adoption_is_asked_for_until_it_is_seen() -> None:
    watch = Watch(OLD)
    watch.wait(FIRST - 1)
    assert not watch.all(Adopt)
    watch.wait(1)
    assert names(watch.all(Adopt)) == ["old"]
    watch.see(replace(OLD, release_annotation=RELEASE_ADOPTED))
    watch.wait(10 * FIRST)
    assert not watch.all(Adopt)


def test_an_old_pod_is_adopted_however_late_it_is_found() -> None:
    watch = Watch()
    watch.see(OLD)
    assert names(watch.all(Adopt)) == ["old"]


def test_who_is_in_no_pool_is_adopted_without_a_pool() -> None:
    watch = Watch(lead=False)
    watch.hear(ev.PoolObserved(watch.at, Pool(PoolName("h100"), {"kind": "h100"})))
    watch.see(OLD)
    watch.lead(EPOCH)
    [order] = watch.all(Adopt)
    assert "fairgate.io/pool" not in order.labels


def test_a_pod_that_was_never_released_is_reported_once_and_stays_charged() -> None:
    watch = Watch()
    watch.see(NEW)
    [found] = watch.all(Bypassed)
    assert (found.ref.name, found.tenant, found.user, found.node) == ("new", "ns.a", "user", NODE)
    [told] = [t for t in watch.all(EmitEvent) if t.reason is EventReason.REFUSED]
    assert "never released" in told.message
    assert [w.uid for w in watch.engine.store_writes() if isinstance(w, Charge)] == [NEW.uid]
    watch.see(replace(NEW, priority=3))
    watch.wait(1_000_000)
    assert not watch.all(Bypassed)
    assert not watch.all(EvictPod)


def test_each_term_reports_what_the_audit_chain_does_not_show() -> None:
    watch = Watch(NEW)
    assert names(watch.all(Bypassed)) == ["new"]
    watch.hear(ev.LeadershipLost(watch.at))
    watch.lead(EPOCH + 1)
    assert names(watch.all(Bypassed)) == ["new"]


def test_a_bypass_that_the_audit_chain_shows_is_not_reported_by_the_next_term() -> None:
    watch = Watch(NEW)
    notes = dict(watch.engine.audit_markers())
    watch.hear(ev.LeadershipLost(watch.at))
    watch.lead(EPOCH + 1, notes)
    assert not watch.all(Bypassed)
    assert not watch.all(EmitEvent)


def test_each_term_evicts_a_bypass_that_an_earlier_term_reported() -> None:
    watch = Watch(NEW, evicts=True)
    assert names(watch.all(EvictPod)) == ["new"]
    notes = dict(watch.engine.audit_markers())
    watch.hear(ev.LeadershipLost(watch.at))
    watch.lead(EPOCH + 1, notes)
    assert names(watch.all(EvictPod)) == ["new"]
    assert not watch.all(Bypassed)


def test_nobody_is_judged_before_it_is_known_since_when_we_are_here() -> None:
    watch = Watch(OLD, NEW, since=None)
    assert not watch.all(Bypassed) + watch.all(Adopt)
    watch.hear(ev.Installed(watch.at, Millis(SINCE)))
    assert names(watch.all(Bypassed)) == ["new"]
    assert names(watch.all(Adopt)) == ["old"]


def test_a_standby_judges_nobody() -> None:
    watch = Watch(OLD, NEW, lead=False)
    watch.wait(FIRST)
    assert watch.effects == []


def test_a_gate_that_somebody_else_took_off_is_found_out() -> None:
    watch = Watch()
    held = replace(
        held_pod("p", "a", 9, since=150_000), release_annotation="0"
    )  # larger than the node
    watch.see(held)
    watch.see(replace(held, gates=()))
    assert names(watch.all(Bypassed)) == ["p"]


def test_a_gate_taken_off_by_hand_with_the_stamp_of_break_glass_is_no_bypass() -> None:
    watch = Watch()
    held = held_pod("p", "a", 9, since=150_000)
    watch.see(held)
    watch.see(replace(held, gates=(), release_annotation=RELEASE_ADOPTED))
    assert not watch.all(Bypassed)


def released(watch: Watch, pod: Pod) -> Pod:
    """Return a pod as this leader leaves it."""
    watch.see(pod)
    [order] = watch.all(Release)
    return replace(pod, gates=(), release_annotation=order.stamp, node=NODE, phase=Phase.RUNNING)


def test_what_the_leader_released_is_right() -> None:
    watch = Watch()
    pod = held_pod("p", "a", since=150_000)
    after = released(watch, pod)
    watch.see(after)
    watch.hear(ev.ReleaseAnswered(watch.at, pod.uid, ReleaseOutcome.RELEASED))
    watch.see(replace(after, release_annotation=""))  # edited later by a user
    assert not watch.all(Bypassed)


def test_a_gate_that_somebody_took_off_while_we_released_is_found_out() -> None:
    watch = Watch()
    pod = held_pod("p", "a", since=150_000)
    after = released(watch, pod)
    watch.see(replace(after, release_annotation="0"))
    assert names(watch.all(Bypassed)) == ["p"]
    watch.hear(ev.ReleaseAnswered(watch.at, pod.uid, ReleaseOutcome.RELEASED))
    assert not watch.all(Bypassed)


def test_the_stamp_of_a_release_that_was_refused_counts_as_none() -> None:
    watch = Watch()
    pod = held_pod("p", "a", since=150_000)
    after = released(watch, pod)
    watch.hear(ev.ReleaseAnswered(watch.at, pod.uid, ReleaseOutcome.HELD))
    watch.see(after)
    assert names(watch.all(Bypassed)) == ["p"]


@pytest.mark.parametrize(
    "stamp",
    ["0", "0@7", "7", "7.", ".1", "7.x", "07.1", "0.1", "7.0", "7.1 ", "-7.1", "\uff18.1",
     "Adopted", "7.1", "9999999999999.1"],
)  # fmt: skip
def test_a_stamp_that_no_leader_wrote_counts_as_none(stamp: str) -> None:
    watch = Watch(free("p", release=stamp))
    assert names(watch.all(Bypassed)) == ["p"]


@pytest.mark.parametrize("stamp", [f"{EPOCH + 1}.1", "999999999999.1"])
def test_a_stamp_of_a_later_leader_counts_as_none_if_this_leader_goes_on(stamp: str) -> None:
    held = replace(held_pod("q", "a", 9, since=150_000), release_annotation="0")
    watch = Watch(free("p", release=stamp), held)
    watch.see(replace(held, gates=(), release_annotation=stamp.replace(".1", ".2")))
    assert not watch.all(Bypassed)
    watch.see(
        replace(free("p"), release_annotation="6.12")
    )  # too late: it is written with the release only
    assert watch.alarm == watch.now + DOUBT_MS
    watch.wait(DOUBT_MS)
    assert sorted(names(watch.all(Bypassed))) == ["p", "q"]


def test_a_leader_that_was_suspended_does_not_report_or_evict_what_the_next_one_released() -> None:
    held = replace(held_pod("p", "a", 9, since=150_000), release_annotation="0")
    watch = Watch(held, evicts=True)
    watch.now += 20_000
    watch.see(replace(held, gates=(), release_annotation=f"{EPOCH + 1}.1"))
    assert not watch.all(Bypassed) + watch.all(EvictPod) + watch.all(EmitEvent)
    watch.hear(ev.LeadershipLost(watch.at))
    watch.lead(EPOCH + 2)
    found = watch.effects
    watch.wait(DOUBT_MS)
    assert not [e for e in found + watch.effects if isinstance(e, Bypassed | EvictPod | EmitEvent)]


@pytest.mark.parametrize("changes_leader", [False, True])
def test_a_pod_with_a_stamp_of_a_later_leader_that_is_adopted_is_no_bypass(
    changes_leader: bool,
) -> None:
    held = replace(held_pod("p", "a", 9, since=150_000), release_annotation="0")
    watch = Watch(held, evicts=True)
    watch.see(replace(held, gates=(), release_annotation=f"{EPOCH + 1}.1"))
    watch.see(replace(held, gates=(), release_annotation=RELEASE_ADOPTED))
    if changes_leader:
        watch.hear(ev.LeadershipLost(watch.at))
        watch.lead(EPOCH + 2)
    found = watch.effects
    watch.wait(DOUBT_MS)
    assert not [e for e in found + watch.effects if isinstance(e, Bypassed | EvictPod | EmitEvent)]


def test_the_stamp_of_an_earlier_leader_is_believed() -> None:
    watch = Watch(free("p", release="6.12"))
    assert not watch.all(Bypassed)


def test_a_stamp_that_a_pod_was_created_with_counts_as_none() -> None:
    watch = Watch()
    for name, stamp in (("p", "6.12"), ("q", RELEASE_ADOPTED)):
        watch.see(free(name, release=stamp))
        assert names(watch.all(Bypassed)) == [name]
        watch.see(free(name, release=stamp, priority=1))
    watch.wait(1)
    watch.hear(ev.LeadershipLost(watch.at))
    watch.lead(EPOCH + 1)
    assert sorted(names(watch.all(Bypassed))) == ["p", "q"]


def test_a_stamp_that_comes_after_the_gate_is_gone_counts_as_none() -> None:
    watch = Watch(free("p"))
    watch.see(free("p", release="6.12"))
    watch.hear(ev.LeadershipLost(watch.at))
    watch.lead(EPOCH + 1)
    assert names(watch.all(Bypassed)) == ["p"]


def test_of_two_pods_with_one_stamp_the_later_is_the_copy() -> None:
    held = held_pod("copy", "a", 9, since=150_000)
    watch = Watch(free("first", release="6.12"), held)
    watch.see(replace(held, gates=(), release_annotation="6.12"))
    assert names(watch.all(Bypassed)) == ["copy"]


def test_of_two_pods_that_were_there_from_the_start_none_is_called_the_copy() -> None:
    watch = Watch(free("one", release="6.12"), free("two", release="6.12"))
    assert not watch.all(Bypassed)


def test_the_stamp_of_another_pod_of_this_leader_counts_as_none() -> None:
    watch = Watch()
    other = held_pod("other", "a", 9, since=150_000)
    watch.see(other)
    after = released(watch, held_pod("p", "a", since=150_000))
    watch.see(
        replace(other, gates=(), release_annotation=after.release_annotation)
    )  # before its own event
    assert names(watch.all(Bypassed)) == ["other"]
    watch.see(after)
    assert not watch.all(Bypassed)


def test_who_got_round_the_gate_is_evicted_if_the_operator_chose_so() -> None:
    watch = Watch(NEW, evicts=True)
    [order] = watch.all(EvictPod)
    assert order.ref.name == "new"
    assert watch.all(Bypassed)
    watch.hear(ev.PodGone(watch.at, NEW.uid))
    assert [t.reason for t in watch.all(EmitEvent)] == [EventReason.RECLAIMED]
    watch.wait(10 * FIRST)
    assert not watch.all(EvictPod)


def test_an_eviction_that_was_refused_is_asked_for_again_later() -> None:
    watch = Watch(NEW, evicts=True)
    watch.hear(ev.EvictionRefused(watch.at, NEW.uid))
    assert watch.alarm == watch.now + FIRST
    watch.wait(FIRST)
    assert names(watch.all(EvictPod)) == ["new"]
    watch.wait(FIRST)
    assert not watch.all(EvictPod)  # less and less often
    watch.wait(FIRST)
    assert names(watch.all(EvictPod)) == ["new"]


def test_who_leaves_already_is_not_evicted() -> None:
    watch = Watch(replace(NEW, terminating=True), evicts=True)
    assert watch.all(Bypassed)
    assert not watch.all(EvictPod)


def test_a_mirror_pod_is_reported_but_not_evicted_for_it_would_come_back() -> None:
    watch = Watch(replace(NEW, mirror=True), evicts=True)
    assert watch.all(Bypassed)
    assert not watch.all(EvictPod)


def test_who_has_finished_is_not_judged() -> None:
    watch = Watch(replace(NEW, phase=Phase.FINISHED), evicts=True)
    assert not watch.all(Bypassed)


def test_in_observe_everybody_is_adopted_and_nobody_reported() -> None:
    watch = Watch()
    watch.rule(Mode.OBSERVE)
    watch.see(NEW)
    assert names(watch.all(Adopt)) == ["new"]
    watch.see(free("forged", release=RELEASE_ADOPTED))
    watch.wait(1_000_000)
    assert not watch.all(Bypassed)


def test_the_mode_of_the_installation_applies_if_the_policy_sets_none() -> None:
    watch = Watch(mode=Mode.OBSERVE, evicts=True)
    watch.hear(ev.PolicyObserved(watch.at, Policy(), has_mode=False))
    watch.see(NEW)
    assert names(watch.all(Adopt)) == ["new"]
    watch.hear(ev.PolicyObserved(watch.at, Policy(mode=Mode.ENFORCE)))
    watch.hear(ev.PolicyGone(watch.at))
    watch.see(free("later"))
    watch.wait(1_000_000)
    assert not watch.all(Bypassed)
    assert not watch.all(EvictPod)


def test_in_observe_what_is_held_is_still_released() -> None:
    watch = Watch()
    watch.rule(Mode.OBSERVE)
    watch.see(held_pod("p", "a"))
    assert len(watch.all(Release)) == 1


def test_with_observe_evictions_end_and_adoptions_begin() -> None:
    watch = Watch(NEW, evicts=True)
    watch.rule(Mode.OBSERVE)
    assert names(watch.all(Adopt)) == ["new"]
    watch.wait(FIRST)
    assert not watch.all(EvictPod)


def test_who_came_while_observing_or_right_after_is_adopted_in_enforce_too() -> None:
    watch = Watch()
    watch.rule(Mode.OBSERVE)
    watch.now += 60_000
    watch.rule(Mode.ENFORCE)
    watch.see(free("during", since=watch.now - 1000))
    assert names(watch.all(Adopt)) == ["during"]
    watch.see(free("late", since=watch.now + 9_000))  # webhooks receive the change with a delay
    assert names(watch.all(Adopt)) == ["late"]
    watch.see(free("too-late", since=watch.now + 11_000))
    assert names(watch.all(Bypassed)) == ["too-late"]


def test_what_is_remembered_of_a_pod_ends_with_it() -> None:
    watch = Watch(free("p", release="6.12"))
    watch.hear(ev.PodGone(watch.at, Uid("a/p")))
    held = held_pod("q", "a", 9, since=150_000)
    watch.see(held)
    assert held.gates == (GATE,)
    watch.see(replace(held, gates=(), release_annotation="6.12"))
    assert not watch.all(Bypassed)  # the stamp is no longer cached
