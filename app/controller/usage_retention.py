"""Removes usage records in Redis that exceed the retention, while this replica leads.

It works in small steps, so that a release need not wait for it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass

from app.core.errors import StoreError
from app.core.model import Millis
from app.ports.store import UsageRetentionStore

LOOK_SECONDS = 1.0
EVERY_SECONDS = 10.0
STEP_SECONDS = 0.05

log = logging.getLogger("fairgate.control")


@dataclass(frozen=True, slots=True)
class RetentionLimits:
    """Retention of usage records: `max_age` in milliseconds, `max_records` records."""

    max_age: Millis
    max_records: int


class UsageRetention:
    """Trims usage records. The first call of a term also records since when they are complete."""

    def __init__(
        self,
        runs: UsageRetentionStore,
        limits: RetentionLimits,
        epoch: Callable[[], int | None],
        clock: Callable[[], Millis],
    ) -> None:
        self._store = runs
        self._limits = limits
        self._epoch = epoch
        self._clock = clock

    async def trim_records(self) -> None:
        """Trim until cancelled."""
        while True:
            epoch = self._epoch()
            if epoch is None:
                await asyncio.sleep(LOOK_SECONDS)
                continue
            try:
                more = await self.trim(epoch)
            except StoreError as error:  # `StoreWriter` meets the same error and ends the term
                log.debug("runs not trimmed", extra={"why": str(error)})
                await asyncio.sleep(LOOK_SECONDS)
            else:
                await asyncio.sleep(STEP_SECONDS if more else EVERY_SECONDS)

    async def trim(self, epoch: int) -> bool:
        """Remove some records that exceed the retention; return whether there may be more."""
        now = self._clock()
        before = Millis(max(0, now - self._limits.max_age))
        return await self._store.trim(epoch, now, before, self._limits.max_records)
