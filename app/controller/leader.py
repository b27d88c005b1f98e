"""The leader's term: acquire the Lease, settle unfinished releases, lead, step down."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from dataclasses import replace

from app.controller.event_queue import EventQueue
from app.controller.release_executor import Releases
from app.controller.store_writer import StoreWriter
from app.controller.takeover import Takeover
from app.core.events import LeadershipLost
from app.core.model import Millis
from app.ports.leadership import Leadership, TermListener
from app.ports.metrics import LeaderMetrics

TAKEOVER_SECONDS = 60.0
"""A replica that cannot begin to lead within this time gives the Lease up. Example: no Redis."""

STAND_BACK_SECONDS = 5.0
"""How long such a replica lets the others try first."""

log = logging.getLogger("fairgate.control")


class Leader:
    """Runs one term after another."""

    def __init__(
        self,
        takeover: Takeover,
        leadership: Leadership,
        event_queue: EventQueue,
        store_writer: StoreWriter,
        releases: Releases,
        terms: TermListener,
        metrics: LeaderMetrics,
        clock: Callable[[], Millis],
    ) -> None:
        self._takeover = takeover
        self._leadership = leadership
        self._event_queue = event_queue
        self._store_writer = store_writer
        self._releases = releases
        self._terms = terms
        self._metrics = metrics
        self._clock = clock
        self._term_ended = asyncio.Event()
        self._is_stopping = False
        self._stand_back_until = 0.0
        self._acquiring: asyncio.Task[int] | None = None
        self.is_leading = False
        self.epoch: int | None = None

    def stop_acquiring(self) -> None:
        """Never lead again. The current term goes on until the Lease is given up."""
        self._is_stopping = True
        if self._acquiring is not None:
            self._acquiring.cancel()

    def end_term(self) -> None:
        """End this term: a newer leader was found, or a task of the term failed."""
        self._term_ended.set()

    async def run(self) -> None:
        """Lead whenever the Lease is free, until cancelled or until `stop_acquiring` is called."""
        while not self._is_stopping:
            self._acquiring = asyncio.create_task(self._leadership.acquire(self._is_fit))
            try:
                await asyncio.wait({self._acquiring})
                if self._acquiring.cancelled():
                    return
                transitions = self._acquiring.result()
            finally:
                self._acquiring.cancel()
            self._term_ended.clear()
            ended = asyncio.create_task(self._wait_for_end())
            try:
                await self._run_term(transitions, ended)
            finally:
                ended.cancel()
                await self._step_down()

    async def _is_fit(self) -> bool:
        """Return whether this replica could lead at once. If not, it leaves the Lease alone."""
        return time.monotonic() >= self._stand_back_until and await self._takeover.is_possible()

    async def _run_term(self, transitions: int, ended: asyncio.Task[None]) -> None:
        opening = asyncio.create_task(self._takeover.take_over(transitions))
        try:
            await asyncio.wait(
                {opening, ended}, timeout=TAKEOVER_SECONDS, return_when=asyncio.FIRST_COMPLETED
            )
        finally:
            opening.cancel()
        if not opening.done() or ended.done():
            if not ended.done():
                log.warning("could not begin to lead; leaving it to others")
                self._stand_back_until = time.monotonic() + STAND_BACK_SECONDS
                self.end_term()
            return
        gained = opening.result()
        log.info("leading", extra={"epoch": gained.epoch})
        self.is_leading, self.epoch = True, gained.epoch
        self._metrics.set_leading_epoch(gained.epoch)
        self._terms.start_term(gained.epoch)
        await self._event_queue.put(replace(gained, at=self._clock()))
        self._releases.settle_unfinished(gained.unsettled, gained.epoch)
        await ended

    async def _wait_for_end(self) -> None:
        lost = asyncio.create_task(self._leadership.wait_until_lost())
        deposed = asyncio.create_task(self._term_ended.wait())
        try:
            await asyncio.wait({lost, deposed}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            lost.cancel()
            deposed.cancel()

    async def _step_down(self) -> None:
        self.is_leading, self.epoch = False, None
        self._store_writer.stop_writing()
        await self._releases.stop()
        self._metrics.set_leading_epoch(None)
        await self._event_queue.put(LeadershipLost(self._clock()))
        if self._term_ended.is_set():
            await self._leadership.release_lease()
        await self._terms.end_term()
        log.info("following")
