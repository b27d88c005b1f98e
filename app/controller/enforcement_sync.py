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
                self.result = await self._results.read()
            except StoreError as error:
                log.debug("enforcement result not readable", extra={"why": str(error)})
            await asyncio.sleep(self._seconds)


class EnforcementReporter:
    """Stores the last result of this replica, again and again: its time shows that it lives."""

    def __init__(
        self,
        results: EnforcementResults,
        now: Callable[[], Millis],
        round_seconds: float,
        *,
        seconds: float = SECONDS,
    ) -> None:
        """`round_seconds`: time between two rounds of the probes; 0: there are none."""
        self._results = results
        self._now = now
        self._round_seconds = round_seconds
        self._seconds = seconds
        self._holes: Mapping[str, str] | None = None

    async def publish(self, holes: Mapping[str, str]) -> None:
        """Store the result of a round: by failed check, how enforcement does not work."""
        self._holes = holes
        await self._post(holes)

    async def repeat_result(self) -> None:
        """Store the last result again until cancelled."""
        while True:
            await asyncio.sleep(self._seconds)
            if self._holes is not None:
                await self._post(self._holes)

    async def _post(self, holes: Mapping[str, str]) -> None:
        try:
            await self._results.post(EnforcementResult(self._now(), self._round_seconds, holes))
        except StoreError as error:
            log.debug("enforcement result not written", extra={"why": str(error)})
