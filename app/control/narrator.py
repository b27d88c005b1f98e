"""Tells owners of queued pods when what holds them back has become another rule.

A few pods at a time, so that a long queue costs the leader little; it decides nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from app.core.effects import Notice, Tell
from app.core.engine import Engine
from app.core.model import Millis, Uid
from app.core.telling.reasons import Rule
from app.ports import Announcer

SECONDS = 1.0

LOOKED_AT = 200
"""Pods looked at in a round."""

TOLD = 10
"""Pods told of in a round: every event is a write to etcd."""

PAUSE_MS = 60_000
"""A pod is told of such a change no more often."""


class Narrator:
    """`run` looks while this replica leads."""

    def __init__(
        self,
        engine: Engine,
        announcer: Announcer,
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

    async def run(self) -> None:
        """Look until cancelled."""
        while True:
            await asyncio.sleep(self._seconds)
            if self._leads():
                self.look()
            else:
                self._due.clear()
                self._known.clear()

    def look(self) -> None:
        """Look at the next few pods; tell of those that wait for something else than before."""
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
        """Tell whether the owner of a pod was told something."""
        held = self._engine.outlook.held(uid)
        if held is None or not held.position:
            self._known.pop(uid, None)  # the engine tells of what is in no queue
            return False
        now = self._clock()
        if uid not in self._known:
            self._known[uid] = held.rule, now
            return False
        rule, at = self._known[uid]
        if held.rule is rule or now - at < PAUSE_MS:
            return False
        self._known[uid] = held.rule, now
        self._announcer.tell(Tell(held.ref, Notice.WAITING, held.reason))
        return True
