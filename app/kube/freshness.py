"""Whether one source may be believed, told to the core whenever that changes.

Fresh: its list was delivered whole, and its watch has followed without a gap since. Knows
nothing of HTTP; the watch says what it hears.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable

from app.core.events import Source, SourceFresh, SourceStale
from app.core.model import Millis
from app.ports import EventSink

log = logging.getLogger("fairgate.kube")


class Freshness:
    """`silence` and `outage`: seconds without a word, and without a connection, to endure."""

    def __init__(
        self,
        source: Source,
        sink: EventSink,
        clock: Callable[[], Millis],
        *,
        silence: float,
        outage: float,
    ) -> None:
        self.source = source
        self.fresh = False
        self._sink = sink
        self._clock = clock
        self._silence = silence
        self._outage = outage
        self._heard = time.monotonic()
        self._deadline = self._heard + outage
        self._sooner = asyncio.Event()
        self._telling = asyncio.Lock()

    def heard(self) -> None:
        """The server said something on a connection that lasts."""
        self._heard = time.monotonic()
        self._deadline = self._heard + self._silence

    def lag(self) -> float:
        """Return for how many seconds the server said nothing; bookmarks count, each minute."""
        return time.monotonic() - self._heard

    def cut(self) -> None:
        """The connection is gone."""
        self._deadline = min(self._deadline, time.monotonic() + self._outage)
        self._sooner.set()

    async def complete(self) -> None:
        """All there is has been delivered."""
        self.heard()
        self._sooner.set()
        async with self._telling:
            if not self.fresh:
                self.fresh = True
                await self._sink.put(SourceFresh(self._clock(), self.source))
                log.info("source is fresh", extra={"source": self.source.value})

    async def doubt(self, why: str) -> None:
        """Something may have been missed: not fresh until the list is complete again."""
        async with self._telling:
            if self.fresh:
                self.fresh = False
                log.warning("source is stale", extra={"source": self.source.value, "why": why})
                await self._sink.put(SourceStale(self._clock(), self.source))

    async def guard(self) -> None:
        """Doubt as soon as a deadline passes, whatever the watch hangs in. Runs for ever."""
        while True:
            remaining = self._deadline - time.monotonic()
            if remaining <= 0:
                await self.doubt("nothing heard from the API server")
                remaining = self._outage
            self._sooner.clear()
            try:
                async with asyncio.timeout(remaining):
                    await self._sooner.wait()  # the deadline came nearer
            except TimeoutError:
                continue
