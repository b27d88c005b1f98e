"""Carries events into the engine and effects out of it. Decides nothing."""

from __future__ import annotations

import asyncio
import gc
import time
from collections.abc import Callable
from typing import assert_never

from app.audit_ports import Recorder
from app.control.copier import Copier
from app.control.corrections import Corrections
from app.control.inbox import Inbox
from app.control.reclaims import Reclaims
from app.control.releases import Releases
from app.core.audit import Record
from app.core.effects import (
    Adopt,
    Bypassed,
    Charge,
    Dequeue,
    Effect,
    Enqueue,
    Evict,
    Expel,
    Forget,
    LoopRefused,
    Rebuild,
    Refund,
    Release,
    Tell,
    WakeAt,
)
from app.core.engine import Engine
from app.core.events import Pass
from app.core.fair.runs import Begun, Ran
from app.core.model import Millis
from app.ports import Announcer

TICK_SECONDS = 1.0
"""A quiet engine is asked so often: some of what waits is due by time alone."""

SHORTEST_SECONDS = 0.01
"""However soon something is due: a clock that stands still must not keep the loop busy."""


class Loop:
    """The one task that calls `Engine.handle`; sets `heard` once every source has been heard."""

    def __init__(
        self,
        engine: Engine,
        inbox: Inbox,
        copier: Copier,
        releases: Releases,
        corrections: Corrections,
        reclaims: Reclaims,
        announcer: Announcer,
        recorder: Recorder,
        clock: Callable[[], Millis],
        heard: asyncio.Event,
        timed: Callable[[float], None] = lambda _: None,
    ) -> None:
        """`timed` is told how many seconds the engine was at it, pass by pass."""
        self._engine = engine
        self._inbox = inbox
        self._copier = copier
        self._releases = releases
        self._corrections = corrections
        self._reclaims = reclaims
        self._announcer = announcer
        self._recorder = recorder
        self._clock = clock
        self._heard = heard
        self._timed = timed
        self._due: Millis | None = None

    async def run(self) -> None:
        """Carry events and effects until cancelled."""
        while True:
            events = await self._inbox.take(self._pause())
            began = time.perf_counter()
            for event in events:
                self._carry(self._engine.handle(event))
            now = self._clock()
            if self._due is not None and self._due <= now:
                self._due = None
            self._carry(self._engine.handle(Pass(now)))
            self._timed(time.perf_counter() - began)
            if self._engine.ready and not self._heard.is_set():
                gc.freeze()  # what was heard at the start mostly stays: never look through it again
                self._heard.set()
            await asyncio.sleep(0)  # let the effects start before the next batch

    def _pause(self) -> float:
        """Return how many seconds may go by before the next pass."""
        if self._due is None:
            return TICK_SECONDS
        return min(TICK_SECONDS, max(SHORTEST_SECONDS, (self._due - self._clock()) / 1000))

    def _carry(self, effects: tuple[Effect, ...]) -> None:
        for effect in effects:
            match effect:
                case Enqueue() | Dequeue() | Charge() | Refund() | Begun() | Ran():
                    self._copier.copy(effect)
                case Rebuild(epoch):
                    self._copier.lead(epoch)
                case Release():
                    self._releases.begin(effect)
                case Adopt() | Expel():
                    self._corrections.begin(effect)
                case Bypassed():
                    self._corrections.report(effect)
                case Tell():
                    self._announcer.tell(effect)
                case Record():
                    self._recorder.record(effect)
                case Forget(key):
                    self._recorder.forget(key)
                case WakeAt(at):
                    self._due = at
                case Evict():
                    self._reclaims.begin(effect)
                case LoopRefused():
                    self._reclaims.report(effect)
                case _:
                    assert_never(effect)
