"""The engine records each audit entry exactly once, also after a change of leader."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from fractions import Fraction

import pytest

from app.core import events as ev
from app.core.audit.config_changes import is_resource_marker
from app.core.audit.recorder import BACKLOG_BATCH
from app.core.audit_entry import AuditRecord, EntryType
from app.core.effects import ClearAuditMarker, Effect, Intend, PodRef, Release
from app.core.engine import Engine
from app.core.engine_options import EngineOptions
from app.core.model import (
    Millis,
    Node,
    NodeName,
    Phase,
    Pod,
    Pool,
    PoolName,
    Quota,
    ReleaseOutcome,
    Resource,
    Tenant,
    TenantName,
    Uid,
    UserName,
)
from app.core.policy import Mode, Policy
from app.core.quantities import PODS, ManagedResources
from app.core.well_known import GATE, RELEASE_ADOPTED
from app.sim.cluster.virtual_cluster import held_pod
from tests.fakes.fake_recorder import FakeRecorder

GPU = Resource("nvidia.com/gpu")
POOL = PoolName("h100")


class Bench:
    """An engine and its audit records. `notes` are the audit markers of the last leader."""

    def __init__(
        self,
        gpus: int = 8,
        *there: Pod,
        recorder: FakeRecorder | None = None,
        lead: bool = True,
    ) -> None:
        self.engine = Engine(ManagedResources([GPU]))
        self.recorder = recorder or FakeRecorder()
        self.at = Millis(10_000)
        self.orders: dict[Uid, Release] = {}
        self.hear(ev.PoolObserved(self.at, Pool(POOL, {"pool": "h100"})))
        node = Node(NodeName("n"), {"pool": "h100"}, {GPU: gpus, PODS: 100}, True)
        self.hear(ev.NodeObserved(self.at, node))
        self.see(*there)
        for source in ev.WatchedSource:
            self.hear(ev.SourceFresh(self.at, source))
        self.hear(ev.Installed(self.at, Millis(-1)))
        if lead:
            self.lead(1)

    def lead(
        self,
        epoch: int,
        intents: tuple[Intend, ...] = (),
        notes: Mapping[str, str] | None = None,
        *,
        lost: bool = False,
    ) -> None:
        left = None if lost else dict(self.recorder.notes if notes is None else notes)
        self.hear(ev.LeadershipGained(self.at, epoch, left, intents), ev.StoreReady(self.at))

    def hear(self, *events: ev.Event) -> None:
        for event in (*events, ev.Pass(self.at)):
            for effect in self.engine.handle(event):
                self.play(effect)

    def play(self, effect: Effect) -> None:
        if isinstance(effect, AuditRecord):
            self.recorder.record(effect)
        elif isinstance(effect, ClearAuditMarker):
            self.recorder.clear_marker(effect.key)
        elif isinstance(effect, Release):
            self.orders[effect.intent.ref.uid] = effect

    def see(self, *pods: Pod) -> None:
        self.hear(*(ev.PodObserved(self.at, pod) for pod in pods))

    def answer(self, pod: Pod, answer: ReleaseOutcome = ReleaseOutcome.RELEASED) -> None:
        self.hear(ev.ReleaseAnswered(self.at, pod.uid, answer))

    def gone(self, pod: Pod) -> None:
        self.hear(ev.PodGone(self.at, pod.uid))

    def told(self, entry_type: EntryType) -> list[Mapping[str, object]]:
        return [record.facts for record in self.recorder.told(entry_type)]


def released(pod: Pod, stamp: str, **more: object) -> Pod:
    """Return a pod as it is after its release."""
    past = replace(pod, gates=(), release_annotation=stamp, pool=POOL)
    return replace(past, **more)  # type: ignore[arg-type]


def pods(bench: Bench) -> dict[str, str]:
    """Return the audit markers of pods."""
    return {key: text for key, text in bench.recorder.notes.items() if not is_resource_marker(key)}


def next_leader(bench: Bench, *there: Pod, intents: tuple[Intend, ...] = ()) -> Bench:
    """Return an engine that starts with the API server's state and leads after `bench`."""
    other = Bench(8, *there, lead=False)
    other.recorder.notes = dict(bench.recorder.notes)
    other.lead(2, intents)
    return other


