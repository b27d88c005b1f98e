"""Audit recorder: records each event once, across leader terms.

The audit marker of a pod has its last recorded state and is stored beside the chain. A new leader
records the events that the last leader did not record. A follower records no events.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from itertools import chain, islice

from app.core.audit.config_changes import (
    ConfigChanges,
    Configured,
    is_resource_marker,
    marker_key,
    spec_of,
)
from app.core.audit.fields import (
    adoption_facts,
    amounts_as_text,
    eviction_facts,
    intent_facts,
    pod_identity,
    release_facts,
    selection_facts,
)
from app.core.audit_entry import UNKNOWN, AuditRecord, EntryType, Fact
from app.core.effects import (
    Bypassed,
    ClaimDeleted,
    ClearAuditMarker,
    Effect,
    EvictForReclaim,
    EvictPod,
    Intend,
    PodRef,
    ReclaimCause,
    Release,
)
from app.core.fairshare.tenants import TenantDirectory
from app.core.lifecycle.bypass_detection import BypassDetector, Provenance
from app.core.lifecycle.lost_work import device_time_lost_by
from app.core.lifecycle.pod_record import PodRecord
from app.core.lifecycle.pod_registry import PodRegistry
from app.core.lifecycle.pod_state import PodState
from app.core.model import Millis, Pod, ReleaseOutcome, TenantName, Uid
from app.core.podspec.pod_groups import UNBOUNDED
from app.core.policy import Policy
from app.core.scheduling.pending_evictions import reclaim_record_of
from app.core.scheduling.reclaim_cooldown import ReclaimCooldowns, is_cooldown_marker
from app.core.well_known import GATE, RELEASE_ADOPTED

HELD, RELEASED, BYPASSED = EntryType.HELD.value, EntryType.RELEASED.value, EntryType.BYPASSED.value
UNGATED_MARKERS = frozenset((RELEASED, EntryType.ADOPTED.value))
"""Markers of pods with a right to be ungated. Marks of reported claims may follow."""

MOST_MARKS = 16
"""Maximum number of reported claims in the marker of one pod."""

SEPARATOR = ";"
"""Separates the state of a pod and the marks of its reported claims."""

MOST_ENDED = 4096
"""Maximum number of pods that ended while this replica followed, and may need a record."""

BACKLOG_BATCH = 1000
"""Number of unrecorded pods that a new leader records at once ..."""
BACKLOG_PAUSE_MS = 1000
"""... and pause until the next batch. The audit writer has capacity for ten batches."""

MARKERS_LOST = (
    "Redis had lost the records of the existing pods: entries about them since the entry before "
    "this one may be missing"
)

_STAMP = re.compile(r"[1-9]\d{0,11}\.[1-9]\d{0,14}", re.ASCII)


class AuditRecorder:
    """Collects audit records and marker removals. `drain_effects` returns them."""

    def __init__(
        self,
        registry: PodRegistry,
        tenancy: TenantDirectory,
        bypasses: BypassDetector,
        cooldowns: ReclaimCooldowns,
        *,
        is_disabled: bool = False,
    ) -> None:
        """`is_disabled`: no event is recorded, because there is no audit chain."""
        self._registry = registry
        self._tenancy = tenancy
        self._bypasses = bypasses
        self._cooldowns = cooldowns
        self._config_changes = ConfigChanges()
        self._is_disabled = is_disabled
        self._is_leader = False
        self._effects: list[Effect] = []
        self._requested_releases: dict[Uid, Release] = {}
        self._requested_evictions: dict[Uid, EvictForReclaim | EvictPod] = {}
        self._finished: dict[Uid, Pod] = {}
        """Ungated pods that are finished and not deleted yet. Their markers stay."""
        self._finished_with_marker: set[Uid] = set()
        self._ended_while_following: dict[Uid, Pod] = {}
        self._unrecorded_held: dict[Uid, PodRecord] = {}
        """Pods that waited at the start of the term and have no record."""
        self._unrecorded_ungated: dict[Uid, PodRecord] = {}
        """Pods that were ungated at the start of the term and have no record."""
        self._next_backlog_at = Millis(0)

    @property
    def _now(self) -> Millis:
        return self._registry.usage.now

    def start_term(self, markers: Mapping[str, str] | None, intents: Iterable[Intend]) -> None:
        """Start a leader term: record the events that no leader has recorded."""
        if self._is_disabled:
            return
        self._is_leader = True
        if markers is None:
            self._mark_all_recorded()
        else:
            self._cooldowns.restore_audit_markers(markers, self._now)
            self._restore_audit_markers(markers, {intent.ref.uid: intent for intent in intents})
        self._ended_while_following.clear()
        self._effects += self._config_changes.start_term(self._now, markers)
        for uid, tracked in self._registry.pods.items():
            waits = tracked.state is not PodState.USING
            if not _is_recorded_ungated(tracked.last_audit_entry) and not (
                waits and tracked.last_audit_entry
            ):
                (self._unrecorded_held if waits else self._unrecorded_ungated)[uid] = tracked
        self._next_backlog_at = self._now

    def unrecorded_held(self) -> list[PodRecord]:
        """Return the pods that were held at the start of the term, and that no leader recorded."""
        return list(self._unrecorded_held.values())

    def record_backlog(self) -> None:
        """Clear expired cooldown markers. Record some pods that were unrecorded at the start."""
        over = self._cooldowns.expire(self._now)
        self._effects += [ClearAuditMarker(key) for key in over if self._is_leader]
        if self._now < self._next_backlog_at:
            return
        unrecorded = chain(self._unrecorded_held, self._unrecorded_ungated)
        if batch := list(islice(unrecorded, BACKLOG_BATCH)):
            self._next_backlog_at = Millis(self._now + BACKLOG_PAUSE_MS)
            for uid in batch:
                self._record_from_backlog(uid)

    def end_term(self) -> None:
        """End a leader term: the pods themselves show the outcome of pending requests."""
        self._is_leader = False
        self._config_changes.end_term()
        self._finished_with_marker.clear()
        self._unrecorded_held.clear()
        self._unrecorded_ungated.clear()
        self._requested_releases.clear()
        self._requested_evictions.clear()
        for tracked in self._registry.pods.values():
            tracked.last_audit_entry = ""

    def drain_effects(self) -> list[Effect]:
        """Return the collected effects once."""
        out, self._effects = self._effects, []
        return out

    def record_pod_held(self, tracked: PodRecord) -> None:
        """Record a pod that waits."""
        if not self._is_leader or tracked.last_audit_entry:
            return
        pod = tracked.pod
        facts = pod_identity(pod, pod.user, self._tenant(pod)) | {
            "amounts": amounts_as_text(pod.demand),
            "priority": pod.priority,
            "since": pod.created_at,
        }
        if (gang := tracked.gang) is not None:
            size = gang.min_count if gang.size == UNBOUNDED else gang.size
            facts |= {"gang": gang.name} | ({"gangSize": size} if size else {})
        self._record_and_mark(tracked, EntryType.HELD, facts)

    def record_effects(self, effects: Iterable[Effect]) -> None:
        """Store requested releases and evictions for their reason, and record bypasses."""
        for effect in effects if self._is_leader else ():
            match effect:
                case Release():
                    self._requested_releases[effect.intent.ref.uid] = effect
                case EvictForReclaim() | EvictPod():
                    self._requested_evictions[effect.ref.uid] = effect
                case Bypassed():
                    self._record_bypass(effect)
                case ClaimDeleted():
                    facts = {"claim": effect.claim, "claimUid": effect.claim_uid}
                    self._record_claim(effect, EntryType.CLAIM_DELETED, facts)
                case _:
                    pass

    def record_pod_ungated(self, tracked: PodRecord, right: Provenance) -> None:
        """Record an ungated pod with its right."""
        self._record_from_backlog(tracked.pod.uid)
        if not self._is_leader or _is_recorded_ungated(tracked.last_audit_entry):
            return
        pod = tracked.pod
        if right is Provenance.ADOPTED and not was_ungated_by_hand(pod, tracked.last_audit_entry):
            self._record_and_mark(
                tracked, EntryType.ADOPTED, adoption_facts(pod, self._tenant(pod), tracked.pool)
            )
        else:
            order = self._requested_releases.pop(pod.uid, None)
            self._record_and_mark(
                tracked, EntryType.RELEASED, release_facts(pod, self._tenant(pod), order, self._now)
            )

    def record_release_outcome(self, uid: Uid, answer: ReleaseOutcome) -> None:
        """Record an answered release, unless an observation has already shown its outcome."""
        order = self._requested_releases.get(uid)
        if order is None or (answer is ReleaseOutcome.GONE and uid in self._registry.pods):
            return  # the pod may be finished: its last observation shows the outcome
        self._record_from_backlog(uid)
        del self._requested_releases[uid]
        if answer is ReleaseOutcome.RELEASED:
            tracked = self._registry.pods.get(uid)
            facts = intent_facts(order.intent) | selection_facts(order, self._now)
            if tracked is not None:
                self._record_and_mark(tracked, EntryType.RELEASED, facts)
            else:
                self._add_record(EntryType.RELEASED, facts)  # no object is left for a marker

    def record_eviction_accepted(self, uid: Uid) -> None:
        """Record an accepted eviction."""
        eviction, tracked = self._requested_evictions.pop(uid, None), self._registry.pods.get(uid)
        if self._is_leader and eviction is not None and tracked is not None:
            self._record_eviction(tracked, eviction)

    def record_pod_finished(self, pod: Pod, *, live: bool) -> None:
        """Record how a pod was released that is finished or about to be deleted."""
        if self._is_disabled:
            return
        self._record_from_backlog(pod.uid)
        if GATE in pod.gates:
            return
        known, tracked = pod.uid in self._finished, self._registry.pods.get(pod.uid)
        self._finished[pod.uid] = pod
        if not self._is_leader or (known and tracked is None):
            return
        noted = tracked.last_audit_entry if tracked is not None else ""
        if tracked is not None:
            tracked.last_audit_entry = ""  # the marker stays until the pod is deleted
        if not _is_recorded_ungated(noted) and noted != BYPASSED:
            order = self._requested_releases.pop(pod.uid, None)
            ordered = order is not None and order.stamp == pod.release_annotation
            if ordered or self._bypasses.provenance_of_pod(pod, live=live) is not None:
                self._record_finished_release(pod, noted, order)
                return
            if tracked is None:
                return
            facts = pod_identity(pod, pod.user, self._tenant(pod))
            facts |= {"stamp": pod.release_annotation, "by": pod.gate_removed_by or UNKNOWN}
            self._add_record(EntryType.BYPASSED, facts, ((pod.uid, BYPASSED),))
        self._finished_with_marker.add(pod.uid)

    def record_pod_untracked(self, tracked: PodRecord) -> None:
        """Process a tracked pod that is finished or gone."""
        eviction = self._requested_evictions.pop(tracked.pod.uid, None)
        if not self._is_leader:
            return
        if eviction is not None and tracked.eviction_reason:
            self._record_eviction(tracked, eviction)
        if tracked.last_audit_entry:
            tracked.last_audit_entry = ""
            self._effects.append(ClearAuditMarker(tracked.pod.uid))

    def record_pod_deleted(self, uid: Uid) -> None:
        """Process a pod that no longer exists. Call it before the pod is removed."""
        if self._is_disabled:
            return
        self._record_from_backlog(uid)
        pod, tracked = self._finished.pop(uid, None), self._registry.pods.get(uid)
        if self._is_leader:
            if uid in self._finished_with_marker:
                self._finished_with_marker.discard(uid)
                self._effects.append(ClearAuditMarker(uid))
            if tracked is None:
                self._requested_releases.pop(uid, None)
        elif pod is not None:
            self._keep_ended_pod(pod)
        elif tracked is not None and tracked.state is PodState.USING:
            self._keep_ended_pod(tracked.pod)

    def record_config(self, config: Configured, by: str, *, has_mode: bool = True) -> None:
        """Record the observed state of a resource. `by` is its author; "" if unknown.

        `has_mode`: whether a Policy sets the mode.
        """
        name = "default" if isinstance(config, Policy) else config.name
        key = marker_key(type(config), name)
        self._effects += self._config_changes.observe_resource(
            self._now, key, spec_of(config, has_mode=has_mode), by
        )

    def record_config_deleted(self, kind: type[Configured], name: str = "default") -> None:
        """Record that a resource was deleted."""
        self._effects += self._config_changes.record_deleted(self._now, marker_key(kind, name))

    def bypassed_pods(self) -> frozenset[Uid]:
        """Return the pods that the chain reports as bypasses as a whole."""
        return frozenset(
            u for u, t in self._registry.pods.items() if t.last_audit_entry == BYPASSED
        )

    def marked_claims(self) -> dict[Uid, frozenset[Uid]]:
        """Return the claims that the chain reports, by pod."""
        marks = (
            (u, t.last_audit_entry.split(SEPARATOR)[1:]) for u, t in self._registry.pods.items()
        )
        return {u: frozenset(Uid(m.partition(":")[2]) for m in each) for u, each in marks if each}

    def audit_markers(self) -> Iterator[tuple[str, str]]:
        """Yield the audit markers of all existing objects."""
        yield from self._config_changes.audit_markers()
        yield from self._cooldowns.audit_markers()
        for tracked in self._registry.pods.values():
            if tracked.last_audit_entry:
                yield tracked.pod.uid, tracked.last_audit_entry
        for uid in self._finished_with_marker:
            yield uid, RELEASED

    def _record_from_backlog(self, uid: Uid) -> None:
        """Record the state of a pod at the start of the term, before its later events."""
        held = self._unrecorded_held.pop(uid, None)
        if held is not None:
            self.record_pod_held(held)
            return
        ungated = self._unrecorded_ungated.pop(uid, None)
        right = self._bypasses.recorded_provenance(uid)
        if ungated is not None and right is not None:
            self.record_pod_ungated(ungated, right)

    def _record_eviction(self, tracked: PodRecord, eviction: EvictForReclaim | EvictPod) -> None:
        pod = tracked.pod
        facts = pod_identity(pod, pod.user, self._tenant(pod)) | eviction_facts(eviction)
        facts |= {"lostGpuSeconds": device_time_lost_by(tracked, self._now) // 1000}
        markers: tuple[tuple[str, str], ...] = ()
        if isinstance(eviction, EvictForReclaim) and eviction.cause is not ReclaimCause.PRIORITY:
            markers = (self._cooldowns.record_reclaim(reclaim_record_of(eviction), self._now),)
        self._add_record(EntryType.RECLAIMED, facts, markers)

    def _record_bypass(self, bypass: Bypassed) -> None:
        self._record_from_backlog(bypass.ref.uid)
        tracked = self._registry.pods.get(bypass.ref.uid)
        if tracked is None or tracked.last_audit_entry == BYPASSED:
            return
        if bypass.claim:
            gained: Fact = amounts_as_text(bypass.gained)
            about = {"stamp": bypass.stamp, "node": bypass.node or "", "claim": bypass.claim}
            more = {"claimUid": bypass.claim_uid, "gained": gained}
            self._record_claim(bypass, EntryType.BYPASSED, about | more)
            return
        facts = pod_identity(bypass.ref, bypass.user, self._tenant(bypass.ref)) | {
            "stamp": bypass.stamp,
            "node": bypass.node or "",
            "by": tracked.pod.gate_removed_by or UNKNOWN,
        }
        self._record_and_mark(tracked, EntryType.BYPASSED, facts)

    def _record_claim(
        self, effect: Bypassed | ClaimDeleted, entry_type: EntryType, facts: Mapping[str, Fact]
    ) -> None:
        """Record, once, a claim of a pod with a right to be ungated."""
        self._record_from_backlog(effect.ref.uid)
        tracked = self._registry.pods.get(effect.ref.uid)
        if not self._is_leader or tracked is None:
            return
        base, *marks = (tracked.last_audit_entry or RELEASED).split(SEPARATOR)
        mark = f"{entry_type.value}:{effect.claim_uid}"
        if mark in marks:
            return
        tracked.last_audit_entry = SEPARATOR.join((base, *marks[1 - MOST_MARKS :], mark))
        whole = pod_identity(effect.ref, effect.user, self._tenant(effect.ref)) | dict(facts)
        self._add_record(entry_type, whole, ((effect.ref.uid, tracked.last_audit_entry),))

    def _mark_all_recorded(self) -> None:
        """Record that all markers are lost. All existing pods then count as recorded."""
        waiting = using = 0
        for tracked in self._registry.pods.values():
            waits = tracked.state is not PodState.USING
            waiting, using = waiting + waits, using + (not waits)
            tracked.last_audit_entry = HELD if waits else RELEASED
        self._finished_with_marker.update(self._finished)
        facts: dict[str, Fact] = {"why": MARKERS_LOST, "waiting": waiting, "using": using}
        self._add_record(EntryType.HELD, facts)

    def _restore_audit_markers(
        self, markers: Mapping[str, str], intents: Mapping[Uid, Intend]
    ) -> None:
        for tracked in self._registry.pods.values():
            tracked.last_audit_entry = markers.get(tracked.pod.uid, "")
        for uid, pod in self._finished.items():
            noted = markers.get(uid, "")
            if noted and noted != HELD:
                self._finished_with_marker.add(uid)
            elif _is_stamped(pod):
                self._record_finished_release(pod, noted, None)
        for key, text in markers.items():
            uid = Uid(key)
            if is_resource_marker(key) or is_cooldown_marker(key):
                continue
            if uid in self._registry.pods or uid in self._finished_with_marker:
                continue
            if text == HELD and uid not in self._finished:
                self._record_missed_release(uid, intents.get(uid))
            self._effects.append(ClearAuditMarker(key))

    def _record_missed_release(self, uid: Uid, intent: Intend | None) -> None:
        """Record the release of a pod that ended while there was no leader, if it was released."""
        pod = self._ended_while_following.get(uid)
        if pod is not None:
            self._add_record(
                EntryType.RELEASED, release_facts(pod, self._tenant(pod), None, self._now)
            )
        elif intent is not None:
            self._add_record(
                EntryType.RELEASED, intent_facts(intent) | {"settled": True, "certain": False}
            )

    def _keep_ended_pod(self, pod: Pod) -> None:
        if not _is_stamped(pod):
            return
        if (
            pod.uid not in self._ended_while_following
            and len(self._ended_while_following) >= MOST_ENDED
        ):
            del self._ended_while_following[next(iter(self._ended_while_following))]
        self._ended_while_following[pod.uid] = pod

    def _tenant(self, pod: Pod | PodRef) -> TenantName:
        return self._tenancy.tenant_of(pod.namespace)

    def _record_finished_release(self, pod: Pod, noted: str, order: Release | None) -> None:
        self._finished_with_marker.add(pod.uid)
        entry_type, facts = (
            EntryType.RELEASED,
            release_facts(pod, self._tenant(pod), order, self._now),
        )
        if pod.release_annotation == RELEASE_ADOPTED and not was_ungated_by_hand(pod, noted):
            entry_type, facts = EntryType.ADOPTED, adoption_facts(pod, self._tenant(pod), pod.pool)
        self._add_record(entry_type, facts, ((pod.uid, entry_type.value),))

    def _record_and_mark(
        self, tracked: PodRecord, entry_type: EntryType, facts: Mapping[str, Fact]
    ) -> None:
        tracked.last_audit_entry = entry_type.value
        self._add_record(entry_type, facts, ((tracked.pod.uid, entry_type.value),))

    def _add_record(
        self,
        entry_type: EntryType,
        facts: Mapping[str, Fact],
        markers: tuple[tuple[str, str], ...] = (),
    ) -> None:
        self._effects.append(AuditRecord(self._now, entry_type, facts, markers))


def _is_recorded_ungated(noted: str) -> bool:
    return noted.partition(SEPARATOR)[0] in UNGATED_MARKERS


def was_ungated_by_hand(pod: Pod, noted: str) -> bool:
    """Return whether a person removed the gate from a held pod.

    The annotation alone does not prove this: without enforcement any user may write it.
    """
    return pod.release_annotation == RELEASE_ADOPTED and noted == HELD


def _is_stamped(pod: Pod) -> bool:
    """Return whether the annotations of a pod claim a release, by the leader or by hand."""
    by_hand = pod.release_annotation == RELEASE_ADOPTED and bool(pod.gate_removed_by)
    return by_hand or _STAMP.fullmatch(pod.release_annotation) is not None
