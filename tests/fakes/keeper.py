"""Checkpoints in memory, and an API server that may be slow to take them."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from app.core.checkpoint import Checkpoint
from app.core.errors import ClusterError
from app.core.model import TenantName


class FakeKeeper:
    """Implements `ports.Keeper`. `open` lets writes through; `refusal` is raised by each."""

    def __init__(self) -> None:
        self.tenants: set[TenantName] = set()
        self.kept: dict[TenantName, Checkpoint] = {}
        self.others: Mapping[TenantName, Checkpoint] = {}
        self.tries = 0
        self.refusal: ClusterError | None = None
        self.open = asyncio.Event()
        self.open.set()

    async def keep(self, name: TenantName, checkpoint: Checkpoint) -> None:
        await self._answer()
        if name in self.tenants:
            self.kept[name] = checkpoint

    async def keep_others(self, checkpoints: Mapping[TenantName, Checkpoint]) -> None:
        await self._answer()
        self.others = dict(checkpoints)

    async def read_others(self) -> Mapping[TenantName, Checkpoint]:
        return self.others

    async def _answer(self) -> None:
        self.tries += 1
        await self.open.wait()
        if self.refusal is not None:
            raise self.refusal
