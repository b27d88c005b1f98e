"""Lets an engine see what the leader sees, and decide nothing: what a replica answers from."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Callable

from app.control.inbox import Inbox
from app.core.engine import Engine
from app.core.events import Pass
from app.core.model import Millis
from app.core.telling.views import Bulletin

TICK_SECONDS = 1.0


class Mirror:
    """Feeds an engine that never leads; `seen_whole` once it saw every source whole.

    `bulletin` is what a leader told last, `age` how long ago, in milliseconds, it last took in what
    there was.
    """

    def __init__(self, engine: Engine, inbox: Inbox, clock: Callable[[], Millis]) -> None:
        self.seen_whole = False
        self.bulletin: Bulletin | None = None
        self._engine = engine
        self._inbox = inbox
        self._clock = clock
        self._passed = clock()

    def age(self) -> int:
        """Return how old what the engine knows is, in milliseconds, the watches' delay aside."""
        return max(0, self._clock() - self._passed)

    def hear(self, bulletin: Bulletin) -> None:
        """A leader told this of itself; it counts from the next pass on."""
        self.bulletin = bulletin

    async def run(self) -> None:
        """Carry events until cancelled."""
        while True:
            for event in await self._inbox.take(TICK_SECONDS):
                self._engine.handle(event)
            self._passed = self._clock()
            if self.bulletin is not None:
                self._engine.hear(self.bulletin)
            self._engine.handle(Pass(self._passed))
            if self._engine.ready and not self.seen_whole:
                gc.freeze()  # what was heard at the start mostly stays: never look through it again
                self.seen_whole = True
            await asyncio.sleep(0)
