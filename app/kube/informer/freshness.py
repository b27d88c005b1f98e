"""Tracks whether one source is fresh, and reports changes to the core.

Fresh means: its list was delivered completely, and its watch has had no gap since.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable

from app.core.events import SourceFresh, SourceStale, WatchedSource
from app.core.model import Millis
from app.ports.cluster import EventSink

log = logging.getLogger("fairgate.kube")


class Freshness:
    """`silence` and `outage`: seconds to tolerate without data and without a connection."""

    def __init__(
        self,
        source: WatchedSource,
        sink: EventSink,
        clock: Callable[[], Millis],
        *,
        silence: float,
        outage: float,
    ) -> None:
        self.source = source
        self.is_fresh = False
        self._sink = sink
        self._clock = clock
        self._silence = silence
        self._outage = outage
        self._last_data_at = time.monotonic()
        self._deadline = self._last_data_at + outage
        self._deadline_changed = asyncio.Event()
        self._report_lock = asyncio.Lock()

    def record_data(self) -> None:
        """Record that the server sent data on an established watch."""
        self._last_data_at = time.monotonic()
        self._deadline = self._last_data_at + self._silence

    def seconds_since_data(self) -> float:
        """Return the seconds since the last data, including the bookmarks of every minute."""
        return time.monotonic() - self._last_data_at

    def record_disconnect(self) -> None:
        """Record that the connection is closed."""
        self._deadline = min(self._deadline, time.monotonic() + self._outage)
        self._deadline_changed.set()

    async def mark_fresh(self) -> None:
        """Record that the list was delivered completely."""
        self.record_data()
        self._deadline_changed.set()
        async with self._report_lock:
            if not self.is_fresh:
                self.is_fresh = True
                await self._sink.put(SourceFresh(self._clock(), self.source))
                log.info("source is fresh", extra={"source": self.source.value})

    async def mark_stale(self, why: str) -> None:
        """Mark the source as stale until its list is complete again. A change may be missing."""
        async with self._report_lock:
            if self.is_fresh:
                self.is_fresh = False
                log.warning("source is stale", extra={"source": self.source.value, "why": why})
                await self._sink.put(SourceStale(self._clock(), self.source))

    async def enforce_deadline(self) -> None:
        """Mark the source as stale after a deadline, even if the watch hangs. Runs forever."""
        while True:
            remaining = self._deadline - time.monotonic()
            if remaining <= 0:
                await self.mark_stale("no answer from the API server")
                remaining = self._outage
            self._deadline_changed.clear()
            try:
                async with asyncio.timeout(remaining):
                    await self._deadline_changed.wait()  # the deadline was moved forward
            except TimeoutError:
                continue
