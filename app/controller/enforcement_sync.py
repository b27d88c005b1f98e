"""Reads the last result of the enforcement probes on replicas that serve the API."""

from __future__ import annotations

import asyncio
import logging

from app.core.errors import StoreError
from app.ports.api import EnforcementResult, EnforcementResults

SECONDS = 5.0

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
