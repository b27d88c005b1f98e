"""Kubernetes events for the owners of held pods: a new hold, or a changed wait reason."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from app.core.effects import Effect, EmitEvent, EventReason
from app.core.lifecycle.pod_record import PodRecord
from app.core.lifecycle.pod_registry import PodRegistry
from app.core.lifecycle.pod_state import PodState
from app.core.model import Millis, Uid

BRIEF_SECONDS = 2
"""A release within this time explains no wait, so the pod gets neither `Held` nor `Released`."""

RECENT_MS = 30_000
"""Below this age the last leader may have ended before it sent the event of a held pod."""


class PodNotices:
    """Collects new pods. At the end of a cycle `new_events` returns their events.

    A pod that is released in its first cycle gets no event if it did not wait.
    `silent`: no events are returned.
    """

    def __init__(self, registry: PodRegistry, *, silent: bool = False) -> None:
        self._registry = registry
        self._silent = silent
        self._new: dict[Uid, PodRecord] = {}
        """Pods without an event: new, or with a release under way since their first cycle."""

    def add(self, tracked: PodRecord) -> None:
        """Add a held pod that has no event yet."""
        self._new[tracked.pod.uid] = tracked

    def start_term(self, unrecorded: Iterable[PodRecord], now: Millis) -> None:
        """Start a leader term: add the held pods that may have no event yet.

        These are the pods that no leader has recorded, and recent pods. A recent pod may get its
        event twice, because events are sent some time after the record.
        """
        for tracked in unrecorded:
            self.add(tracked)
        for tracked in self._registry.pods.values():
            if tracked.state is PodState.HELD and now - tracked.pod.created_at < RECENT_MS:
                self.add(tracked)

    def new_events(self, *, leads: bool) -> list[Effect]:
        """Return events for new pods that are still held, and for changed wait reasons.

        A follower drops them, because it sends no events.
        """
        pods, new, self._new = self._registry.pods, self._new, {}
        changed = self._registry.drain_changed_waits()
        if self._silent or not leads:
            return []
        there = [tracked for uid, tracked in new.items() if pods.get(uid) is tracked]
        self._new = {t.pod.uid: t for t in there if t.intent is not None}
        held = [t for t in there if t.state is PodState.HELD]
        effects: list[Effect] = [EmitEvent(t.ref, EventReason.HELD) for t in held]
        effects += [EmitEvent(t.ref, EventReason.WAITING) for t in changed if t.pod.uid not in new]
        return effects

    def release_events(self, tracked: PodRecord, message: str, *, waits: bool) -> list[EmitEvent]:
        """Return the event of a release, unless the pod was released at once and did not wait.

        `waits`: the pod waited, or still waits for a node, so it gets the event in any case.
        """
        if self._new.pop(tracked.pod.uid, None) is not None and not waits:
            return []
        found = self.events_of(tracked, EventReason.RELEASED, message)
        return [replace(each, explains_wait=waits) for each in found]

    def events_of(self, tracked: PodRecord, notice: EventReason, message: str) -> list[EmitEvent]:
        """Return an event for the owner of one pod."""
        return [] if self._silent else [EmitEvent(tracked.ref, notice, message)]