def test_held_pod_is_recorded_once_with_its_request() -> None:
    bench = Bench(gpus=0)
    pod = held_pod("p", "team", 2, user="alice", priority=7)
    bench.see(pod)
    bench.see(pod)
    assert bench.told(EntryType.HELD) == [
        {
            "uid": "team/p",
            "namespace": "team",
            "pod": "p",
            "tenant": "ns.team",
            "user": "alice",
            "amounts": {GPU: "2"},
            "priority": 7,
            "since": 0,
        }
    ]


def test_confirmed_release_is_recorded_with_its_reason() -> None:
    bench = Bench()
    pod = held_pod("p", "team", 2)
    bench.see(pod)
    assert not bench.told(EntryType.RELEASED)
    bench.answer(pod)
    [facts] = bench.told(EntryType.RELEASED)
    assert (facts["pool"], facts["stamp"], facts["waited"]) == (POOL, "1.1", 10)
    assert "user: nobody else waits" in str(facts["rule"])
    assert facts["compared"]
    assert not facts.keys() & {"settled", "by", "byHand"}


def test_release_confirmed_by_answer_and_watch_is_recorded_once() -> None:
    for answer_first in (True, False):
        bench = Bench()
        pod = held_pod("p", "team")
        bench.see(pod)
        if answer_first:
            bench.answer(pod)
        bench.see(released(pod, "1.1"))
        bench.answer(pod)
        bench.see(released(pod, "1.1", phase=Phase.FINISHED))
        bench.gone(pod)
        [facts] = bench.told(EntryType.RELEASED)
        assert facts["waited"] == 10


def test_release_is_recorded_if_its_pod_is_gone_before_the_answer() -> None:
    bench = Bench()
    pod = held_pod("p", "team")
    bench.see(pod)
    bench.gone(pod)
    bench.answer(pod)
    assert [facts["stamp"] for facts in bench.told(EntryType.RELEASED)] == ["1.1"]
    assert pod.uid not in bench.recorder.notes


@pytest.mark.parametrize("is_answered_first", [True, False])
def test_a_pod_deleted_during_its_release_did_not_bypass_the_gate(is_answered_first: bool) -> None:
    """Jobs put a finalizer on their pods, so the release of a terminating pod may succeed."""
    bench = Bench()
    pod = held_pod("p", "a")
    bench.see(pod)
    leaving = replace(pod, terminating=True)
    let_go = replace(released(pod, "3.1"), terminating=True)
    if is_answered_first:
        bench.answer(pod)
        bench.see(leaving, let_go)
    else:
        bench.see(leaving, let_go)
        bench.answer(pod)
    bench.gone(pod)
    assert len(bench.told(EntryType.RELEASED)) == 1
    assert bench.told(EntryType.BYPASSED) == []


@pytest.mark.parametrize("answer", [ReleaseOutcome.HELD, ReleaseOutcome.UNSENT])
def test_a_terminating_pod_is_not_released_again(answer: ReleaseOutcome) -> None:
    bench = Bench()
    pod = held_pod("p", "a")
    bench.see(pod)
    bench.see(replace(pod, terminating=True))
    bench.orders.clear()
    bench.answer(pod, answer)
    bench.gone(pod)
    assert bench.orders == {}
    assert bench.told(EntryType.RELEASED) == []


def test_a_terminating_pod_is_not_released_by_the_next_term() -> None:
    bench = Bench()
    pod = held_pod("p", "a")
    bench.see(pod)
    bench.see(replace(pod, terminating=True))
    bench.hear(ev.LeadershipLost(bench.at))
    bench.orders.clear()
    bench.lead(2)
    assert bench.orders == {}


