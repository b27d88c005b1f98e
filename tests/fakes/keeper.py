"""Checkpoints in memory, and an API server that may be slow to take them."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field

from app.core.errors import ClusterError, ClusterRefused
from app.core.fair.checkpoint import Checkpoint
from app.core.model import TenantName


@dataclass
class Map:
    """What all processes see of the checkpoints that are kept together."""

    kept: Mapping[TenantName, Checkpoint] = field(default_factory=dict)
    version: int = 0


class FakeKeeper:
    """Implements `ports.Keeper`. `open` lets writes through; `refusal` is raised by each."""

    def __init__(self, shared: Map | None = None) -> None:
        self.map = shared or Map()
        self._version: int | None = None
        self.tenants: set[TenantName] = set()
        self.kept: dict[TenantName, Checkpoint] = {}
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
        version, self._version = self._version, None
        if version not in (None, self.map.version):
            raise ClusterRefused("another has written", 409)
        self._version = self.map.version = self.map.version + 1
        self.map.kept = dict(checkpoints)

    async def read_others(self) -> Mapping[TenantName, Checkpoint]:
        self._version = self.map.version
        return self.map.kept

    @property
    def others(self) -> Mapping[TenantName, Checkpoint]:
        """Return what is kept of tenants without a Tenant."""
        return self.map.kept

    async def _answer(self) -> None:
        self.tries += 1
        await self.open.wait()
        if self.refusal is not None:
            raise self.refusal
