"""Limits callers of a slow service: one is served, a few wait, and further ones are refused."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from app.core.errors import ForecastBusy

MOST_WAITING = 2
"""Callers that may wait while another one is served."""

RETRY_AFTER = 5.0


class CallLimit:
    """Serves one caller at a time, in the order of their calls."""

    def __init__(self) -> None:
        self._lock = asyncio.Lock()
        self._callers = 0

    @asynccontextmanager
    async def acquire_turn(self) -> AsyncIterator[None]:
        """Wait for the turn of this caller. Raises ForecastBusy if too many wait."""
        if self._callers > MOST_WAITING:
            raise ForecastBusy("Several simulations wait already; try again soon.", RETRY_AFTER)
        self._callers += 1
        try:
            async with self._lock:
                yield
        finally:
            self._callers -= 1