def test_a_standby_that_saw_a_pod_deleted_during_its_release_reports_no_bypass() -> None:
    bench = Bench(lead=False)
    pod = held_pod("p", "a")
    bench.see(pod)
    bench.see(replace(pod, terminating=True))
    bench.see(replace(released(pod, "1.1"), terminating=True))
    bench.lead(2)
    assert bench.told(EntryType.BYPASSED) == []


def test_release_with_a_lost_answer_is_recorded_once_its_pod_finished() -> None:
    bench = Bench()
    pod = held_pod("p", "team")
    bench.see(pod)
    bench.answer(pod, ReleaseOutcome.GONE)
    assert not bench.told(EntryType.RELEASED)
    bench.see(released(pod, "1.1", phase=Phase.FINISHED))
    bench.see(released(pod, "1.1", phase=Phase.FINISHED))
    assert [facts["stamp"] for facts in bench.told(EntryType.RELEASED)] == ["1.1"]


@pytest.mark.parametrize(
    "answer", [ReleaseOutcome.HELD, ReleaseOutcome.UNSENT, ReleaseOutcome.GONE]
)
def test_failed_release_is_not_recorded(answer: ReleaseOutcome) -> None:
    bench = Bench()
    pod = held_pod("p", "team")
    bench.see(pod)
    bench.answer(pod, answer)
    bench.gone(pod)
    assert not bench.told(EntryType.RELEASED)


def test_audit_markers_of_a_deleted_pod_are_removed() -> None:
    bench = Bench()
    pod, other = held_pod("p", "team"), held_pod("q", "team", 99)
    bench.see(pod, other)
    bench.answer(pod)
    assert pods(bench) == {pod.uid: "released", other.uid: "held"}
    bench.gone(pod)
    bench.gone(other)
    assert pods(bench) == {}


def test_new_leader_records_pods_created_while_there_was_no_leader() -> None:
    bench = Bench(gpus=0)
    known, new = held_pod("known", "team", 99), held_pod("new", "team", 99)
    bench.see(known)
    other = next_leader(bench, known, new)
    assert [facts["pod"] for facts in other.told(EntryType.HELD)] == ["new"]


def test_new_leader_records_a_release_that_the_last_leader_did_not() -> None:
    bench = Bench()
    pod = held_pod("p", "team")
    bench.see(pod)
    other = next_leader(bench, released(pod, "1.1"))
    [facts] = other.told(EntryType.RELEASED)
    assert (facts["stamp"], facts["settled"]) == ("1.1", True)
    assert not next_leader(other, released(pod, "1.1")).told(EntryType.RELEASED)


def test_new_leader_does_not_repeat_recorded_entries() -> None:
    bench = Bench()
    three = [held_pod(name, "team") for name in "abc"]
    bench.see(*three)
    for pod in three[:2]:
        bench.answer(pod)
    other = next_leader(bench, *(released(p, f"1.{i}") for i, p in enumerate(three, 1)))
    assert [facts["pod"] for facts in other.told(EntryType.RELEASED)] == ["c"]
    assert not other.told(EntryType.HELD)


def test_new_leader_records_a_release_that_it_observed_as_follower() -> None:
    bench = Bench()
    pod = held_pod("p", "team")
    bench.see(pod)
    other = Bench(8, pod, lead=False)
    other.recorder.notes = dict(bench.recorder.notes)
    other.see(released(pod, "1.1"))
    other.see(released(pod, "1.1", phase=Phase.FINISHED))
    other.gone(pod)
    other.lead(2)
    [facts] = other.told(EntryType.RELEASED)
    assert (facts["stamp"], facts["settled"]) == ("1.1", True)
    assert pods(other) == {}


def test_begun_release_of_a_deleted_pod_is_recorded_as_uncertain() -> None:
    bench = Bench()
    pod = held_pod("p", "team")
    bench.see(pod)
    other = next_leader(bench, intents=(bench.orders[pod.uid].intent,))
    [facts] = other.told(EntryType.RELEASED)
    assert (facts["stamp"], facts["certain"]) == ("1.1", False)
    assert pods(other) == {}


