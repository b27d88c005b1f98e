"""The leader's term: take the lease, settle what the last leader left open, lead, step down."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import replace

from app.control.copier import Copier
from app.control.inbox import Inbox
from app.control.releases import Releases
from app.core.effects import Intend, PodRef
from app.core.engine import Engine
from app.core.errors import ClusterError, StoreError
from app.core.events import CheckpointsRead, Installed, LeadershipGained, LeadershipLost
from app.core.model import Millis
from app.ports import (
    Epochs,
    Installation,
    Keeper,
    Leadership,
    Meters,
    Releaser,
    Sight,
    Store,
    Terms,
)

RETRY_SECONDS = 0.5

FENCES = 16
"""Pods fenced at once."""

OPENING_SECONDS = 60.0
"""Who cannot begin to lead within this, without Redis for instance, gives the lease back."""

ASIDE_SECONDS = 5.0
"""So long it then lets others try."""

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
        sight: Sight,
        keeper: Keeper,
        meters: Meters,
        clock: Callable[[], Millis],
        heard: asyncio.Event,
        epochs: Epochs,
        terms: Terms,
    ) -> None:
        self._engine = engine
        self._inbox = inbox
        self._copier = copier
        self._releases = releases
        self._store = store
        self._releaser = releaser
        self._leadership = leadership
        self._installation = installation
        self._sight = sight
        self._keeper = keeper
        self._meters = meters
        self._clock = clock
        self._heard = heard
        self._epochs = epochs
        self._terms = terms
        self._deposed = asyncio.Event()
        self._leaving = False
        self._aside = 0.0
        self._acquiring: asyncio.Task[int] | None = None
        self.leads = False
        self.epoch: int | None = None

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
            self._acquiring = asyncio.create_task(self._leadership.acquire(self._is_fit))
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

    async def _is_fit(self) -> bool:
        """Tell whether this replica could lead at once; if not, the lease is for others to take."""
        if time.monotonic() < self._aside or not (self._heard.is_set() and self._engine.ready):
            return False
        try:
            await self._store.floor()
        except StoreError as error:
            log.warning("not standing for leader: no Redis", extra={"why": str(error)})
            self._aside = time.monotonic() + RETRY_SECONDS
            return False
        return True

    async def _term(self, transitions: int, ended: asyncio.Task[None]) -> None:
        opening = asyncio.create_task(self._open(transitions))
        try:
            await asyncio.wait(
                {opening, ended}, timeout=OPENING_SECONDS, return_when=asyncio.FIRST_COMPLETED
            )
        finally:
            opening.cancel()
        if not opening.done() or ended.done():
            if not ended.done():
                log.warning("could not begin to lead; leaving it to others")
                self._aside = time.monotonic() + ASIDE_SECONDS
                self.depose()
            return
        gained = opening.result()
        log.info("leading", extra={"epoch": gained.epoch})
        self.leads, self.epoch = True, gained.epoch
        self._meters.leading(gained.epoch)
        self._terms.begin(gained.epoch)
        await self._inbox.put(replace(gained, at=self._clock()))
        await ended

    async def _open(self, transitions: int) -> LeadershipGained:
        """Choose the epoch and make releases of older epochs impossible; return how things stand.

        In this order: no older leader can write an intent, none of its patches can succeed any
        more, and all that did is known. Who is to be adopted is known before anybody past the
        gate is judged.
        """
        epoch, claimed = 0, -1
        while True:
            try:
                await self._heard.wait()
                await self._recall()
                highest = max(transitions, await self._floor(), self._engine.highest_stamp())
                if highest > claimed:  # another's; or a claim of ours whose answer was lost
                    epoch = highest + 1
                await self._store.claim(epoch)
                if epoch != claimed:
                    await self._epochs.claim(epoch)  # so that no later leader goes below it
                    claimed = epoch
                begun = await self._fence(epoch)
                await self._sight.catch_up()
                await self._inbox.handled()
                if self._engine.highest_stamp(fences=False) >= epoch:
                    claimed = -1  # only the pods tell of that leader
                    continue
                since = await self._installation.since(self._clock())
                await self._inbox.put(Installed(self._clock(), since))
                notes = await self._notes(epoch)
                return LeadershipGained(self._clock(), epoch, notes, begun)
            except (StoreError, ClusterError) as error:
                log.warning("cannot begin to lead yet", extra={"why": str(error)})
                await asyncio.sleep(RETRY_SECONDS)

    async def _notes(self, epoch: int) -> Mapping[str, str] | None:
        """Return what the audit chain told of what is there; None: nobody knows any more."""
        notes = await self._store.noted()
        if notes is None and epoch == 1:  # nobody ever led: nothing was told
            await self._store.remember(epoch, tuple)
            return {}
        return notes

    async def _floor(self) -> int:
        """Return the highest epoch that is kept anywhere but in the lease and on pods."""
        return max(await self._store.floor(), await self._epochs.floor())

    async def _recall(self) -> None:
        """Let the engine hear what was kept of those who have no Tenant, and take it in."""
        kept = await self._keeper.read_others()
        await self._inbox.put(CheckpointsRead(self._clock(), kept))
        await self._inbox.handled()

    async def _fence(self, epoch: int) -> tuple[Intend, ...]:
        """Settle what the last leader left open: from now on only the pods themselves tell."""
        slots = asyncio.Semaphore(FENCES)

        async def fence(ref: PodRef) -> None:
            async with slots:
                await self._releaser.fence(ref, epoch)

        open_ = await self._store.intents()
        outcomes = await asyncio.gather(*(fence(i.ref) for i in open_), return_exceptions=True)
        for outcome in outcomes:
            if isinstance(outcome, BaseException):
                raise outcome
        if open_:
            log.info("settled what was under way", extra={"pods": len(open_), "epoch": epoch})
        return open_

    async def _ended(self) -> None:
        lost = asyncio.create_task(self._leadership.lost())
        deposed = asyncio.create_task(self._deposed.wait())
        try:
            await asyncio.wait({lost, deposed}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            lost.cancel()
            deposed.cancel()

    async def _step_down(self) -> None:
        self.leads, self.epoch = False, None
        self._copier.follow()
        await self._releases.stop()
        self._meters.leading(None)
        await self._inbox.put(LeadershipLost(self._clock()))
        if self._deposed.is_set():
            await self._leadership.give_up()
        await self._terms.end()
        log.info("following")
