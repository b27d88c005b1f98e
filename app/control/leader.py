"""The leader's term: take the lease, settle what the last leader left open, lead, step down."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from app.control.copier import Copier
from app.control.inbox import Inbox
from app.control.releases import Releases
from app.core.engine import Engine
from app.core.errors import ClusterError, StoreError
from app.core.events import CheckpointsRead, Installed, LeadershipGained, LeadershipLost
from app.core.model import Millis
from app.core.order import likely
from app.ports import Installation, Keeper, Leadership, Meters, Releaser, Store

RETRY_SECONDS = 0.5

log = logging.getLogger("fairgate.control")


class Leader:
    """Runs one term after another."""

    def __init__(
        self,
        engine: Engine,
        inbox: Inbox,
        copier: Copier,
        releases: Releases,
        store: Store,
        releaser: Releaser,
        leadership: Leadership,
        installation: Installation,
        keeper: Keeper,
        meters: Meters,
        clock: Callable[[], Millis],
        heard: asyncio.Event,
    ) -> None:
        self._engine = engine
        self._inbox = inbox
        self._copier = copier
        self._releases = releases
        self._store = store
        self._releaser = releaser
        self._leadership = leadership
        self._installation = installation
        self._keeper = keeper
        self._meters = meters
        self._clock = clock
        self._heard = heard
        self._deposed = asyncio.Event()
        self._leaving = False
        self._acquiring: asyncio.Task[int] | None = None
        self.leads = False

    def leave(self) -> None:
        """Never lead again. A term under way goes on until the lease is given up."""
        self._leaving = True
        if self._acquiring is not None:
            self._acquiring.cancel()

    def depose(self) -> None:
        """End this term: a newer leader was found."""
        self._deposed.set()

    async def run(self) -> None:
        """Lead whenever the lease can be had, until cancelled or told to leave."""
        while not self._leaving:
            self._acquiring = asyncio.create_task(self._leadership.acquire())
            try:
                await asyncio.wait({self._acquiring})
                if self._acquiring.cancelled():
                    return
                transitions = self._acquiring.result()
            finally:
                self._acquiring.cancel()
            self._deposed.clear()
            ended = asyncio.create_task(self._ended())
            try:
                await self._term(transitions, ended)
            finally:
                ended.cancel()
                await self._step_down()

    async def _term(self, transitions: int, ended: asyncio.Task[None]) -> None:
        opening = asyncio.create_task(self._open(transitions))
        try:
            await asyncio.wait({opening, ended}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            opening.cancel()
        if not opening.done() or ended.done():
            return
        epoch = opening.result()
        log.info("leading", extra={"epoch": epoch})
        self.leads = True
        self._meters.leading(epoch)
        await self._inbox.put(LeadershipGained(self._clock(), epoch))
        await ended

    async def _open(self, transitions: int) -> int:
        """Choose the epoch and make releases of older epochs impossible; return the epoch.

        Who is to be adopted, and who had what before, is known before anybody is judged.
        """
        while True:
            try:
                await self._heard.wait()
                kept = await self._keeper.read_others()
                await self._inbox.put(CheckpointsRead(self._clock(), kept))
                intents = await self._store.intents()
                highest = max(transitions, await self._store.floor(), self._engine.highest_stamp())
                highest = max(highest, likely(each.epoch for each in kept.values()))
                for intent in intents:
                    await self._releaser.fence(intent.ref, highest + 1)
                since = await self._installation.since(self._clock())
                await self._inbox.put(Installed(self._clock(), since))
                return highest + 1
            except (StoreError, ClusterError) as error:
                log.warning("cannot begin to lead yet", extra={"why": str(error)})
                await asyncio.sleep(RETRY_SECONDS)

    async def _ended(self) -> None:
        lost = asyncio.create_task(self._leadership.lost())
        deposed = asyncio.create_task(self._deposed.wait())
        try:
            await asyncio.wait({lost, deposed}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            lost.cancel()
            deposed.cancel()

    async def _step_down(self) -> None:
        self.leads = False
        self._copier.follow()
        await self._releases.stop()
        self._meters.leading(None)
        await self._inbox.put(LeadershipLost(self._clock()))
        if self._deposed.is_set():
            await self._leadership.give_up()
        log.info("following")