def test_held_pod_deleted_without_a_leader_is_not_recorded_as_released() -> None:
    bench = Bench(gpus=0)
    bench.see(held_pod("p", "team"))
    other = next_leader(bench)
    assert not other.recorder.told(EntryType.RELEASED)
    assert pods(other) == {}


def test_one_entry_summarizes_the_pods_if_the_audit_markers_were_lost() -> None:
    bench = Bench(lead=False)
    many = [held_pod(f"p{i}", "team", 99) for i in range(50)]
    bench.see(*many, released(held_pod("q", "team"), "1.1"))
    bench.lead(2, lost=True)
    [facts] = bench.told(EntryType.HELD)
    assert (facts["waiting"], facts["using"]) == (50, 1)
    assert not bench.told(EntryType.RELEASED)
    assert len(list(bench.engine.audit_markers())) == 52  # the pods and the one Pool
    bench.see(held_pod("later", "team", 99))
    assert len(bench.told(EntryType.HELD)) == 2


def test_new_leader_records_changes_first_and_many_pods_in_batches() -> None:
    many = [held_pod(f"p{number:04}", "team", 99) for number in range(2 * BACKLOG_BATCH + 1)]
    bench = Bench(8, *many, lead=False)
    bench.hear(ev.TenantObserved(bench.at, tenant()))
    bench.lead(1)
    told = [record.entry_type for record in bench.recorder.records]
    assert told == [EntryType.CHANGED] * 2 + [EntryType.HELD] * BACKLOG_BATCH
    for _ in range(3):
        bench.at = Millis(bench.at + 1000)
        bench.hear()
    assert len({facts["pod"] for facts in bench.told(EntryType.HELD)}) == len(many)
    assert len(bench.told(EntryType.HELD)) == len(many)


def test_held_entry_of_a_pod_precedes_its_other_entries() -> None:
    many = [held_pod(f"p{number:04}", "team", 99) for number in range(BACKLOG_BATCH + 4)]
    bench = Bench(8, *many, lead=False)
    bench.lead(1)
    by_hand, ended, deleted, bypassed = many[-4:]
    past = replace(by_hand, gates=(), release_annotation=RELEASE_ADOPTED, gate_removed_by="root")
    bench.see(past, released(bypassed, ""))
    bench.see(released(ended, "", phase=Phase.FINISHED))
    bench.gone(deleted)
    entry_types = {
        pod.name: [r.entry_type for r in bench.recorder.records if r.facts.get("pod") == pod.name]
        for pod in many[-4:]
    }
    assert entry_types[by_hand.name] == [EntryType.HELD, EntryType.RELEASED]
    assert (
        entry_types[bypassed.name]
        == entry_types[ended.name]
        == [EntryType.HELD, EntryType.BYPASSED]
    )
    assert entry_types[deleted.name] == [EntryType.HELD]
    assert bench.told(EntryType.RELEASED)[0]["by"] == "root"


def evicting() -> tuple[Bench, Pod]:
    """Return a leader that has ordered the eviction of a bypass pod."""
    bench = Bench(lead=False)
    bench.engine = Engine(ManagedResources([GPU]), EngineOptions(evicts_bypassed=True))
    for source in ev.WatchedSource:
        bench.hear(ev.SourceFresh(bench.at, source))
    bench.hear(ev.Installed(bench.at, Millis(-1)))
    bench.lead(1)
    pod = replace(held_pod("p", "team"), gates=(), node=NodeName("n"), phase=Phase.RUNNING)
    bench.see(pod)
    bench.at = Millis(20_000)
    bench.hear()
    return bench, pod


