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
from app.controller.release_executor import log_unyielding_pod
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

FENCE_CONCURRENCY = 16
"""Pods fenced at once."""

FENCE_SECONDS = 20.0
"""Pods that are not fenced within this time are fenced during the term."""

SPEED_UP_SECONDS = 0.1
"""Time between two writes that hasten the proof of the watches. A short list needs none."""

MAX_SPEED_UP_WRITES = 5
"""Most such writes of a takeover."""

log = logging.getLogger("fairgate.control")


class Takeover:
    """Prepares terms. `all_sources_received` is set after every source was received completely."""

    def __init__(
        self,
        engine: Engine,
        event_queue: EventQueue,
        store: Store,
        releaser: Releaser,
        installation: InstallRecord,
        sync: WatchSync,
        checkpoint_store: CheckpointStore,
        epoch_floor: EpochFloor,
        clock: Callable[[], Millis],
        all_sources_received: asyncio.Event,
    ) -> None:
        self._engine = engine
        self._event_queue = event_queue
        self._store = store
        self._releaser = releaser
        self._installation = installation
        self._sync = sync
        self._checkpoint_store = checkpoint_store
        self._epoch_floor = epoch_floor
        self._clock = clock
        self._all_sources_received = all_sources_received
        self._last_store_error = ""
        """Why the store last failed; empty if it did not. Only changes are logged."""

    async def is_possible(self) -> bool:
        """Return whether a term could begin at once."""
        if not (self._all_sources_received.is_set() and self._engine.is_ready):
            return False
        try:
            await self._store.read_epoch_floor()
        except StoreError as error:
            why = str(error)
            if why != self._last_store_error:
                log.warning("not standing for leader: no Redis", extra={"why": why})
            self._last_store_error = why
            return False
        self._last_store_error = ""
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
                await self._all_sources_received.wait()
                await self._restore_checkpoints()
                highest = await self._highest_epoch(transitions)
                if highest > claimed:  # another leader's, or our own claim with a lost answer
                    epoch = highest + 1
                await self._store.claim_epoch(epoch)
                if epoch != claimed:
                    await self._epoch_floor.claim_epoch(
                        epoch
                    )  # so that no later leader chooses a lower epoch
                    claimed = epoch
                begun, unsettled = await self._fence_open_releases(epoch)
                # The store accepts no older writer now, so read while the watches catch up.
                reading = asyncio.create_task(self._read_markers_and_usage(epoch))
                speed_up = asyncio.create_task(self._speed_up_watches(epoch))
                try:
                    await self._sync.catch_up()
                    speed_up.cancel()
                    await self._event_queue.wait_until_handled()
                    if self._engine.highest_epoch(fences=False) >= epoch:
                        claimed = -1  # that leader left its epoch only on pods
                        continue
                    since = await self._installation.ensure_install_time(self._clock())
                    await self._event_queue.put(Installed(self._clock(), since))
                    markers, running = await reading
                finally:
                    reading.cancel()
                    speed_up.cancel()
                return LeadershipGained(self._clock(), epoch, markers, begun, unsettled, running)
            except (StoreError, ClusterError) as error:
                log.warning("cannot begin to lead yet", extra={"why": str(error)})
                await asyncio.sleep(RETRY_SECONDS)

    async def _speed_up_watches(self, epoch: int) -> None:
        """Write a fence on a few held pods, because the watch of pods must show a recent change.

        Such an event takes milliseconds, a bookmark of the API server up to two seconds. The fence
        changes nothing else: a gang counts as begun by it, so pods of gangs are left out.
        """
        lone = (pod for pod in self._engine.held_pods() if not pod.gang)
        for pod in deque(lone, MAX_SPEED_UP_WRITES):  # the newest, which are hardly released first
            await asyncio.sleep(SPEED_UP_SECONDS)
            with contextlib.suppress(ClusterError):
                await self._releaser.fence(PodRef(pod.uid, pod.namespace, pod.name), epoch)

    async def _read_markers_and_usage(
        self, epoch: int
    ) -> tuple[Mapping[str, str] | None, tuple[UsageRecord, ...]]:
        """Return the audit markers and the open usage records: see `LeadershipGained`."""
        return await self._read_markers(epoch), await self._store.read_open_usage()

    async def _read_markers(self, epoch: int) -> Mapping[str, str] | None:
        """Return the audit markers; None if Redis lost them."""
        markers = await self._store.audit_markers()
        if markers is None and epoch == 1:  # there was no leader before, so there are no markers
            await self._store.restore_audit_markers(epoch, tuple)
            return {}
        return markers

    async def _highest_epoch(self, transitions: int) -> int:
        """Return the highest epoch of Redis, the epoch floor, the Lease, pods and checkpoints."""
        # Users with write access to pods or the Lease can put any number there.
        claims = highest_plausible([transitions]), self._engine.highest_epoch()
        known = max(await self._epoch_floor.read_epoch_floor(), *claims)
        return max(known, await self._store.read_epoch_floor(known))

    async def _restore_checkpoints(self) -> None:
        """Pass the checkpoints of tenants without a Tenant object to the engine; wait for it."""
        kept = await self._checkpoint_store.read_other_checkpoints()
        await self._event_queue.put(CheckpointsRead(self._clock(), kept))
        await self._event_queue.wait_until_handled()

    async def _fence_open_releases(
        self, epoch: int
    ) -> tuple[tuple[Intend, ...], tuple[Intend, ...]]:
        """Settle the releases that the last leader did not finish.

        Return all their intents, and those that are not settled. A pod that cannot be read or
        changed, or many slow pods, must not prevent a term. Unsettled pods count as used, so no pod
        is released twice or beyond the capacity.
        """
        slots = asyncio.Semaphore(FENCE_CONCURRENCY)

        async def fence(ref: PodRef) -> bool:
            async with slots:
                try:
                    await self._releaser.fence(ref, epoch)
                except PodUnyielding as error:
                    log_unyielding_pod(ref, error)
                    return False
                except ClusterError as error:
                    facts = {"namespace": ref.namespace, "pod": ref.name, "why": str(error)}
                    log.warning("a release is not settled; tried again later", extra=facts)
                    return False
                return True

        open_ = await self._store.read_open_intents()
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
