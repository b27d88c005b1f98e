"""Checkpoints in memory, with an API server that may be slow or refuse."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field

from app.core.errors import ClusterError, ClusterRefused
from app.core.fairshare.checkpoint import OTHER_TENANTS, TenantCheckpoint
from app.core.model import TenantName


@dataclass
class Map:
    """The shared checkpoint object that all processes see."""

    kept: Mapping[TenantName, TenantCheckpoint] = field(default_factory=dict)
    version: int = 0


class FakeKeeper:
    """Implements `ports.cluster.CheckpointStore`.

    `open` lets writes pass. Each call raises `refusal`, if set, and that of `refused` for its name.
    """

    def __init__(self, shared: Map | None = None) -> None:
        self.map = shared or Map()
        self._version: int | None = None
        self.tenants: set[TenantName] = set()
        self.kept: dict[TenantName, TenantCheckpoint] = {}
        self.tries = 0
        self.refusal: ClusterError | None = None
        self.refused: dict[TenantName, ClusterError] = {}
        self.open = asyncio.Event()
        self.open.set()

    async def store_checkpoint(self, name: TenantName, checkpoint: TenantCheckpoint) -> None:
        await self._answer(name)
        if name in self.tenants:
            self.kept[name] = checkpoint

    async def store_other_checkpoints(
        self, checkpoints: Mapping[TenantName, TenantCheckpoint]
    ) -> None:
        await self._answer(OTHER_TENANTS)
        version, self._version = self._version, None
        if version not in (None, self.map.version):
            raise ClusterRefused("another has written", 409)
        self._version = self.map.version = self.map.version + 1
        self.map.kept = dict(checkpoints)

    async def read_other_checkpoints(self) -> Mapping[TenantName, TenantCheckpoint]:
        self._version = self.map.version
        return self.map.kept

    @property
    def others(self) -> Mapping[TenantName, TenantCheckpoint]:
        """Return the checkpoints stored outside a Tenant object."""
        return self.map.kept

    async def _answer(self, name: TenantName) -> None:
        self.tries += 1
        await self.open.wait()
        refusal = self.refusal or self.refused.get(name)
        if refusal is not None:
            raise refusal
