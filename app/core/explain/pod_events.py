"""Kubernetes events for the owners of held pods: a new hold, or a changed wait reason."""

from __future__ import annotations

from app.core.effects import Effect, EmitEvent, EventReason
from app.core.explain.queries import EngineQueries
from app.core.lifecycle.pod_record import PodRecord
from app.core.lifecycle.pod_registry import PodRegistry
from app.core.lifecycle.pod_state import PodState
from app.core.model import Uid


class PodNotices:
    """Collects new pods. `tell` returns their events at the end of a cycle.

    `silent`: no events are returned.
    """

    def __init__(
        self, roster: PodRegistry, outlook: EngineQueries, *, silent: bool = False
    ) -> None:
        self._roster = roster
        self._outlook = outlook
        self._silent = silent
        self._new: dict[Uid, PodRecord] = {}

    def add(self, tracked: PodRecord) -> None:
        """Add a held pod that has no event yet."""
        self._new[tracked.pod.uid] = tracked

    def tell(self) -> list[Effect]:
        """Return events for new pods that are still held, and for changed wait reasons."""
        pods, new, self._new = self._roster.pods, self._new, {}
        changed = self._roster.take_changed()
        if self._silent:
            return []
        held = [t for t in new.values() if t.life is PodState.HELD and pods.get(t.pod.uid) is t]
        effects: list[Effect] = []
        for tracked, text in self._outlook.texts(held):
            effects += self.of(tracked, EventReason.HELD, text)
        for tracked, text in self._outlook.texts(changed):
            effects += self.of(tracked, EventReason.WAITING, text)
        return effects

    def of(self, tracked: PodRecord, notice: EventReason, message: str) -> list[Effect]:
        """Return an event for the owner of one pod."""
        return [] if self._silent else [EmitEvent(tracked.ref, notice, message)]
