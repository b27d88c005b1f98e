"""The state that a new leader reads before it starts, without an API server."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from app.core.errors import ClusterUnavailable, EpochStale


class FakeSight:
    """`ports.cluster.WatchSync`, current once the test allows it. `late` events arrive last."""

    def __init__(self) -> None:
        self.clear = asyncio.Event()
        self.clear.set()
        self.asked = 0
        self.late: Callable[[], Awaitable[None]] | None = None

    async def catch_up(self) -> None:
        self.asked += 1
        await self.clear.wait()
        if self.late is not None:
            late, self.late = self.late, None
            await late()


class FakeEpochs:
    """`ports.leadership.EpochFloor` and `ports.leadership.TermListener` in memory."""

    def __init__(self, kept: int = 0) -> None:
        self.kept = kept
        self.asked = 0
        self.silent = False
        self.leading: int | None = None

    async def read_epoch_floor(self) -> int:
        self._answer()
        return self.kept

    async def claim_epoch(self, epoch: int) -> None:
        self._answer()
        if epoch <= self.kept:
            raise EpochStale(f"epoch {self.kept} is claimed already")
        self.kept = epoch

    def start_term(self, epoch: int) -> None:
        self.leading = epoch

    async def end_term(self) -> None:
        self.leading = None

    def _answer(self) -> None:
        self.asked += 1
        if self.silent:
            raise ClusterUnavailable("no answer")
