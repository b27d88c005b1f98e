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


def test_pod_older_than_the_installation_is_adopted_and_charged() -> None:
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


def test_adoption_is_repeated_until_it_is_observed() -> None:
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


def test_pod_in_no_pool_is_adopted_without_a_pool_label() -> None:
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


def test_each_term_reports_a_bypass_that_the_audit_chain_does_not_show() -> None:
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


def test_no_pod_is_checked_before_the_installation_time_is_known() -> None:
    watch = Watch(OLD, NEW, since=None)
    assert not watch.all(Bypassed) + watch.all(Adopt)
    watch.hear(ev.Installed(watch.at, Millis(SINCE)))
    assert names(watch.all(Bypassed)) == ["new"]
    assert names(watch.all(Adopt)) == ["old"]


def test_standby_checks_no_pods() -> None:
    watch = Watch(OLD, NEW, lead=False)
    watch.wait(FIRST)
    assert watch.effects == []


def test_gate_removed_by_another_client_is_reported() -> None:
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


def test_pod_that_the_leader_released_is_no_bypass() -> None:
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
def test_stamp_of_a_later_leader_is_invalid_if_this_leader_still_leads(stamp: str) -> None:
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


def test_suspended_leader_does_not_report_or_evict_releases_of_its_successor() -> None:
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


def test_stamp_of_an_earlier_leader_is_valid() -> None:
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


def test_stamp_added_after_the_gate_was_removed_is_invalid() -> None:
    watch = Watch(free("p"))
    watch.see(free("p", release="6.12"))
    watch.hear(ev.LeadershipLost(watch.at))
    watch.lead(EPOCH + 1)
    assert names(watch.all(Bypassed)) == ["p"]


def test_later_of_two_pods_with_one_stamp_is_reported() -> None:
    held = held_pod("copy", "a", 9, since=150_000)
    watch = Watch(free("first", release="6.12"), held)
    watch.see(replace(held, gates=(), release_annotation="6.12"))
    assert names(watch.all(Bypassed)) == ["copy"]


def test_pods_with_one_stamp_are_not_reported_if_both_existed_at_the_start() -> None:
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


def test_bypass_is_evicted_if_the_operator_enabled_it() -> None:
    watch = Watch(NEW, evicts=True)
    [order] = watch.all(EvictPod)
    assert order.ref.name == "new"
    assert watch.all(Bypassed)
    watch.hear(ev.PodGone(watch.at, NEW.uid))
    assert [t.reason for t in watch.all(EmitEvent)] == [EventReason.RECLAIMED]
    watch.wait(10 * FIRST)
    assert not watch.all(EvictPod)


def test_refused_eviction_is_retried_after_a_growing_delay() -> None:
    watch = Watch(NEW, evicts=True)
    watch.hear(ev.EvictionRefused(watch.at, NEW.uid))
    assert watch.alarm == watch.now + FIRST
    watch.wait(FIRST)
    assert names(watch.all(EvictPod)) == ["new"]
    watch.wait(FIRST)
    assert not watch.all(EvictPod)  # less and less often
    watch.wait(FIRST)
    assert names(watch.all(EvictPod)) == ["new"]


def test_terminating_pod_is_not_evicted() -> None:
    watch = Watch(replace(NEW, terminating=True), evicts=True)
    assert watch.all(Bypassed)
    assert not watch.all(EvictPod)


def test_mirror_pod_is_reported_but_not_evicted() -> None:
    watch = Watch(replace(NEW, mirror=True), evicts=True)
    assert watch.all(Bypassed)
    assert not watch.all(EvictPod)


def test_finished_pod_is_not_reported() -> None:
    watch = Watch(replace(NEW, phase=Phase.FINISHED), evicts=True)
    assert not watch.all(Bypassed)


def test_observe_mode_adopts_all_pods_and_reports_none() -> None:
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


def test_observe_mode_still_releases_held_pods() -> None:
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


def test_pod_created_during_or_shortly_after_observe_mode_is_adopted() -> None:
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


def test_stamp_of_a_deleted_pod_is_removed_from_the_cache() -> None:
    watch = Watch(free("p", release="6.12"))
    watch.hear(ev.PodGone(watch.at, Uid("a/p")))
    held = held_pod("q", "a", 9, since=150_000)
    watch.see(held)
    assert held.gates == (GATE,)
    watch.see(replace(held, gates=(), release_annotation="6.12"))
    assert not watch.all(Bypassed)  # the stamp is no longer cached
