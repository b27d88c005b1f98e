"""Audit recorder: records each event once, across leader terms.

The audit marker of a pod has its last recorded state and is stored beside the chain. A new leader
records the events that the last leader did not record. A follower records no events.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from itertools import islice

from app.core.audit.config_changes import ConfigChanges, Configured, is_resource, key_of, spec_of
from app.core.audit.fields import adopted, because, intended, reason, released, texts, who
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
from app.core.lifecycle.lost_work import lost_by
from app.core.lifecycle.pod_record import PodRecord
from app.core.lifecycle.pod_registry import PodRegistry
from app.core.lifecycle.pod_state import PodState
from app.core.model import Millis, Pod, ReleaseOutcome, TenantName, Uid
from app.core.podspec.pod_groups import UNBOUNDED
from app.core.policy import Policy
from app.core.scheduling.pending_evictions import taking_of
from app.core.scheduling.reclaim_cooldown import ReclaimCooldowns, is_taking
from app.core.well_known import ADOPTED, GATE

HELD, RELEASED, BYPASSED = EntryType.HELD.value, EntryType.RELEASED.value, EntryType.BYPASSED.value
PAST = frozenset((RELEASED, EntryType.ADOPTED.value))
"""Markers of pods with a right to be ungated. Marks of reported claims may follow."""

MOST_MARKS = 16
"""Maximum number of reported claims in the marker of one pod."""

SEPARATOR = ";"
"""Separates the state of a pod and the marks of its reported claims."""

MOST_ENDED = 4096
"""Maximum number of pods that ended while this replica followed, and may need a record."""

AT_ONCE = 1000
"""Number of unrecorded pods that a new leader records at once ..."""
PACE_MS = 1000
"""... and pause until the next batch. The audit writer has capacity for ten batches."""

UNREMEMBERED = (
    "Redis had lost the records of the existing pods: entries about them since the entry before "
    "this one may be missing"
)

_STAMP = re.compile(r"[1-9]\d{0,11}\.[1-9]\d{0,14}", re.ASCII)


class AuditRecorder:
    """Collects audit records and marker removals. `drain` returns them."""

    def __init__(
        self,
        registry: PodRegistry,
        tenancy: TenantDirectory,
        bypasses: BypassDetector,
        cooldowns: ReclaimCooldowns,
        *,
        silent: bool = False,
    ) -> None:
        """`silent`: no event is recorded, because there is no audit chain."""
        self._registry = registry
        self._tenancy = tenancy
        self._bypasses = bypasses
        self._cooldowns = cooldowns
        self._changes = ConfigChanges()
        self._silent = silent
        self._leads = False
        self._out: list[Effect] = []
        self._orders: dict[Uid, Release] = {}
        self._evictions: dict[Uid, EvictForReclaim | EvictPod] = {}
        self._over: dict[Uid, Pod] = {}
        """Ungated pods that are finished and not deleted yet. Their markers stay."""
        self._noted: set[Uid] = set()
        self._ended: dict[Uid, Pod] = {}
        self._untold: dict[Uid, tuple[PodRecord, bool]] = {}
        """Unrecorded pods at the start of the term, and whether each was waiting then."""
        self._remind_at = Millis(0)

    @property
    def _now(self) -> Millis:
        return self._registry.usage.now

    def start_term(self, notes: Mapping[str, str] | None, intents: Iterable[Intend]) -> None:
        """Start a leader term: record the events that no leader has recorded."""
        if self._silent:
            return
        self._leads = True
        if notes is None:
            self._assume()
        else:
            self._cooldowns.recall(notes, self._now)
            self._recall(notes, {intent.ref.uid: intent for intent in intents})
        self._ended.clear()
        self._out += self._changes.start_term(self._now, notes)
        for uid, tracked in self._registry.pods.items():
            waits = tracked.life is not PodState.USING
            if not _is_past(tracked.noted) and not (waits and tracked.noted):
                self._untold[uid] = tracked, waits
        self._remind_at = self._now

    def unrecorded_held(self) -> list[PodRecord]:
        """Return the pods that were held at the start of the term, and that no leader recorded."""
        return [tracked for tracked, waits in self._untold.values() if waits]

    def remind(self) -> None:
        """Clear expired cooldown markers. Record some pods that were unrecorded at the start."""
        over = self._cooldowns.expire(self._now)
        self._out += [ClearAuditMarker(key) for key in over if self._leads]
        if self._untold and self._now >= self._remind_at:
            self._remind_at = Millis(self._now + PACE_MS)
            for uid in list(islice(self._untold, AT_ONCE)):
                self._catch_up(uid)

    def end(self) -> None:
        """End a leader term: the pods themselves show the outcome of pending requests."""
        self._leads = False
        self._changes.end()
        self._noted.clear()
        self._untold.clear()
        self._orders.clear()
        self._evictions.clear()
        for tracked in self._registry.pods.values():
            tracked.noted = ""

    def drain(self) -> list[Effect]:
        """Return the collected effects once."""
        out, self._out = self._out, []
        return out

    def seen(self, tracked: PodRecord) -> None:
        """Record a pod that waits."""
        if not self._leads or tracked.noted:
            return
        pod = tracked.pod
        facts = who(pod, pod.user, self._tenant(pod)) | {
            "amounts": texts(pod.demand),
            "priority": pod.priority,
            "since": pod.since,
        }
        if (gang := tracked.gang) is not None:
            size = gang.least if gang.size == UNBOUNDED else gang.size
            facts |= {"gang": gang.name} | ({"gangSize": size} if size else {})
        self._note(tracked, EntryType.HELD, facts)

    def ordered(self, effects: Iterable[Effect]) -> None:
        """Store requested releases and evictions for their reason, and record bypasses."""
        for effect in effects if self._leads else ():
            match effect:
                case Release():
                    self._orders[effect.intent.ref.uid] = effect
                case EvictForReclaim() | EvictPod():
                    self._evictions[effect.ref.uid] = effect
                case Bypassed():
                    self._bypassed(effect)
                case ClaimDeleted():
                    facts = {"claim": effect.claim, "claimUid": effect.claim_uid}
                    self._record_claim(effect, EntryType.CLAIM_DELETED, facts)
                case _:
                    pass

    def passed(self, tracked: PodRecord, right: Provenance) -> None:
        """Record an ungated pod with its right."""
        self._catch_up(tracked.pod.uid)
        if not self._leads or _is_past(tracked.noted):
            return
        pod = tracked.pod
        if right is Provenance.ADOPTED and not is_by_hand(pod, tracked.noted):
            self._note(tracked, EntryType.ADOPTED, adopted(pod, self._tenant(pod), tracked.pool))
        else:
            order = self._orders.pop(pod.uid, None)
            self._note(
                tracked, EntryType.RELEASED, released(pod, self._tenant(pod), order, self._now)
            )

    def answered(self, uid: Uid, answer: ReleaseOutcome) -> None:
        """Record an answered release, unless an observation has already shown its outcome."""
        order = self._orders.get(uid)
        if order is None or (answer is ReleaseOutcome.GONE and uid in self._registry.pods):
            return  # the pod may be finished: its last observation shows the outcome
        self._catch_up(uid)
        del self._orders[uid]
        if answer is ReleaseOutcome.RELEASED:
            tracked = self._registry.pods.get(uid)
            facts = intended(order.intent) | because(order, self._now)
            if tracked is not None:
                self._note(tracked, EntryType.RELEASED, facts)
            else:
                self._say(EntryType.RELEASED, facts)  # no object is left for a marker

    def evicted(self, uid: Uid) -> None:
        """Record an accepted eviction."""
        eviction, tracked = self._evictions.pop(uid, None), self._registry.pods.get(uid)
        if self._leads and eviction is not None and tracked is not None:
            self._reclaimed(tracked, eviction)

    def over(self, pod: Pod, *, live: bool) -> None:
        """Record how a pod was released that is finished or about to be deleted."""
        if self._silent:
            return
        self._catch_up(pod.uid)
        if GATE in pod.gates:
            return
        known, tracked = pod.uid in self._over, self._registry.pods.get(pod.uid)
        self._over[pod.uid] = pod
        if not self._leads or (known and tracked is None):
            return
        noted = tracked.noted if tracked is not None else ""
        if tracked is not None:
            tracked.noted = ""  # the marker stays until the pod is deleted
        if not _is_past(noted) and noted != BYPASSED:
            order = self._orders.pop(pod.uid, None)
            ordered = order is not None and order.stamp == pod.release
            if ordered or self._bypasses.judge(pod, live=live) is not None:
                self._say_over(pod, noted, order)
                return
            if tracked is None:
                return
            facts = who(pod, pod.user, self._tenant(pod))
            facts |= {"stamp": pod.release, "by": pod.freed_by or UNKNOWN}
            self._say(EntryType.BYPASSED, facts, ((pod.uid, BYPASSED),))
        self._noted.add(pod.uid)

    def gone(self, tracked: PodRecord) -> None:
        """Process a tracked pod that is finished or gone."""
        eviction = self._evictions.pop(tracked.pod.uid, None)
        if not self._leads:
            return
        if eviction is not None and tracked.evicted:
            self._reclaimed(tracked, eviction)
        if tracked.noted:
            tracked.noted = ""
            self._out.append(ClearAuditMarker(tracked.pod.uid))

    def vanished(self, uid: Uid) -> None:
        """Process a pod that no longer exists. Call it before the pod is removed."""
        if self._silent:
            return
        self._catch_up(uid)
        pod, tracked = self._over.pop(uid, None), self._registry.pods.get(uid)
        if self._leads:
            if uid in self._noted:
                self._noted.discard(uid)
                self._out.append(ClearAuditMarker(uid))
            if tracked is None:
                self._orders.pop(uid, None)
        elif pod is not None:
            self._keep(pod)
        elif tracked is not None and tracked.life is PodState.USING:
            self._keep(tracked.pod)

    def configured(self, config: Configured, by: str, *, has_mode: bool = True) -> None:
        """Record the observed state of a resource. `by` is its author; "" if unknown.

        `has_mode`: whether a Policy sets the mode.
        """
        name = "default" if isinstance(config, Policy) else config.name
        key = key_of(type(config), name)
        self._out += self._changes.observe_resource(
            self._now, key, spec_of(config, has_mode=has_mode), by
        )

    def dropped(self, kind: type[Configured], name: str = "default") -> None:
        """Record that a resource was deleted."""
        self._out += self._changes.drop(self._now, key_of(kind, name))

    def bypasses(self) -> frozenset[Uid]:
        """Return the pods that the chain reports as bypasses as a whole."""
        return frozenset(u for u, t in self._registry.pods.items() if t.noted == BYPASSED)

    def marked_claims(self) -> dict[Uid, frozenset[Uid]]:
        """Return the claims that the chain reports, by pod."""
        marks = ((u, t.noted.split(SEPARATOR)[1:]) for u, t in self._registry.pods.items())
        return {u: frozenset(Uid(m.partition(":")[2]) for m in each) for u, each in marks if each}

    def notes(self) -> Iterator[tuple[str, str]]:
        """Yield the audit markers of all existing objects."""
        yield from self._changes.notes()
        yield from self._cooldowns.notes()
        for tracked in self._registry.pods.values():
            if tracked.noted:
                yield tracked.pod.uid, tracked.noted
        for uid in self._noted:
            yield uid, RELEASED

    def _catch_up(self, uid: Uid) -> None:
        """Record the state of a pod at the start of the term, before its later events."""
        tracked, waited = self._untold.pop(uid, (None, False))
        if tracked is None:
            return
        right = self._bypasses.right_of(uid)
        if waited:
            self.seen(tracked)
        elif right is not None:
            self.passed(tracked, right)

    def _reclaimed(self, tracked: PodRecord, eviction: EvictForReclaim | EvictPod) -> None:
        pod = tracked.pod
        facts = who(pod, pod.user, self._tenant(pod)) | reason(eviction)
        facts |= {"lostGpuSeconds": lost_by(tracked, self._now) // 1000}
        notes: tuple[tuple[str, str], ...] = ()
        if isinstance(eviction, EvictForReclaim) and eviction.cause is not ReclaimCause.PRIORITY:
            notes = (self._cooldowns.sign(taking_of(eviction), self._now),)
        self._say(EntryType.RECLAIMED, facts, notes)

    def _bypassed(self, bypass: Bypassed) -> None:
        self._catch_up(bypass.ref.uid)
        tracked = self._registry.pods.get(bypass.ref.uid)
        if tracked is None or tracked.noted == BYPASSED:
            return
        if bypass.claim:
            gained: Fact = texts(bypass.gained)
            about = {"stamp": bypass.stamp, "node": bypass.node or "", "claim": bypass.claim}
            more = {"claimUid": bypass.claim_uid, "gained": gained}
            self._record_claim(bypass, EntryType.BYPASSED, about | more)
            return
        facts = who(bypass.ref, bypass.user, self._tenant(bypass.ref)) | {
            "stamp": bypass.stamp,
            "node": bypass.node or "",
            "by": tracked.pod.freed_by or UNKNOWN,
        }
        self._note(tracked, EntryType.BYPASSED, facts)

    def _record_claim(
        self, effect: Bypassed | ClaimDeleted, entry_type: EntryType, facts: Mapping[str, Fact]
    ) -> None:
        """Record, once, a claim of a pod with a right to be ungated."""
        self._catch_up(effect.ref.uid)
        tracked = self._registry.pods.get(effect.ref.uid)
        if not self._leads or tracked is None:
            return
        base, *marks = (tracked.noted or RELEASED).split(SEPARATOR)
        mark = f"{entry_type.value}:{effect.claim_uid}"
        if mark in marks:
            return
        tracked.noted = SEPARATOR.join((base, *marks[1 - MOST_MARKS :], mark))
        whole = who(effect.ref, effect.user, self._tenant(effect.ref)) | dict(facts)
        self._say(entry_type, whole, ((effect.ref.uid, tracked.noted),))

    def _assume(self) -> None:
        """Record that all markers are lost. All existing pods then count as recorded."""
        waiting = using = 0
        for tracked in self._registry.pods.values():
            waits = tracked.life is not PodState.USING
            waiting, using = waiting + waits, using + (not waits)
            tracked.noted = HELD if waits else RELEASED
        self._noted.update(self._over)
        facts: dict[str, Fact] = {"why": UNREMEMBERED, "waiting": waiting, "using": using}
        self._say(EntryType.HELD, facts)

    def _recall(self, notes: Mapping[str, str], intents: Mapping[Uid, Intend]) -> None:
        for tracked in self._registry.pods.values():
            tracked.noted = notes.get(tracked.pod.uid, "")
        for uid, pod in self._over.items():
            noted = notes.get(uid, "")
            if noted and noted != HELD:
                self._noted.add(uid)
            elif _is_stamped(pod):
                self._say_over(pod, noted, None)
        for key, text in notes.items():
            uid = Uid(key)
            if is_resource(key) or is_taking(key):
                continue
            if uid in self._registry.pods or uid in self._noted:
                continue
            if text == HELD and uid not in self._over:
                self._missed(uid, intents.get(uid))
            self._out.append(ClearAuditMarker(key))

    def _missed(self, uid: Uid, intent: Intend | None) -> None:
        """Record the release of a pod that ended while there was no leader, if it was released."""
        pod = self._ended.get(uid)
        if pod is not None:
            self._say(EntryType.RELEASED, released(pod, self._tenant(pod), None, self._now))
        elif intent is not None:
            self._say(EntryType.RELEASED, intended(intent) | {"settled": True, "certain": False})

    def _keep(self, pod: Pod) -> None:
        if not _is_stamped(pod):
            return
        if pod.uid not in self._ended and len(self._ended) >= MOST_ENDED:
            del self._ended[next(iter(self._ended))]
        self._ended[pod.uid] = pod

    def _tenant(self, pod: Pod | PodRef) -> TenantName:
        return self._tenancy.tenant_of(pod.namespace)

    def _say_over(self, pod: Pod, noted: str, order: Release | None) -> None:
        self._noted.add(pod.uid)
        entry_type, facts = EntryType.RELEASED, released(pod, self._tenant(pod), order, self._now)
        if pod.release == ADOPTED and not is_by_hand(pod, noted):
            entry_type, facts = EntryType.ADOPTED, adopted(pod, self._tenant(pod), pod.pool)
        self._say(entry_type, facts, ((pod.uid, entry_type.value),))

    def _note(self, tracked: PodRecord, entry_type: EntryType, facts: Mapping[str, Fact]) -> None:
        tracked.noted = entry_type.value
        self._say(entry_type, facts, ((tracked.pod.uid, entry_type.value),))

    def _say(
        self,
        entry_type: EntryType,
        facts: Mapping[str, Fact],
        notes: tuple[tuple[str, str], ...] = (),
    ) -> None:
        self._out.append(AuditRecord(self._now, entry_type, facts, notes))


def _is_past(noted: str) -> bool:
    return noted.partition(SEPARATOR)[0] in PAST


def is_by_hand(pod: Pod, noted: str) -> bool:
    """Return whether a person removed the gate from a held pod.

    The annotation alone does not prove this: without enforcement any user may write it.
    """
    return pod.release == ADOPTED and noted == HELD


def _is_stamped(pod: Pod) -> bool:
    """Return whether the annotations of a pod claim a release, by the leader or by hand."""
    by_hand = pod.release == ADOPTED and bool(pod.freed_by)
    return by_hand or _STAMP.fullmatch(pod.release) is not None