def test_accepted_eviction_is_recorded_once() -> None:
    bench, pod = evicting()
    assert not bench.told(EntryType.RECLAIMED)
    bench.hear(ev.EvictionAccepted(bench.at, pod.uid))
    assert [facts["pod"] for facts in bench.told(EntryType.RECLAIMED)] == ["p"]
    bench.see(replace(pod, terminating=True))
    bench.gone(pod)
    assert len(bench.told(EntryType.RECLAIMED)) == 1


def test_eviction_is_recorded_once_if_its_pod_is_gone_before_the_answer() -> None:
    bench, pod = evicting()
    bench.gone(pod)
    bench.hear(ev.EvictionAccepted(bench.at, pod.uid))
    assert len(bench.told(EntryType.RECLAIMED)) == 1


def test_refused_eviction_is_not_recorded() -> None:
    bench, pod = evicting()
    bench.hear(ev.EvictionRefused(bench.at, pod.uid))
    bench.gone(pod)
    assert not bench.told(EntryType.RECLAIMED)


def test_follower_records_nothing() -> None:
    bench = Bench(lead=False)
    bench.see(held_pod("p", "team"), released(held_pod("q", "team"), "1.1"))
    assert bench.recorder.records == []


def test_release_by_hand_is_recorded_with_the_name_from_the_webhook() -> None:
    bench = Bench(gpus=0)
    pod = held_pod("p", "team")
    bench.see(pod)
    bench.see(
        replace(
            pod, gates=(), release_annotation=RELEASE_ADOPTED, gate_removed_by="root@example.com"
        )
    )
    [facts] = bench.told(EntryType.RELEASED)
    assert (facts["byHand"], facts["by"]) == (True, "root@example.com")
    assert not bench.told(EntryType.ADOPTED)


def test_release_by_hand_without_the_webhook_is_recorded_as_by_unknown() -> None:
    bench = Bench(gpus=0)
    pod = held_pod("p", "team")
    bench.see(pod)
    other = next_leader(bench, replace(pod, gates=(), release_annotation=RELEASE_ADOPTED))
    [facts] = other.told(EntryType.RELEASED)
    assert facts["by"] == "unknown"


def test_pod_older_than_the_installation_is_recorded_as_adopted() -> None:
    pod = replace(held_pod("p", "team"), gates=(), release_annotation=RELEASE_ADOPTED)
    bench = Bench(8, pod, lead=False)
    bench.lead(1)
    assert [facts["pod"] for facts in bench.told(EntryType.ADOPTED)] == ["p"]


def test_annotations_written_in_observe_mode_prove_no_release_by_hand() -> None:
    """Any user may write the annotations in Observe mode."""
    bench = Bench(lead=False)
    bench.hear(ev.PolicyObserved(bench.at, Policy(mode=Mode.OBSERVE)))
    bench.lead(1)
    for name, phase in (("running", Phase.RUNNING), ("over", Phase.FINISHED)):
        pod = held_pod(name, "team", since=10_001)
        pod = replace(
            pod,
            gates=(),
            release_annotation=RELEASE_ADOPTED,
            gate_removed_by="olga",
            node=NodeName("n"),
        )
        bench.see(pod)
        bench.see(replace(pod, phase=phase))
        other = next_leader(bench, replace(pod, phase=phase))
        assert not other.told(EntryType.RELEASED)
    assert not bench.told(EntryType.RELEASED)
    assert "running" in [facts["pod"] for facts in bench.told(EntryType.ADOPTED)]


def test_finished_pod_without_a_marker_is_not_recorded_as_released_by_hand() -> None:
    pod = replace(
        held_pod("p", "team"), gates=(), release_annotation=RELEASE_ADOPTED, gate_removed_by="olga"
    )
    bench = Bench(8, replace(pod, phase=Phase.FINISHED), lead=False)
    bench.lead(1)
    assert not bench.told(EntryType.RELEASED)


