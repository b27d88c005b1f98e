"""Publishes the leader-only state through Redis, and reads it on replicas that serve the API."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import replace

from app.controller.background import run_periodically
from app.core.engine import Engine
from app.core.errors import StoreError
from app.core.explain.views import LeaderStateMessage
from app.core.model import Millis
from app.ports.api import LeaderStateStore

SECONDS = 1.0

REPEAT_MS = 10_000
"""Unchanged state is published again after this time, so that readers can detect stale state."""

log = logging.getLogger("fairgate.control")


class LeaderStatePublisher:
    """Publishes changed leader state while this replica leads."""

    def __init__(
        self,
        engine: Engine,
        store: LeaderStateStore,
        epoch: Callable[[], int | None],
        clock: Callable[[], Millis],
        *,
        seconds: float = SECONDS,
    ) -> None:
        self._engine = engine
        self._store = store
        self._epoch = epoch
        self._clock = clock
        self._seconds = seconds
        self._published: LeaderStateMessage | None = None

    async def publish_state(self) -> None:
        """Publish until cancelled."""
        await run_periodically(self._seconds, self._leads, self._publish, self._reset)

    def _leads(self) -> bool:
        return self._epoch() is not None

    def _reset(self) -> None:
        self._published = None

    async def _publish(self) -> None:
        epoch, now, last = self._epoch(), self._clock(), self._published
        assert epoch is not None
        leader_message = self._engine.queries.leader_message(now, epoch, self._engine.drift.ratio)
        if (
            last is not None
            and now - last.at < REPEAT_MS
            and replace(last, at=now) == leader_message
        ):
            return
        try:
            await self._store.store_message(leader_message)
        except StoreError as error:
            log.debug("leader state not written", extra={"why": str(error)})
        else:
            self._published = leader_message


class LeaderStateReader:
    """Passes published leader state on. The last state stays valid while Redis is unreadable.

    `is_reachable`: the last read succeeded. `has_read`: a read has succeeded, with or without a
    state.
    """

    def __init__(
        self,
        store: LeaderStateStore,
        on_message: Callable[[LeaderStateMessage], None],
        *,
        seconds: float = SECONDS,
    ) -> None:
        self._store = store
        self._on_message = on_message
        self._seconds = seconds
        self.is_reachable = True
        self.has_read = False

    async def read_state(self) -> None:
        """Read until cancelled."""
        while True:
            try:
                leader_message = await self._store.read_message()
            except StoreError as error:
                self.is_reachable = False
                log.debug("leader state not readable", extra={"why": str(error)})
            else:
                if leader_message is not None:
                    self._on_message(leader_message)
                self.is_reachable = self.has_read = True
            await asyncio.sleep(self._seconds)
