"""Executes releases. Each one writes an intent, sends the patch, and reports the answer.

The intents of a gang are written together, before its first patch is sent. A release with an
unknown outcome counts as used until the pod shows the outcome. If its pod cannot be changed, the
pod is read with growing pauses, and the release frees its concurrency slot.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable

from app.controller.background import TaskSet
from app.controller.event_queue import EventQueue
from app.controller.store_writer import StoreWriter
from app.core.effects import Intend, PodRef, Release
from app.core.errors import ClusterError, PodUnyielding
from app.core.events import ReleaseAnswered, ReleaseStuck
from app.core.model import Millis, ReleaseOutcome
from app.ports.cluster import Releaser
from app.ports.leadership import Leadership
from app.ports.metrics import LeaderMetrics

OUTCOME_POLL_SECONDS = (0.1, 0.2, 0.5, 1.0, 2.0)
"""Pauses between reads of a pod while the outcome is unknown. The last is repeated."""

STUCK_AFTER = 5
"""Failed reads of a pod that cannot be changed before its release counts as stuck."""

STUCK_SECONDS = (2.0, 5.0, 10.0, 20.0, 40.0, 60.0)
"""Pauses between reads of a stuck release. The last is repeated."""

log = logging.getLogger("fairgate.control")


class Releases:
    """The releases in progress."""

    def __init__(
        self,
        releaser: Releaser,
        store_writer: StoreWriter,
        leadership: Leadership,
        event_queue: EventQueue,
        metrics: LeaderMetrics,
        clock: Callable[[], Millis],
        concurrency: int,
        depose: Callable[[], None],
    ) -> None:
        self._releaser = releaser
        self._store_writer = store_writer
        self._leadership = leadership
        self._event_queue = event_queue
        self._metrics = metrics
        self._clock = clock
        self._slots = asyncio.Semaphore(concurrency)
        self._unmanaged_slots = asyncio.Semaphore(max(1, concurrency // 4))
        self._depose = depose
        self._gathered: list[Release] = []
        self._tasks = TaskSet(self._handle_failure)
        self._closing = False

    def start_release(self, order: Release) -> None:
        """Start one release. Its answer is a `ReleaseAnswered` event. Ignored after `drain`.

        The releases of one gang arrive in a row, and start with the last one.
        """
        if self._closing:
            return
        self._gathered.append(order)
        if len(self._gathered) < order.batch_size:
            return
        orders, self._gathered = self._gathered, []
        intended = asyncio.ensure_future(
            self._store_writer.write_intents([each.intent for each in orders])
        )
        for each in orders:
            self._tasks.start(self._execute(each, intended))

    def settle_unfinished(self, intents: Iterable[Intend], epoch: int) -> None:
        """Find the outcome of releases of older leaders that are not settled yet."""
        for intent in intents:
            self._tasks.start(self._settle_release(intent.ref, epoch))

    def _handle_failure(self, error: BaseException) -> None:
        # The outcome is unknown, and no task looks for it: the next term settles it.
        log.error("a release failed unexpectedly; stepping down", exc_info=error)
        self._depose()

    async def stop(self) -> None:
        """Cancel all releases. The next leader reads their outcome from the pods."""
        self._gathered = []
        await self._tasks.stop()

    async def drain(self, seconds: float) -> None:
        """Refuse further releases. Wait up to `seconds` for those in progress."""
        self._closing = True
        await self._tasks.wait(seconds)

    async def _execute(self, order: Release, intended: asyncio.Future[bool]) -> None:
        began = self._clock()
        intent = order.intent
        answer = await self._attempt(order, intended)
        now = self._clock()
        waited = (now - order.waiting_since) / 1000 if answer is ReleaseOutcome.RELEASED else None
        if answer is ReleaseOutcome.RELEASED and order.decision is not None:
            facts = {"pod": intent.ref.name, "namespace": intent.ref.namespace}
            log.debug("released", extra={**facts, "because": order.decision.reason})
        self._metrics.count_release(
            intent.tenant, intent.pool, answer, (now - began) / 1000, waited
        )
        await self._event_queue.put(ReleaseAnswered(self._clock(), intent.ref.uid, answer))

    async def _attempt(self, order: Release, intended: asyncio.Future[bool]) -> ReleaseOutcome:
        if not await asyncio.shield(intended):
            return ReleaseOutcome.UNSENT
        # Pods without managed requests have no pool. Each of their claims is written before it.
        async with self._slots if order.intent.pool else self._unmanaged_slots:
            if self._leadership.seconds_left() <= 0:
                return ReleaseOutcome.HELD
            answer = await self._releaser.release(order)
        if answer is not None:
            return answer
        return await self._wait_for_outcome(
            order.intent.ref, lambda: self._releaser.read_outcome(order)
        )

    async def _settle_release(self, ref: PodRef, epoch: int) -> None:
        async def fence() -> ReleaseOutcome | None:
            try:
                return await self._releaser.fence(ref, epoch)
            except PodUnyielding:
                raise
            except ClusterError:
                return None

        answer = await self._wait_for_outcome(ref, fence, STUCK_AFTER)
        await self._event_queue.put(ReleaseAnswered(self._clock(), ref.uid, answer))

    async def _wait_for_outcome(
        self,
        ref: PodRef,
        read_outcome: Callable[[], Awaitable[ReleaseOutcome | None]],
        failures: int = 0,
    ) -> ReleaseOutcome:
        """Read the pod until it shows the outcome of its release, without a time limit."""
        tries = 0
        while True:
            await asyncio.sleep(_pause(tries, failures))
            tries += 1
            try:
                answer = await read_outcome()
            except PodUnyielding as error:
                failures += 1
                if failures == STUCK_AFTER:
                    log_unyielding_pod(ref, error)
                    await self._event_queue.put(ReleaseStuck(self._clock(), ref.uid))
            else:
                if answer is not None:
                    return answer


def log_unyielding_pod(ref: PodRef, error: PodUnyielding) -> None:
    """Log a pod that cannot be changed. Its release stays open, and the pod counts as used."""
    facts = {"namespace": ref.namespace, "pod": ref.name, "uid": ref.uid, "why": str(error)}
    log.error("release not settled: the pod cannot be changed, and counts as used", extra=facts)


def _pause(tries: int, failures: int) -> float:
    if failures < STUCK_AFTER:
        return OUTCOME_POLL_SECONDS[min(tries, len(OUTCOME_POLL_SECONDS) - 1)]
    return STUCK_SECONDS[min(failures - STUCK_AFTER, len(STUCK_SECONDS) - 1)]
