"""Writes the fairness checkpoint of each tenant once a minute, spread over the minute.

The leader sends a few writes a second at most. It skips a checkpoint that follows from the last
one by the passing of time alone. If the API server is slow or refuses, checkpoints are rarer.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from zlib import crc32

from app.controller.background import run_periodically
from app.core.errors import ClusterError, ClusterRefused
from app.core.fairshare.checkpoint import OTHER_TENANTS, TenantCheckpoint, fit_checkpoints
from app.core.model import Millis, TenantName
from app.core.retry import ServerBackoff
from app.core.usage.checkpoints import CheckpointKeeper
from app.ports.cluster import CheckpointStore

PERIOD = 55_000
"""Milliseconds between two checkpoints of a tenant; a minute together with the writes."""

WRITE_SECONDS = 0.1
"""Between two writes."""

TICK_SECONDS = 1.0

MAX_BYTES = 700_000
"""Bytes for all tenants that share one ConfigMap. Kubernetes allows 1 MiB."""

YIELD_EVERY = 20
"""Checkpoints of tenants without a Tenant object, taken before other tasks may run."""

log = logging.getLogger("fairgate.control")


class Checkpoints:
    """Writes checkpoints while `leads()` is true."""

    def __init__(
        self,
        checkpoint_keeper: CheckpointKeeper,
        checkpoint_store: CheckpointStore,
        leads: Callable[[], bool],
        clock: Callable[[], Millis],
        *,
        tick: float = TICK_SECONDS,
        gap: float = WRITE_SECONDS,
    ) -> None:
        self._checkpoint_keeper = checkpoint_keeper
        self._checkpoint_store = checkpoint_store
        self._leads = leads
        self._clock = clock
        self._tick = tick
        self._gap = gap
        self._due_at: dict[TenantName, int] = {}
        self._stored: dict[TenantName, TenantCheckpoint] = {}
        self._stored_others: dict[TenantName, TenantCheckpoint] = {}
        self._failed_at: dict[TenantName, int] = {}
        """Times at which the API server did not answer to the last write."""
        self._server_backoff = ServerBackoff()

    async def write_checkpoints(self) -> None:
        """Write checkpoints until cancelled."""
        await run_periodically(self._tick, self._may_write, self._write_due, self._reset)

    def _reset(self) -> None:
        self._due_at.clear()
        self._stored.clear()
        self._stored_others.clear()
        self._failed_at.clear()

    async def _write_due(self) -> None:
        """Write due checkpoints, the longest due first. Those without an answer come last.

        If a write is refused, its tenant waits a period and the others continue. If the API server
        does not answer, or is overloaded, all stop and wait.
        """
        now = self._clock()
        named = {
            *filter(self._checkpoint_keeper.has_object, self._checkpoint_keeper.tenant_names()),
            OTHER_TENANTS,
        }
        self._due_at = {name: self._due_at.get(name, now + _offset(name)) for name in named}
        self._stored = {name: each for name, each in self._stored.items() if name in named}
        self._failed_at = {name: at for name, at in self._failed_at.items() if name in named}
        for name in self._checkpoint_keeper.drain_overwritten():
            if self._stored.pop(name, None) is not None:
                self._due_at[name] = now
        due = [name for name, at in self._due_at.items() if at <= now]
        for name in sorted(
            due, key=lambda each: (self._failed_at.get(each, 0), self._due_at[each])
        ):
            if not self._may_write():
                return
            try:
                wrote = await (self._write(name) if name else self._write_others())
            except ClusterError as error:
                facts = {"tenant": name, "why": str(error)}
                log.warning("checkpoint not written; tried again later", extra=facts)
                if not isinstance(error, ClusterRefused) or error.status == 429:
                    self._failed_at[name] = now
                    await asyncio.sleep(self._server_backoff.next_delay(error))
                    return
                wrote = True  # the gap also follows a refused write
            self._server_backoff.reset()
            self._failed_at.pop(name, None)
            self._due_at[name] = max(self._due_at[name], now - PERIOD) + PERIOD
            if wrote:
                await asyncio.sleep(self._gap)

    def _may_write(self) -> bool:
        """Return whether the engine leads and this replica holds the Lease."""
        return self._checkpoint_keeper.is_leading and self._leads()

    async def _write(self, name: TenantName) -> bool:
        """Store the checkpoint of one Tenant; return whether a write was necessary."""
        checkpoint = self._checkpoint_keeper.make_checkpoint(name)
        if self._is_stored(name, checkpoint):
            return False
        await self._checkpoint_store.store_checkpoint(name, checkpoint)
        self._stored[name] = checkpoint
        return True

    async def _write_others(self) -> bool:
        """Store the checkpoints of all tenants without a Tenant object in one write."""
        found: dict[TenantName, TenantCheckpoint] = {}
        without = [
            n
            for n in self._checkpoint_keeper.tenant_names()
            if not self._checkpoint_keeper.has_object(n)
        ]
        for number, name in enumerate(without):
            if number % YIELD_EVERY == YIELD_EVERY - 1:
                await asyncio.sleep(0)
                if not self._may_write():
                    return False
            checkpoint = self._checkpoint_keeper.make_checkpoint(name)
            if not checkpoint.is_empty:
                found[name] = checkpoint
        if found.keys() == self._stored_others.keys() and all(
            map(self._is_stored, found, found.values())
        ):
            return False
        await self._checkpoint_store.store_other_checkpoints(fit_checkpoints(found, MAX_BYTES))
        self._stored_others = found
        return True

    def _is_stored(self, name: TenantName, checkpoint: TenantCheckpoint) -> bool:
        before = self._stored.get(name, self._stored_others.get(name))
        if before is None:
            return checkpoint.is_empty
        return self._checkpoint_keeper.is_unchanged(checkpoint, before)


def _offset(name: TenantName) -> int:
    """Return the offset of a tenant within the period, in milliseconds."""
    return crc32(name.encode()) % PERIOD
