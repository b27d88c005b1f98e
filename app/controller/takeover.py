"""Takeover by a new leader: chooses an epoch, stops older leaders, and reads their results.

`Leader` runs it before each term.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import deque
from collections.abc import Callable, Mapping

from app.controller.event_queue import EventQueue
from app.controller.release_executor import complain
from app.core.effects import Intend, PodRef
from app.core.engine import Engine
from app.core.epochs import highest_plausible
from app.core.errors import ClusterError, PodUnyielding, StoreError
from app.core.events import CheckpointsRead, Installed, LeadershipGained
from app.core.fairshare.usage_record import UsageRecord
from app.core.model import Millis
from app.ports.cluster import CheckpointStore, InstallRecord, Releaser, WatchSync
from app.ports.leadership import EpochFloor
from app.ports.store import Store

RETRY_SECONDS = 0.5

FENCES = 16
"""Pods fenced at once."""

FENCE_SECONDS = 20.0
"""Pods that are not fenced within this time are fenced during the term."""

HASTEN_SECONDS = 0.1
"""Time between two writes that hasten the proof of the watches. A short list needs none."""

HASTENED = 5
"""Most such writes of a takeover."""

log = logging.getLogger("fairgate.control")


class Takeover:
    """Prepares terms. `heard` is set after every source was received completely."""

    def __init__(
        self,
        engine: Engine,
        inbox: EventQueue,
        store: Store,
        releaser: Releaser,
        installation: InstallRecord,
        sync: WatchSync,
        keeper: CheckpointStore,
        epochs: EpochFloor,
        clock: Callable[[], Millis],
        heard: asyncio.Event,
    ) -> None:
        self._engine = engine
        self._inbox = inbox
        self._store = store
        self._releaser = releaser
        self._installation = installation
        self._sync = sync
        self._keeper = keeper
        self._epochs = epochs
        self._clock = clock
        self._heard = heard
        self._logged = ""
        """Why the store last failed; empty if it did not. Only changes are logged."""

    async def is_possible(self) -> bool:
        """Return whether a term could begin at once."""
        if not (self._heard.is_set() and self._engine.ready):
            return False
        try:
            await self._store.floor()
        except StoreError as error:
            why = str(error)
            if why != self._logged:
                log.warning("not standing for leader: no Redis", extra={"why": why})
            self._logged = why
            return False
        self._logged = ""
        return True

    async def take_over(self, transitions: int) -> LeadershipGained:
        """Choose the epoch and make releases of older epochs impossible; return the first event.

        The order matters. First, older leaders can no longer write intents. Then their patches
        fail on every pod with an open intent. Then the watches catch up with all that succeeded.
        The install time, which decides on adoption, is known before any running pod is classified.
        Retry until all steps succeed.
        """
        epoch, claimed = 0, -1
        while True:
            try:
                await self._heard.wait()
                await self._recall()
                highest = await self._highest(transitions)
                if highest > claimed:  # another leader's, or our own claim with a lost answer
                    epoch = highest + 1
                await self._store.claim(epoch)
                if epoch != claimed:
                    await self._epochs.claim(epoch)  # so that no later leader chooses a lower epoch
                    claimed = epoch
                begun, unsettled = await self._fence(epoch)
                # The store accepts no older writer now, so read while the watches catch up.
                reading = asyncio.create_task(self._kept(epoch))
                hastening = asyncio.create_task(self._hasten(epoch))
                try:
                    await self._sync.catch_up()
                    hastening.cancel()
                    await self._inbox.handled()
                    if self._engine.highest_stamp(fences=False) >= epoch:
                        claimed = -1  # that leader left its epoch only on pods
                        continue
                    since = await self._installation.since(self._clock())
                    await self._inbox.put(Installed(self._clock(), since))
                    notes, running = await reading
                finally:
                    reading.cancel()
                    hastening.cancel()
                return LeadershipGained(self._clock(), epoch, notes, begun, unsettled, running)
            except (StoreError, ClusterError) as error:
                log.warning("cannot begin to lead yet", extra={"why": str(error)})
                await asyncio.sleep(RETRY_SECONDS)

    async def _hasten(self, epoch: int) -> None:
        """Write a fence on a few held pods, because the watch of pods must show a recent change.

        Such an event takes milliseconds, a bookmark of the API server up to two seconds. The fence
        changes nothing else: a gang counts as begun by it, so pods of gangs are left out.
        """
        lone = (pod for pod in self._engine.held() if not pod.gang)
        for pod in deque(lone, HASTENED):  # the newest, which are hardly released first
            await asyncio.sleep(HASTEN_SECONDS)
            with contextlib.suppress(ClusterError):
                await self._releaser.fence(PodRef(pod.uid, pod.namespace, pod.name), epoch)

    async def _kept(self, epoch: int) -> tuple[Mapping[str, str] | None, tuple[UsageRecord, ...]]:
        """Return the audit markers and the open usage records: see `LeadershipGained`."""
        return await self._notes(epoch), await self._store.running()

    async def _notes(self, epoch: int) -> Mapping[str, str] | None:
        """Return the audit markers; None if Redis lost them."""
        notes = await self._store.noted()
        if notes is None and epoch == 1:  # there was no leader before, so there are no markers
            await self._store.remember(epoch, tuple)
            return {}
        return notes

    async def _highest(self, transitions: int) -> int:
        """Return the highest epoch of Redis, the epoch floor, the Lease, pods and checkpoints."""
        # Users with write access to pods or the Lease can put any number there.
        claims = highest_plausible([transitions]), self._engine.highest_stamp()
        known = max(await self._epochs.floor(), *claims)
        return max(known, await self._store.floor(known))

    async def _recall(self) -> None:
        """Pass the checkpoints of tenants without a Tenant object to the engine; wait for it."""
        kept = await self._keeper.read_others()
        await self._inbox.put(CheckpointsRead(self._clock(), kept))
        await self._inbox.handled()

    async def _fence(self, epoch: int) -> tuple[tuple[Intend, ...], tuple[Intend, ...]]:
        """Settle the releases that the last leader did not finish.

        Return all their intents, and those that are not settled. A pod that cannot be changed, or
        many slow pods, must not prevent a term. Unsettled pods count as used, so no pod is released
        twice or beyond the capacity.
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
        log.info("settled the unfinished operations", extra=facts)
        return open_, unsettled
