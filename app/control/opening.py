"""How a term begins: nobody older can act any more, and all that was done is known.

Decides nothing, and releases nothing.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping

from app.control.inbox import Inbox
from app.control.releases import complain
from app.core.effects import Intend, PodRef
from app.core.engine import Engine
from app.core.errors import ClusterError, PodUnyielding, StoreError
from app.core.events import CheckpointsRead, Installed, LeadershipGained
from app.core.fair.order import likely
from app.core.fair.runs import Run
from app.core.model import Millis
from app.ports import Epochs, Installation, Keeper, Releaser, Sight, Store

RETRY_SECONDS = 0.5

FENCES = 16
"""Pods fenced at once."""

FENCE_SECONDS = 20.0
"""What is not fenced by then is fenced while leading."""

log = logging.getLogger("fairgate.control")


class Opening:
    """Begins terms. `heard` is set once every source has been heard whole."""

    def __init__(
        self,
        engine: Engine,
        inbox: Inbox,
        store: Store,
        releaser: Releaser,
        installation: Installation,
        sight: Sight,
        keeper: Keeper,
        epochs: Epochs,
        clock: Callable[[], Millis],
        heard: asyncio.Event,
    ) -> None:
        self._engine = engine
        self._inbox = inbox
        self._store = store
        self._releaser = releaser
        self._installation = installation
        self._sight = sight
        self._keeper = keeper
        self._epochs = epochs
        self._clock = clock
        self._heard = heard

    async def is_possible(self) -> bool:
        """Tell whether a term could begin at once."""
        if not (self._heard.is_set() and self._engine.ready):
            return False
        try:
            await self._store.floor()
        except StoreError as error:
            log.warning("not standing for leader: no Redis", extra={"why": str(error)})
            return False
        return True

    async def run(self, transitions: int) -> LeadershipGained:
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
                highest = await self._highest(transitions)
                if highest > claimed:  # another's; or a claim of ours whose answer was lost
                    epoch = highest + 1
                await self._store.claim(epoch)
                if epoch != claimed:
                    await self._epochs.claim(epoch)  # so that no later leader goes below it
                    claimed = epoch
                begun, unsettled = await self._fence(epoch)
                # Nobody writes these any more, so they are read while the watches catch up.
                reading = asyncio.create_task(self._kept(epoch))
                try:
                    await self._sight.catch_up()
                    await self._inbox.handled()
                    if self._engine.highest_stamp(fences=False) >= epoch:
                        claimed = -1  # only the pods tell of that leader
                        continue
                    since = await self._installation.since(self._clock())
                    await self._inbox.put(Installed(self._clock(), since))
                    notes, running = await reading
                finally:
                    reading.cancel()
                return LeadershipGained(self._clock(), epoch, notes, begun, unsettled, running)
            except (StoreError, ClusterError) as error:
                log.warning("cannot begin to lead yet", extra={"why": str(error)})
                await asyncio.sleep(RETRY_SECONDS)

    async def _kept(self, epoch: int) -> tuple[Mapping[str, str] | None, tuple[Run, ...]]:
        """Return what the store keeps for every leader: see `LeadershipGained`."""
        return await self._notes(epoch), await self._store.running()

    async def _notes(self, epoch: int) -> Mapping[str, str] | None:
        """Return what the audit chain told of what is there; None: nobody knows any more."""
        notes = await self._store.noted()
        if notes is None and epoch == 1:  # nobody ever led: nothing was told
            await self._store.remember(epoch, tuple)
            return {}
        return notes

    async def _highest(self, transitions: int) -> int:
        """Return the highest epoch of all the places where one is kept."""
        # Whoever may edit pods, or the lease, may write any number there.
        claims = likely([transitions]), self._engine.highest_stamp()
        known = max(await self._epochs.floor(), *claims)
        return max(known, await self._store.floor(known))

    async def _recall(self) -> None:
        """Let the engine hear what was kept of those who have no Tenant, and take it in."""
        kept = await self._keeper.read_others()
        await self._inbox.put(CheckpointsRead(self._clock(), kept))
        await self._inbox.handled()

    async def _fence(self, epoch: int) -> tuple[tuple[Intend, ...], tuple[Intend, ...]]:
        """Settle what the last leader left open: from now on only the pods themselves tell.

        Returns all of it, and what of it is not settled: one pod that nobody can change, or many
        slow ones, must not keep everybody from leading. It counts as used, so nothing can be
        released twice or beyond what there is.
        """
        slots = asyncio.Semaphore(FENCES)

        async def fence(ref: PodRef) -> bool:
            async with slots:
                try:
                    await self._releaser.fence(ref, epoch)
                except PodUnyielding as error:
                    complain(ref, error)
                    return False
                return True

        open_ = await self._store.intents()
        if not open_:
            return (), ()
        tasks = [asyncio.create_task(fence(intent.ref)) for intent in open_]
        try:
            await asyncio.wait(tasks, timeout=FENCE_SECONDS)
        finally:
            for task in tasks:
                task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        settled = [not task.cancelled() and task.result() for task in tasks]
        unsettled = tuple(i for i, is_settled in zip(open_, settled, strict=True) if not is_settled)
        facts = {"pods": len(open_), "unsettled": len(unsettled), "epoch": epoch}
        log.info("settled what was under way", extra=facts)
        return open_, unsettled
