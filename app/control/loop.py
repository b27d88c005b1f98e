"""Carries events into the engine and effects out of it. Decides nothing."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import assert_never

from app.control.copier import Copier
from app.control.inbox import Inbox
from app.control.releases import Releases
from app.core.effects import Charge, Dequeue, Effect, Enqueue, Rebuild, Refund, Release, Tell
from app.core.engine import Engine
from app.core.events import Pass
from app.core.model import Millis
from app.ports import Announcer

TICK_SECONDS = 1.0
"""A quiet engine is asked so often: some of what waits is due by time alone."""


class Loop:
    """The one task that calls `Engine.handle`; sets `heard` once every source has been heard."""

    def __init__(
        self,
        engine: Engine,
        inbox: Inbox,
        copier: Copier,
        releases: Releases,
        announcer: Announcer,
        clock: Callable[[], Millis],
        heard: asyncio.Event,
    ) -> None:
        self._engine = engine
        self._inbox = inbox
        self._copier = copier
        self._releases = releases
        self._announcer = announcer
        self._clock = clock
        self._heard = heard

    async def run(self) -> None:
        """Carry events and effects until cancelled."""
        while True:
            for event in await self._inbox.take(TICK_SECONDS):
                self._carry(self._engine.handle(event))
            self._carry(self._engine.handle(Pass(self._clock())))
            if self._engine.ready:
                self._heard.set()
            await asyncio.sleep(0)  # let the effects start before the next batch

    def _carry(self, effects: tuple[Effect, ...]) -> None:
        for effect in effects:
            match effect:
                case Enqueue() | Dequeue() | Charge() | Refund():
                    self._copier.copy(effect)
                case Rebuild(epoch):
                    self._copier.lead(epoch)
                case Release():
                    self._releases.begin(effect)
                case Tell():
                    self._announcer.tell(effect)
                case _:
                    assert_never(effect)
