"""Keeps the runs in Redis within their time and number, while this replica leads.

Bit by bit: a release must not wait for it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass

from app.core.errors import StoreError
from app.core.model import Millis
from app.ports import RunKeeper

LOOK_SECONDS = 1.0
EVERY_SECONDS = 10.0
STEP_SECONDS = 0.05

log = logging.getLogger("fairgate.control")


@dataclass(frozen=True, slots=True)
class Keeping:
    """How long, and how many at most, runs are kept."""

    lasting: Millis
    most: int


class Trimming:
    """See the module. Also notes, as soon as a term begins, from when on runs are complete."""

    def __init__(
        self,
        runs: RunKeeper,
        keeping: Keeping,
        epoch: Callable[[], int | None],
        clock: Callable[[], Millis],
    ) -> None:
        self._runs = runs
        self._keeping = keeping
        self._epoch = epoch
        self._clock = clock

    async def run(self) -> None:
        """Trim until cancelled."""
        while True:
            epoch = self._epoch()
            if epoch is None:
                await asyncio.sleep(LOOK_SECONDS)
                continue
            try:
                more = await self.trim(epoch)
            except StoreError as error:  # as the copier finds, too: it tells who leads
                log.debug("runs not trimmed", extra={"why": str(error)})
                await asyncio.sleep(LOOK_SECONDS)
            else:
                await asyncio.sleep(STEP_SECONDS if more else EVERY_SECONDS)

    async def trim(self, epoch: int) -> bool:
        """Remove some of what is too old, or too much; True: there may be more."""
        now = self._clock()
        before = Millis(max(0, now - self._keeping.lasting))
        return await self._runs.trim(epoch, now, before, self._keeping.most)