def test_bypass_is_recorded_once_over_all_terms() -> None:
    bench = Bench()
    pod = replace(held_pod("p", "team"), gates=(), release_annotation="", gate_removed_by="root")
    bench.see(pod)
    [facts] = bench.told(EntryType.BYPASSED)
    assert facts["by"] == "root"
    other = next_leader(bench, pod)
    assert not other.told(EntryType.BYPASSED)


def test_entries_are_small() -> None:
    bench = Bench()
    long = "x" * 63
    pod = replace(held_pod("p" * 253, long, user="u" * 253), uid=Uid("u" * 36))
    bench.see(pod)
    bench.answer(pod)
    for record in bench.recorder.records:
        assert len(json.dumps(record.facts)) < 2000
    usual = Bench()
    usual.see(held_pod("train-7f9c", "team", user="alice@example.com"))
    usual.answer(held_pod("train-7f9c", "team"))
    assert max(len(json.dumps(r.facts)) for r in usual.recorder.records) < 1000


def tenant(**more: object) -> Tenant:
    return replace(Tenant(TenantName("a"), Millis(0)), **more)  # type: ignore[arg-type]


def test_tenant_change_is_recorded_with_before_and_after() -> None:
    bench = Bench()
    first = tenant(weight=Fraction(1), user_weights={UserName("al"): Fraction(1)})
    quotas = {POOL: Quota({GPU: 8}, {})}
    bench.hear(ev.TenantObserved(bench.at, first, changed_by="root"))
    bench.hear(ev.TenantObserved(bench.at, first, 7, changed_by="root"))
    second = replace(first, weight=Fraction(5, 2), user_weights={}, quotas=quotas, generation=2)
    bench.hear(ev.TenantObserved(bench.at, second, changed_by="alice"))
    bench.hear(ev.TenantGone(bench.at, first.name))
    made, changed, deleted = map(dict, bench.told(EntryType.CHANGED)[1:])
    assert (made["did"], made["by"]) == ("made", "root")
    assert made["digestAfter"] == changed.pop("digestBefore")
    assert changed.pop("digestAfter") == deleted["digestBefore"] != made["digestAfter"]
    assert changed == {
        "kind": "Tenant",
        "name": "a",
        "did": "changed",
        "by": "alice",
        "fields": {
            "quotas.h100.guarantee.nvidia.com/gpu": {"after": "8"},
            "users.al": {"before": "1"},
            "weight": {"before": "1", "after": "2.5"},
        },
    }
    assert (deleted["did"], deleted["by"]) == ("deleted", "unknown")
    assert "Tenant/a" not in bench.recorder.notes


def test_a_mode_that_is_no_longer_stated_is_recorded() -> None:
    """Without a mode in the Policy the mode of the chart applies, which may be Observe."""
    bench = Bench()
    bench.hear(ev.PolicyObserved(bench.at, Policy(mode=Mode.OBSERVE)))
    bench.hear(ev.PolicyObserved(bench.at, Policy(mode=Mode.ENFORCE)))
    bench.hear(ev.PolicyObserved(bench.at, Policy(), has_mode=False))
    changes = [entry["fields"] for entry in bench.told(EntryType.CHANGED)[-3:]]
    assert changes == [
        {"mode": {"after": "Observe"}},
        {"mode": {"before": "Observe", "after": "Enforce"}},
        {"mode": {"before": "Enforce"}},
    ]


def test_change_without_a_leader_is_recorded_by_the_next_leader() -> None:
    bench = Bench()
    bench.hear(ev.PolicyObserved(bench.at, Policy()))
    bench.hear(ev.TenantObserved(bench.at, tenant()))
    other = Bench(lead=False)
    other.recorder.notes = dict(bench.recorder.notes)
    policy = Policy(history=Fraction(1, 2), min_runtime=Millis(90_000), backfill=False)
    other.hear(ev.PolicyObserved(other.at, policy, changed_by="root"))
    other.lead(2)
    gone, changed = other.told(EntryType.CHANGED)
    assert (gone["kind"], gone["did"]) == ("Tenant", "deleted")
    assert changed["by"] == "root"
    assert changed["fields"] == {
        "backfill": {"after": "false"},
        "history": {"after": "0.5"},
        "minRuntime": {"after": "90s"},
    }


