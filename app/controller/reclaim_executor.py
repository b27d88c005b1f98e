"""Executes the evictions of a reclaim, rate limited.

It first checks that disruption budgets allow all evictions together. Then it evicts pod by pod.
Before each eviction it checks that the eviction is still needed and that this replica still leads.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Sequence

from app.controller.adopt_evict import lost_resource_seconds
from app.controller.background import TaskSet
from app.controller.event_queue import EventQueue
from app.core.effects import EvictForReclaim, ReclaimOnCooldown
from app.core.errors import ClusterError, ClusterRefused
from app.core.events import EvictionAccepted, EvictionRefused
from app.core.explain.views import ReleasedView
from app.core.model import Millis, Uid
from app.ports.cluster import Evictor
from app.ports.leadership import Leadership
from app.ports.metrics import LeaderMetrics

PAUSES = (0.5, 1.0, 2.0, 4.0, 8.0, 8.0)
"""Seconds before each retry of an eviction, after a reclaim has begun."""

log = logging.getLogger("fairgate.control")


BURST_SECONDS = 30.0
"""Unused allowance is saved up for this time, so that a guarantee of many pods need not wait."""


class EvictionRateLimiter:
    """Rate limit of evictions, as an average per minute.

    The evictions of one reclaim go at once. The next reclaim waits the longer for it.
    """

    def __init__(
        self,
        a_minute: float,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._seconds = 60.0 / a_minute
        self._clock = clock
        self._sleep = sleep
        self._free_at = self._previous_free_at = clock() - BURST_SECONDS

    async def reserve(self, count: float) -> float:
        """Wait until `count` evictions may go; return the end of the time that they use up."""
        now = self._clock()
        start = self._previous_free_at = max(now - BURST_SECONDS, self._free_at)
        end = self._free_at = start + count * self._seconds
        await self._sleep(max(0.0, start - now))
        return end

    def return_unused(self, end: float) -> None:
        """Return the allowance of unused evictions, unless later ones already wait for theirs.

        `end` is the result of `reserve`.
        """
        if self._free_at == end:
            self._free_at = self._previous_free_at


class Reclaims:
    """The reclaims in progress."""

    def __init__(
        self,
        evictor: Evictor,
        leadership: Leadership,
        event_queue: EventQueue,
        metrics: LeaderMetrics,
        clock: Callable[[], Millis],
        is_still_needed: Callable[[Uid], bool],
        rate_limiter: EvictionRateLimiter,
        find_released: Callable[[Uid], ReleasedView | None] = lambda _: None,
        *,
        pauses: Sequence[float] = PAUSES,
    ) -> None:
        """`is_still_needed`: whether a pod must still be evicted. `find_released`: its use."""
        self._evictor = evictor
        self._leadership = leadership
        self._event_queue = event_queue
        self._metrics = metrics
        self._clock = clock
        self._is_still_needed = is_still_needed
        self._rate_limiter = rate_limiter
        self._find_released = find_released
        self._pauses = tuple(pauses)
        self._gathered: list[EvictForReclaim] = []
        self._tasks = TaskSet(_log_failure)

    @property
    def is_busy(self) -> bool:
        """Return whether any reclaim is in progress."""
        return bool(self._tasks)

    def add_eviction(self, order: EvictForReclaim) -> None:
        """Collect the evictions of one reclaim, which arrive in a row. Start it with the last."""
        self._gathered.append(order)
        if len(self._gathered) < order.batch_size:
            return
        orders, self._gathered = self._gathered, []
        self._tasks.start(self._execute(orders))

    def report_cooldown(self, found: ReclaimOnCooldown) -> None:
        """Count and log a reclaim that was refused because it would undo another."""
        self._metrics.count_reclaim_on_cooldown(found.beneficiary_tenant)
        facts = {
            "uid": found.beneficiary.uid,
            "namespace": found.beneficiary.namespace,
            "pod": found.beneficiary.name,
            "tenant": found.beneficiary_tenant,
            "from": found.tenant,
            "pool": found.pool,
            "until": found.until,
        }
        log.warning("not reclaimed: the reverse was done within the last hour", extra=facts)

    async def stop(self) -> None:
        """Cancel all reclaims. The next leader observes the pods that already terminate."""
        self._gathered = []
        await self._tasks.stop()

    async def _execute(self, orders: list[EvictForReclaim]) -> None:
        end = await self._rate_limiter.reserve(len(orders))
        due = [order for order in orders if self._is_still_needed(order.ref.uid)]
        leads = self._leadership.seconds_left() > 0
        if not (due and leads and await self._is_possible(due)):
            self._rate_limiter.return_unused(end)
            return
        for order in due:
            if not await self._evict_with_retries(order):
                return

    async def _is_possible(self, orders: list[EvictForReclaim]) -> bool:
        """Return whether all pods could be evicted now. If not, report the pods that would stay.

        Without an answer of the API server, no pod is evicted, even if budgets are overridden.
        """
        try:
            kept = await self._evictor.find_unevictable([order.ref for order in orders])
        except ClusterError as error:
            await self._record_refusal(orders[0], str(error))
            return False
        allocation = [order for order in orders if order.ref.uid in kept and not order.overrides]
        for order in allocation:
            await self._record_refusal(order, kept[order.ref.uid])
        return not allocation

    async def _evict_with_retries(self, order: EvictForReclaim) -> bool:
        """Evict one pod, with a bounded number of retries. Return False if it stays."""
        why = ""
        for pause in (0.0, *self._pauses):
            await asyncio.sleep(pause)
            if not self._is_still_needed(order.ref.uid):
                return True
            if self._leadership.seconds_left() <= 0:
                return False
            used = self._find_released(order.ref.uid)
            try:
                if await self._evict(order):
                    await self._record_eviction(order, used)
                    return True
                why = "a disruption budget, or a busy server, says so"
            except ClusterRefused as error:
                why = str(error)
                break
            except ClusterError as error:  # the pod may be evicted; a retry is harmless
                why = str(error)
        await self._record_refusal(order, why)
        return False

    async def _evict(self, order: EvictForReclaim) -> bool:
        """Evict a pod. If its budgets refuse and are overridden, delete it. False: it stays."""
        if await self._evictor.evict(order.ref):
            return True
        if not order.overrides:
            return False
        if self._leadership.seconds_left() <= 0:
            return False
        await self._evictor.delete(order.ref)
        self._metrics.count_overridden_budget(order.tenant)
        log.warning("a disruption budget was overridden", extra=_facts(order, order.cause.value))
        return True

    async def _record_eviction(self, order: EvictForReclaim, used: ReleasedView | None) -> None:
        if used is not None:
            lost = lost_resource_seconds(used, self._clock())
            self._metrics.count_eviction(used.tenant, order.cause.value, lost)
        facts = {"for": order.beneficiary_tenant, "pool": order.pool}
        log.info("pod evicted", extra=_facts(order, order.cause.value) | facts)
        await self._event_queue.put(EvictionAccepted(self._clock(), order.ref.uid))

    async def _record_refusal(self, order: EvictForReclaim, why: str) -> None:
        self._metrics.count_refused_eviction(order.tenant)
        log.warning("a pod cannot be evicted; others are sought", extra=_facts(order, why))
        await self._event_queue.put(EvictionRefused(self._clock(), order.ref.uid))


def _log_failure(error: BaseException) -> None:
    log.error("a reclaim failed unexpectedly", exc_info=error)


def _facts(order: EvictForReclaim, why: str) -> dict[str, str]:
    ref = order.ref
    return {"namespace": ref.namespace, "pod": ref.name, "uid": ref.uid, "why": why}
