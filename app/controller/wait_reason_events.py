"""Emits an event on a queued pod when its wait reason has changed, and before its events expire.

Each round looks at a few pods, so that a long queue costs the leader little.
"""

from __future__ import annotations

from collections.abc import Callable

from app.controller.background import run_periodically
from app.core.effects import EmitEvent, EventReason
from app.core.engine import Engine
from app.core.explain.reasons import Rule
from app.core.model import Millis, Uid
from app.ports.cluster import EventEmitter

SECONDS = 1.0

MAX_CHECKED_PODS = 200
"""Pods looked at in a round."""

MAX_EVENTS = 10
"""Most events in a round, because every event is a write to etcd."""

PAUSE_MS = 60_000
"""Minimum time between two such events of one pod."""

REPEAT_MS = 50 * 60_000
"""Age of a pod's wait, and its multiples, at which the event is repeated.

The API server deletes events after an hour by default.
"""


class WaitReasonEvents:
    """Emits these events while this replica leads."""

    def __init__(
        self,
        engine: Engine,
        event_emitter: EventEmitter,
        leads: Callable[[], bool],
        clock: Callable[[], Millis],
        *,
        seconds: float = SECONDS,
    ) -> None:
        self._engine = engine
        self._event_emitter = event_emitter
        self._leads = leads
        self._clock = clock
        self._seconds = seconds
        self._unchecked_pods: list[Uid] = []
        self._last_reasons: dict[Uid, tuple[Rule, Millis]] = {}

    async def emit_changes(self) -> None:
        """Check pods until cancelled."""

        async def step() -> None:
            self.check_next()

        await run_periodically(self._seconds, self._leads, step, self._reset)

    def _reset(self) -> None:
        self._unchecked_pods.clear()
        self._last_reasons.clear()

    def check_next(self) -> None:
        """Check the next few pods. Emit an event for each pod with a new wait reason."""
        if not self._unchecked_pods:
            self._unchecked_pods = [pod.uid for pod in self._engine.held_pods()][::-1]
            there = set(self._unchecked_pods)
            self._last_reasons = {
                uid: known for uid, known in self._last_reasons.items() if uid in there
            }
        told = 0
        for _ in range(min(MAX_CHECKED_PODS, len(self._unchecked_pods))):
            if told >= MAX_EVENTS:
                return
            told += self._emit_if_changed(self._unchecked_pods.pop())

    def _emit_if_changed(self, uid: Uid) -> bool:
        """Return whether an event was emitted for the pod."""
        now, known = self._clock(), self._last_reasons.get(uid)
        if known is not None and now - known[1] < PAUSE_MS:
            return False  # its wait reason, which takes long to find, would change nothing
        held = self._engine.queries.held_view(uid)
        if held is None or not held.position:
            self._last_reasons.pop(uid, None)  # the engine itself emits events of pods in no queue
            return False
        if known is None:
            age = max(0, now - held.since)
            self._last_reasons[uid] = held.rule, Millis(now - age % REPEAT_MS)
            return False
        rule, at = known
        if now - at < (REPEAT_MS if held.rule is rule else PAUSE_MS):
            return False
        self._last_reasons[uid] = held.rule, now
        self._event_emitter.emit(EmitEvent(held.ref, EventReason.WAITING))
        return True
