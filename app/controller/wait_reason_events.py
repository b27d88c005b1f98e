"""Emits an event on a queued pod when its wait reason has changed, and before its events expire.

Each round looks at a few pods, so that a long queue costs the leader little.
"""

from __future__ import annotations

from collections.abc import Callable

from app.controller.background import periodic
from app.core.effects import EmitEvent, EventReason
from app.core.engine import Engine
from app.core.explain.reasons import Rule
from app.core.model import Millis, Uid
from app.ports.cluster import EventEmitter

SECONDS = 1.0

LOOKED_AT = 200
"""Pods looked at in a round."""

TOLD = 10
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
        announcer: EventEmitter,
        leads: Callable[[], bool],
        clock: Callable[[], Millis],
        *,
        seconds: float = SECONDS,
    ) -> None:
        self._engine = engine
        self._announcer = announcer
        self._leads = leads
        self._clock = clock
        self._seconds = seconds
        self._due: list[Uid] = []
        self._known: dict[Uid, tuple[Rule, Millis]] = {}

    async def emit_changes(self) -> None:
        """Check pods until cancelled."""

        async def step() -> None:
            self.check_next()

        await periodic(self._seconds, self._leads, step, self._rest)

    def _rest(self) -> None:
        self._due.clear()
        self._known.clear()

    def check_next(self) -> None:
        """Check the next few pods. Emit an event for each pod with a new wait reason."""
        if not self._due:
            self._due = [pod.uid for pod in self._engine.held()][::-1]
            there = set(self._due)
            self._known = {uid: known for uid, known in self._known.items() if uid in there}
        told = 0
        for _ in range(min(LOOKED_AT, len(self._due))):
            if told >= TOLD:
                return
            told += self._look_at(self._due.pop())

    def _look_at(self, uid: Uid) -> bool:
        """Return whether an event was emitted for the pod."""
        now, known = self._clock(), self._known.get(uid)
        if known is not None and now - known[1] < PAUSE_MS:
            return False  # its wait reason, which takes long to find, would change nothing
        held = self._engine.queries.held(uid)
        if held is None or not held.position:
            self._known.pop(uid, None)  # the engine itself emits events of pods in no queue
            return False
        if known is None:
            age = max(0, now - held.since)
            self._known[uid] = held.rule, Millis(now - age % REPEAT_MS)
            return False
        rule, at = known
        if now - at < (REPEAT_MS if held.rule is rule else PAUSE_MS):
            return False
        self._known[uid] = held.rule, now
        self._announcer.emit(EmitEvent(held.ref, EventReason.WAITING))
        return True