def test_a_long_change_is_cut_and_counted() -> None:
    bench = Bench()
    users = {UserName(f"user-{i}"): Fraction(i + 1) for i in range(1000)}
    bench.hear(ev.TenantObserved(bench.at, tenant(user_weights=users)))
    facts = bench.told(EntryType.CHANGED)[-1]
    assert isinstance(facts["fields"], dict)
    assert facts["more"] == 1001 - len(facts["fields"])
    assert len(json.dumps(facts)) < 3000


def test_important_changes_are_recorded_before_many_user_weights() -> None:
    bench = Bench()
    users = {UserName(f"user-{i:03}@a-long-company.example"): Fraction(1) for i in range(25)}
    bench.hear(ev.TenantObserved(bench.at, tenant(user_weights=users)))
    after = tenant(
        user_weights=dict.fromkeys(users, Fraction(2)),
        weight=Fraction(1000),
        quotas={POOL: Quota({GPU: 8}, {GPU: 9})},
    )
    bench.hear(ev.TenantObserved(bench.at, after))
    facts = bench.told(EntryType.CHANGED)[-1]
    assert isinstance(facts["fields"], dict)
    guarantee, limit = (f"quotas.h100.{each}.nvidia.com/gpu" for each in ("guarantee", "limit"))
    assert list(facts["fields"])[:3] == ["weight", guarantee, limit]
    assert facts["more"]


def test_one_new_name_in_a_long_list_is_recorded() -> None:
    bench = Bench()
    many = tuple(f"namespace-{number:03}" for number in range(20))
    bench.hear(ev.TenantObserved(bench.at, tenant(namespaces=many)))
    bench.hear(ev.TenantObserved(bench.at, tenant(namespaces=(*many[1:], "stolen"))))
    bench.hear(ev.TenantObserved(bench.at, tenant(namespaces=("stolen", *many[1:]))))
    first, second = (facts["fields"] for facts in bench.told(EntryType.CHANGED)[-2:])
    assert first == {"namespaces": {"added": "stolen", "removed": "namespace-000"}}
    assert isinstance(second, dict)
    assert set(second["namespaces"]) == {"before", "after"}


def test_change_that_is_cut_from_the_entry_changes_the_digest() -> None:
    bench = Bench()
    users = {UserName(f"user-{i:03}"): Fraction(1) for i in range(100)}
    for last in (1, 2):
        users[UserName("zoe")] = Fraction(last)
        more = {UserName(f"user-{i:03}"): Fraction(1 + last) for i in range(100)}
        bench.hear(ev.TenantObserved(bench.at, tenant(user_weights={**users, **more})))
    made, changed = bench.told(EntryType.CHANGED)[-2:]
    assert "zoe" not in str(changed["fields"])
    assert changed["digestBefore"] == made["digestAfter"] != changed["digestAfter"]


def test_outdated_observation_of_a_held_pod_is_not_recorded_again() -> None:
    bench = Bench()
    pod = held_pod("p", "team")
    bench.see(pod)
    bench.answer(pod)
    bench.see(replace(pod, gates=(GATE,)))
    assert len(bench.told(EntryType.HELD)) == len(bench.told(EntryType.RELEASED)) == 1


def test_intent_without_a_charge_causes_no_second_release_entry() -> None:
    """The chain is ahead of the store: the charge that settles the intent was never written."""
    bench = Bench()
    pod = held_pod("p", "team")
    bench.see(pod)
    bench.answer(pod)
    intent = bench.orders[pod.uid].intent
    assert not next_leader(bench, intents=(intent,)).told(EntryType.RELEASED)
    bench.gone(pod)
    assert not next_leader(bench, intents=(intent,)).told(EntryType.RELEASED)
    assert PodRef(pod.uid, "team", "p") == intent.ref
