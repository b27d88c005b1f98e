"""What only the leader knows, told to the replicas that answer people. Decides nothing."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import replace

from app.api_ports import Bulletins
from app.core.engine import Engine
from app.core.errors import StoreError
from app.core.model import Millis
from app.core.telling.views import Bulletin

SECONDS = 1.0

AGAIN_MS = 10_000
"""What has not changed is told again so often: so that what is old can be told from what holds."""

log = logging.getLogger("fairgate.control")


class Posting:
    """Tells, while this replica leads, what has changed."""

    def __init__(
        self,
        engine: Engine,
        bulletins: Bulletins,
        epoch: Callable[[], int | None],
        clock: Callable[[], Millis],
        *,
        seconds: float = SECONDS,
    ) -> None:
        self._engine = engine
        self._bulletins = bulletins
        self._epoch = epoch
        self._clock = clock
        self._seconds = seconds
        self._told: Bulletin | None = None

    async def run(self) -> None:
        """Tell until cancelled."""
        while True:
            await asyncio.sleep(self._seconds)
            epoch = self._epoch()
            if epoch is None:
                self._told = None
                continue
            now = self._clock()
            bulletin = self._engine.outlook.bulletin(now, epoch, self._engine.drift.ratio)
            told = self._told
            if told is not None and now - told.at < AGAIN_MS and replace(told, at=now) == bulletin:
                continue
            try:
                await self._bulletins.post(bulletin)
            except StoreError as error:
                log.debug("bulletin not written", extra={"why": str(error)})
            else:
                self._told = bulletin


class Hearing:
    """Hands on what a leader tells. While nothing can be read, the last that was told stands."""

    def __init__(
        self, bulletins: Bulletins, hear: Callable[[Bulletin], None], *, seconds: float = SECONDS
    ) -> None:
        self._bulletins = bulletins
        self._hear = hear
        self._seconds = seconds

    async def run(self) -> None:
        """Read until cancelled."""
        while True:
            try:
                bulletin = await self._bulletins.read()
            except StoreError as error:
                log.debug("bulletin not readable", extra={"why": str(error)})
            else:
                if bulletin is not None:
                    self._hear(bulletin)
            await asyncio.sleep(self._seconds)
