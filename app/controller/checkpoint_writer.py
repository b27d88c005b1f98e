"""Writes the fairness checkpoint of each tenant once a minute, spread over the minute.

The leader sends a few writes a second at most. It skips a checkpoint that follows from the last
one by the passing of time alone. If the API server is slow or refuses, checkpoints are rarer.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from zlib import crc32

from app.controller.background import periodic
from app.core.errors import ClusterError
from app.core.fairshare.checkpoint import ELSEWHERE, TenantCheckpoint, fitting
from app.core.model import Millis, TenantName
from app.core.retry import ServerBackoff
from app.core.usage.checkpoints import CheckpointKeeper
from app.ports.cluster import CheckpointStore

PERIOD = 55_000
"""Milliseconds between two checkpoints of a tenant; a minute together with the writes."""

WRITE_SECONDS = 0.1
"""Between two writes."""

TICK_SECONDS = 1.0

ROOM = 700_000
"""Bytes for all tenants that share one ConfigMap. Kubernetes allows 1 MiB."""

AT_ONCE = 20
"""Checkpoints of tenants without a Tenant object, taken before other tasks may run."""

log = logging.getLogger("fairgate.control")


class Checkpoints:
    """Writes checkpoints while `leads()` is true."""

    def __init__(
        self,
        memory: CheckpointKeeper,
        keeper: CheckpointStore,
        leads: Callable[[], bool],
        clock: Callable[[], Millis],
        *,
        tick: float = TICK_SECONDS,
        gap: float = WRITE_SECONDS,
    ) -> None:
        self._memory = memory
        self._keeper = keeper
        self._leads = leads
        self._clock = clock
        self._tick = tick
        self._gap = gap
        self._due: dict[TenantName, int] = {}
        self._kept: dict[TenantName, TenantCheckpoint] = {}
        self._others: dict[TenantName, TenantCheckpoint] = {}
        self._patience = ServerBackoff()

    async def write_checkpoints(self) -> None:
        """Write checkpoints until cancelled."""
        await periodic(self._tick, self._may_write, self._write_due, self._rest)

    def _rest(self) -> None:
        self._due.clear()
        self._kept.clear()
        self._others.clear()

    async def _write_due(self) -> None:
        """Write due checkpoints, the longest due first. At the first failure stop and wait."""
        now = self._clock()
        named = {*filter(self._memory.has_object, self._memory.names()), ELSEWHERE}
        self._due = {name: self._due.get(name, now + _offset(name)) for name in named}
        self._kept = {name: each for name, each in self._kept.items() if name in named}
        for name in self._memory.take_overwritten():
            if self._kept.pop(name, None) is not None:
                self._due[name] = now
        due = [name for name, at in self._due.items() if at <= now]
        for name in sorted(due, key=self._due.__getitem__):
            if not self._may_write():
                return
            try:
                wrote = await (self._write(name) if name else self._write_others())
            except ClusterError as error:
                await self._pause(name, error)
                return
            self._patience.fulfilled()
            self._due[name] = max(self._due[name], now - PERIOD) + PERIOD
            if wrote:
                await asyncio.sleep(self._gap)

    def _may_write(self) -> bool:
        """Return whether the engine leads and this replica holds the Lease."""
        return self._memory.leads and self._leads()

    async def _write(self, name: TenantName) -> bool:
        """Store the checkpoint of one Tenant; return whether a write was necessary."""
        checkpoint = self._memory.make_checkpoint(name)
        if self._is_known(name, checkpoint):
            return False
        await self._keeper.keep(name, checkpoint)
        self._kept[name] = checkpoint
        return True

    async def _write_others(self) -> bool:
        """Store the checkpoints of all tenants without a Tenant object in one write."""
        found: dict[TenantName, TenantCheckpoint] = {}
        without = [n for n in self._memory.names() if not self._memory.has_object(n)]
        for number, name in enumerate(without):
            if number % AT_ONCE == AT_ONCE - 1:
                await asyncio.sleep(0)
                if not self._may_write():
                    return False
            checkpoint = self._memory.make_checkpoint(name)
            if not checkpoint.is_empty:
                found[name] = checkpoint
        if found.keys() == self._others.keys() and all(map(self._is_known, found, found.values())):
            return False
        await self._keeper.keep_others(fitting(found, ROOM))
        self._others = found
        return True

    def _is_known(self, name: TenantName, checkpoint: TenantCheckpoint) -> bool:
        before = self._kept.get(name, self._others.get(name))
        if before is None:
            return checkpoint.is_empty
        return self._memory.repeats(checkpoint, before)

    async def _pause(self, name: TenantName, error: ClusterError) -> None:
        wait = self._patience.after(error)
        facts = {"tenant": name, "why": str(error), "failures": self._patience.failures}
        log.warning("checkpoint not written; tried again later", extra=facts)
        await asyncio.sleep(wait)


def _offset(name: TenantName) -> int:
    """Return the offset of a tenant within the period, in milliseconds."""
    return crc32(name.encode()) % PERIOD
