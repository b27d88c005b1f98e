"""Classifies each ungated pod: released, adopted, or a bypass of the gate.

A pod that predates Fairgate is adopted. A bypass is reported once, whoever leads. The release
annotation of a pod is trusted unless other evidence contradicts it. Usage does not depend on the
class.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable
from enum import Enum

from app.core.effects import Adopt, Bypassed, Effect, EmitEvent, EventReason, EvictPod, Release
from app.core.lifecycle.pod_record import PodRecord
from app.core.lifecycle.pod_registry import PodRegistry
from app.core.model import Millis, Pod, Uid
from app.core.policy import Mode
from app.core.release_patch import release_labels
from app.core.retry import RetrySchedule
from app.core.well_known import LABEL_POOL, RELEASE_ADOPTED

_RELEASED = re.compile(r"([1-9]\d{0,11})\.[1-9]\d{0,14}", re.ASCII)

CHANGE_MS = 10_000
"""Time after the end of mode Observe in which pods may still arrive that no webhook held."""

DOUBT_MS = 10_000
"""Time after which the stamp of a later leader counts as forged.

A process that was suspended leads until it notices that its Lease expired. Meanwhile it observes
the releases of the next leader.
"""

BYPASSED = (
    "it was never released by Fairgate: its scheduling gate was taken off, or never put on; "
    "delete it and create it again, and it waits for its turn"
)


class Provenance(Enum):
    """Reason for which a pod may be ungated."""

    RELEASED = "released"
    ADOPTED = "adopted"


class BypassDetector:
    """Classifies ungated pods. It returns no effects before `installed_at` is known."""

    def __init__(self, registry: PodRegistry, evicts: bool) -> None:
        self.installed_at: Millis | None = None
        self._registry = registry
        self._evicts = evicts
        self._epoch: int | None = None
        self._mode: Mode | None = None
        self._enforced: Millis | None = None
        self._provenances: dict[Uid, Provenance] = {}
        self._stamps: dict[str, Uid] = {}
        self._stamp_of: dict[Uid, str] = {}
        self._ordered: dict[Uid, str] = {}
        self._created_with: dict[Uid, str] = {}
        self._unexplained: dict[Uid, PodRecord] = {}
        self._unjudged: dict[Uid, PodRecord] = {}
        self._doubtful: dict[Uid, tuple[PodRecord, str, Millis]] = {}
        """Pods with the stamp of a later leader, that stamp, and when it counts as forged."""
        self._reported: set[Uid] = set()
        self._adopting = RetrySchedule()
        self._evicting = RetrySchedule()

    def start_term(self, epoch: int, reported: Collection[Uid]) -> None:
        """Start a leader term: every pod without a right is judged again.

        `reported`: bypasses that a leader reported. They are not reported again.
        """
        self._epoch = epoch
        self._ordered.clear()
        self._reported = set(reported)
        self._adopting.clear()
        self._evicting.clear()
        for stamp, uid in list(self._stamps.items()):
            if int(stamp.partition(".")[0]) >= epoch:  # no earlier leader had this epoch
                del self._stamps[stamp], self._stamp_of[uid], self._provenances[uid]
                self._record_unexplained(self._registry.pods[uid])
        self._unjudged = dict(self._unexplained)

    def end_term(self) -> list[PodRecord]:
        """End a leader term. Return the pods that the next leader may have released already.

        The caller must pass them to `observe_pod` again.
        """
        self._epoch = None
        doubtful, self._doubtful = self._doubtful, {}
        for uid, (tracked, stamp, _) in doubtful.items():
            if tracked.pod.release_annotation != stamp:
                self._unexplained[uid] = tracked
        return [
            tracked for uid, (tracked, _, _) in doubtful.items() if uid not in self._unexplained
        ]

    def set_mode(self, mode: Mode, at: Millis) -> None:
        """Apply this mode from now on."""
        if mode is self._mode:
            return
        if self._mode is Mode.OBSERVE:
            self._enforced = at
        self._mode = mode
        self._unjudged = dict(self._unexplained)

    def record_releases(self, effects: Iterable[Effect]) -> None:
        """Record requested releases. Only their pods may carry these stamps."""
        for effect in effects:
            if isinstance(effect, Release):
                self._ordered[effect.intent.ref.uid] = effect.stamp

    def cancel_release(self, uid: Uid) -> None:
        """Record that a requested release certainly did not happen."""
        self._ordered.pop(uid, None)

    def observe_pod(self, tracked: PodRecord, *, new: bool, live: bool) -> Provenance | None:
        """Process an observed ungated pod. Return its right, or None.

        `live`: all earlier changes of pods were observed. `new`: the pod was unknown before. If
        both are true, the pod was created ungated and with its stamp.
        """
        pod = tracked.pod
        uid, stamp = pod.uid, pod.release_annotation
        right = self._provenances.get(uid)
        if right is not None:
            return right
        if new and live:
            self._created_with[uid] = stamp
        right = self._derive_provenance(uid, stamp, live)
        if right is not None:
            self._record_provenance(tracked, right)
        elif uid not in self._unexplained and uid not in self._doubtful:
            self._record_unexplained(tracked)
        return right

    def provenance_of_pod(self, pod: Pod, *, live: bool) -> Provenance | None:
        """Return the right of a pod that is or was ungated, without a change of state."""
        return self._provenances.get(pod.uid) or self._derive_provenance(
            pod.uid, pod.release_annotation, live
        )

    def recorded_provenance(self, uid: Uid) -> Provenance | None:
        """Return the recorded right of a pod. None: it has no right, or was not seen ungated."""
        return self._provenances.get(uid)

    def forget_pod(self, uid: Uid) -> None:
        """Remove a deleted pod."""
        self._provenances.pop(uid, None)
        self._unexplained.pop(uid, None)
        self._unjudged.pop(uid, None)
        self._doubtful.pop(uid, None)
        self._ordered.pop(uid, None)
        self._created_with.pop(uid, None)
        stamp = self._stamp_of.pop(uid, None)
        if stamp is not None:
            del self._stamps[stamp]
        self._reported.discard(uid)
        self._adopting.drop(uid)
        self._evicting.drop(uid)

    def due(self) -> Millis | None:
        """Return the next time at which `judge_pods` has work without a new event."""
        due = [each.due() for each in (self._adopting, self._evicting)]
        due += [at for _, _, at in self._doubtful.values()]
        return min((at for at in due if at is not None), default=None)

    def judge_pods(self, now: Millis) -> list[Effect]:
        """Judge the pods that are not judged yet, and repeat requests without effect."""
        if self.installed_at is None:
            return []
        effects: list[Effect] = []
        for uid, (tracked, _, at) in list(self._doubtful.items()):
            if at <= now:
                del self._doubtful[uid]
                self._unexplained[uid] = self._unjudged[uid] = tracked
        unjudged, self._unjudged = self._unjudged, {}
        for tracked in unjudged.values():
            effects += self._judge(tracked, now)
        effects += [self._adopt(self._unexplained[uid]) for uid in self._adopting.take_due(now)]
        for uid in self._evicting.take_due(now):
            tracked = self._unexplained[uid]
            if not tracked.pod.terminating:
                effects.append(EvictPod(tracked.ref, BYPASSED, "bypass"))
        return effects

    def _derive_provenance(self, uid: Uid, stamp: str, live: bool) -> Provenance | None:
        if self._created_with.get(uid) == stamp:
            return None
        if stamp == RELEASE_ADOPTED:
            return Provenance.ADOPTED
        match = _RELEASED.fullmatch(stamp)
        if match is None or uid in self._unexplained or uid in self._doubtful:
            return None  # a release removes the gate and writes the stamp in one patch
        if self._epoch is not None:
            epoch = int(match[1])
            if epoch > self._epoch:
                return None
            if epoch == self._epoch and self._ordered.get(uid) != stamp:
                return None
        # If two pods had the stamp from the start, the copy cannot be identified.
        first = self._stamps.get(stamp, uid)
        return None if live and first != uid else Provenance.RELEASED

    def _record_unexplained(self, tracked: PodRecord) -> None:
        """Record a pod without a right. If a later leader may have released it, judge it later."""
        uid, stamp = tracked.pod.uid, tracked.pod.release_annotation
        match = _RELEASED.fullmatch(stamp)
        is_later = match is not None and self._epoch is not None and int(match[1]) > self._epoch
        if is_later and self._created_with.get(uid) != stamp:
            at = Millis(self._registry.usage.now + DOUBT_MS)
            self._doubtful[uid] = tracked, stamp, at
        else:
            self._unexplained[uid] = self._unjudged[uid] = tracked

    def _record_provenance(self, tracked: PodRecord, right: Provenance) -> None:
        uid = tracked.pod.uid
        self._provenances[uid] = right
        self._doubtful.pop(uid, None)
        stamp = tracked.pod.release_annotation
        if right is Provenance.RELEASED and self._stamps.setdefault(stamp, uid) == uid:
            self._stamp_of[uid] = stamp
        if self._unexplained.pop(uid, None) is not None:
            self._unjudged.pop(uid, None)
            self._adopting.drop(uid)
            self._evicting.drop(uid)

    def _judge(self, tracked: PodRecord, now: Millis) -> list[Effect]:
        uid = tracked.pod.uid
        if self._predates_enforcement(tracked):
            self._evicting.drop(uid)
            if tracked.pod.release_annotation == RELEASE_ADOPTED:
                self._record_provenance(tracked, Provenance.ADOPTED)
            else:
                self._adopting.add(uid, now)
            return []
        if self._evicts and not tracked.pod.mirror:
            self._evicting.add(uid, now)
        if uid in self._reported:
            return []
        self._reported.add(uid)
        return [_report(tracked), EmitEvent(tracked.ref, EventReason.REFUSED, BYPASSED)]

    def _predates_enforcement(self, tracked: PodRecord) -> bool:
        """Return whether a pod was created while no webhook had to hold it."""
        if self._mode is Mode.OBSERVE:
            return True
        assert self.installed_at is not None
        until = self.installed_at
        if self._enforced is not None:
            until = max(until, Millis(self._enforced + CHANGE_MS))
        return tracked.pod.created_at < until

    def _adopt(self, tracked: PodRecord) -> Adopt:
        pod, leaf, pool = tracked.pod, tracked.leaf, tracked.pool
        assert leaf is not None, "asked before every pod had its place"
        labels = release_labels(leaf.tenant, pod.user, pool or "")
        if pool is None:
            del labels[LABEL_POOL]
        return Adopt(tracked.ref, labels, self._registry.claims_to_grant(pod))


def _report(tracked: PodRecord) -> Bypassed:
    pod, leaf = tracked.pod, tracked.leaf
    assert leaf is not None, "asked before every pod had its place"
    return Bypassed(
        tracked.ref, leaf.tenant, pod.user, pod.node, pod.release_annotation, pod.created_at
    )
