"""Events of held pods."""

from __future__ import annotations

from dataclasses import replace

from app.core import events as ev
from app.core.audit_entry import EntryType
from app.core.effects import EmitEvent, EventReason
from app.core.model import Millis
from app.sim.cluster.virtual_cluster import held_pod
from tests.support.bypass_watch import EPOCH, Watch
from tests.support.call_counts import calls_of
from tests.support.gang_driver import Lead, member

LARGE = held_pod("p", "a", 9)
"""Larger than the only node."""


def held(watch: Watch) -> list[str]:
    return [each.ref.name for each in watch.all(EmitEvent) if each.reason is EventReason.HELD]


def test_pod_created_while_there_was_no_leader_gets_its_event() -> None:
    watch = Watch(LARGE, lead=False)
    watch.lead(EPOCH)
    assert held(watch) == ["p"]
    watch.see(replace(LARGE, priority=3))
    assert held(watch) == []


def test_a_pod_that_an_earlier_leader_recorded_gets_no_second_event() -> None:
    watch = Watch(LARGE, lead=False)
    watch.lead(EPOCH, {LARGE.uid: EntryType.HELD.value})
    assert held(watch) == []


def test_a_new_term_repeats_no_event() -> None:
    watch = Watch(LARGE)
    assert held(watch) == ["p"]
    watch.hear(ev.LeadershipLost(watch.at))
    watch.lead(EPOCH + 1, {LARGE.uid: EntryType.HELD.value})
    assert held(watch) == []


def test_a_recent_pod_gets_its_event_from_the_next_leader_too() -> None:
    """The last leader may have ended before it sent the event."""
    watch = Watch(lead=False)
    watch.see(replace(LARGE, created_at=Millis(watch.at - 1_000)))
    watch.lead(EPOCH, {LARGE.uid: EntryType.HELD.value})
    assert held(watch) == ["p"]


def test_event_cost_per_pod_does_not_grow_with_the_gang_size() -> None:
    """Each pod of a gang that becomes complete gets an event. The gang is compared once."""

    def calls_per_pod(pods: int) -> float:
        lead = Lead()
        lead.see(*(member(number, pods) for number in range(pods - 1)))
        last = member(pods - 1, pods)
        return calls_of(lambda: lead.see(last)) / pods

    assert calls_per_pod(200) < 2 * calls_per_pod(20)


def test_questions_about_pods_of_a_large_gang_compare_it_once() -> None:
    lead = Lead()
    pods = [member(number, 400) for number in range(400)]
    lead.see(*pods)

    def ask() -> None:
        lead.engine.queries.explain_wait(pods[7].uid)

    lead.engine.queries.invalidate_cache()  # as after any event
    first = calls_of(ask)
    assert calls_of(ask) < first / 4
