"""The last result of the enforcement probes: webhook replicas send it, API replicas read it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping

from app.core.errors import StoreError
from app.core.model import Millis
from app.ports.api import EnforcementResult, EnforcementResults

SECONDS = 4.0
"""Time between two reads, and between two reports of a webhook replica."""

MISSED_ROUNDS = 6
LEAST_STALLED_MS = 60_000
"""The probes of a replica have stalled after both: missed rounds, and a minimum time."""

log = logging.getLogger("fairgate.control")


class EnforcementReader:
    """`result` is the last result that was read; None if there was none yet."""

    def __init__(self, results: EnforcementResults, *, seconds: float = SECONDS) -> None:
        self.result: EnforcementResult | None = None
        self._results = results
        self._seconds = seconds

    async def read_results(self) -> None:
        """Read until cancelled. The last result stays while Redis is unreadable."""
        while True:
            try:
                self.result = await self._results.read_result()
            except StoreError as error:
                log.debug("enforcement result not readable", extra={"why": str(error)})
            await asyncio.sleep(self._seconds)


class EnforcementReporter:
    """Stores the results of this replica's probes, and reports again and again that it works."""

    def __init__(
        self,
        results: EnforcementResults,
        now: Callable[[], Millis],
        round_seconds: float,
        is_ready: Callable[[], bool],
        *,
        seconds: float = SECONDS,
    ) -> None:
        """`round_seconds`: time between two rounds of the probes; 0: there are none.

        `is_ready`: whether this replica serves admission requests.
        """
        self._results = results
        self._now = now
        self._round_seconds = round_seconds
        self._is_ready = is_ready
        self._seconds = seconds
        self._began = now()
        self._last_result: EnforcementResult | None = None

    async def publish(self, holes: Mapping[str, str]) -> None:
        """Store the result of a round: by failed check, how enforcement does not work."""
        self._last_result = own = EnforcementResult(self._now(), self._round_seconds, holes)
        try:
            await self._results.store_result(own)
            await self._results.record_heartbeat(own.at)
        except StoreError as error:
            log.debug("enforcement result not written", extra={"why": str(error)})

    async def send_heartbeats(self) -> None:
        """Report until cancelled that this replica works, while it is ready and probes."""
        while True:
            await asyncio.sleep(self._seconds)
            if not self._is_ready() or self._is_overdue():
                continue
            try:
                await self._restore_result()
                await self._results.record_heartbeat(self._now())
            except StoreError as error:
                log.debug("enforcement report not written", extra={"why": str(error)})

    def _is_overdue(self) -> bool:
        """Return whether the probes of this replica have stalled."""
        last = self._last_result.at if self._last_result is not None else self._began
        longest = max(LEAST_STALLED_MS, MISSED_ROUNDS * 1000 * self._round_seconds)
        return self._round_seconds > 0 and self._now() - last > longest

    async def _restore_result(self) -> None:
        """Store the own result again if the stored one is older or lost.

        The own result replaces every other if there are no probes: those are of replicas that end.
        """
        own = self._last_result
        if own is None:
            return
        stored = await self._results.read_result()
        if stored is None or stored.at < own.at or not self._round_seconds:
            await self._results.store_result(own)
