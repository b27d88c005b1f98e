"""Evicts released work so that other work can start: all that one reclaim needs, or nothing.

First it is asked whether all of it could be evicted now; then it goes, one by one. Before each it
is asked again whether it is still wanted, and whether this replica still leads.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Sequence

from app.control.corrections import lost_by
from app.control.inbox import Inbox
from app.core.effects import Evict, LoopRefused
from app.core.errors import ClusterError, ClusterRefused
from app.core.events import EvictionAccepted, EvictionRefused
from app.core.model import Millis, Uid
from app.core.telling.views import ReleasedView
from app.ports import Evictor, Leadership, Meters

PAUSES = (0.5, 1.0, 2.0, 4.0, 8.0, 8.0)
"""Seconds between two tries to evict the rest of what has begun to go."""

log = logging.getLogger("fairgate.control")


class Allowance:
    """So many evictions a minute, on average; what goes together goes at once, and is paid for
    by waiting the longer afterwards."""

    def __init__(
        self,
        a_minute: float,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._seconds = 60.0 / a_minute
        self._clock = clock
        self._sleep = sleep
        self._free_at = clock()

    async def take(self, count: int) -> float:
        """Wait until the next may go; return until when they take up the allowance."""
        start = max(self._clock(), self._free_at)
        end = self._free_at = start + count * self._seconds
        await self._sleep(start - self._clock())
        return end

    def give_back(self, end: float) -> None:
        """None of those went that take it up until then; nothing comes back once others wait."""
        if self._free_at == end:
            self._free_at = self._clock()


class Reclaims:
    """The reclaims under way."""

    def __init__(
        self,
        evictor: Evictor,
        leadership: Leadership,
        inbox: Inbox,
        meters: Meters,
        clock: Callable[[], Millis],
        wanted: Callable[[Uid], bool],
        allowance: Allowance,
        released: Callable[[Uid], ReleasedView | None] = lambda _: None,
        *,
        pauses: Sequence[float] = PAUSES,
    ) -> None:
        """`wanted` tells whether a pod is still to go, `released` what it uses, since when."""
        self._evictor = evictor
        self._leadership = leadership
        self._inbox = inbox
        self._meters = meters
        self._clock = clock
        self._wanted = wanted
        self._allowance = allowance
        self._released = released
        self._pauses = tuple(pauses)
        self._gathered: list[Evict] = []
        self._under_way: set[asyncio.Task[None]] = set()

    @property
    def busy(self) -> bool:
        """Whether any reclaim is under way."""
        return bool(self._under_way)

    def begin(self, order: Evict) -> None:
        """Start a reclaim with the last of its evictions; they are ordered one after another."""
        self._gathered.append(order)
        if len(self._gathered) < order.together:
            return
        orders, self._gathered = self._gathered, []
        task = asyncio.create_task(self._carry_out(orders))
        self._under_way.add(task)
        task.add_done_callback(self._end)

    def report(self, found: LoopRefused) -> None:
        """Count and log a reclaim that was refused because it would undo another."""
        self._meters.loop_refused(found.beneficiary_tenant)
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
        """Abandon what is under way. What leaves by then, the next leader counts on."""
        self._gathered = []
        tasks = list(self._under_way)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _end(self, task: asyncio.Task[None]) -> None:
        self._under_way.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("a reclaim failed unexpectedly", exc_info=error)

    async def _carry_out(self, orders: list[Evict]) -> None:
        end = await self._allowance.take(len(orders))
        due = [order for order in orders if self._wanted(order.ref.uid)]
        leads = self._leadership.left() > 0
        if not (due and leads and await self._is_possible(due)):
            self._allowance.give_back(end)
            return
        for order in due:
            if not await self._see_off(order):
                return

    async def _is_possible(self, orders: list[Evict]) -> bool:
        """Ask whether all of them could be evicted now; if not, say who keeps the others."""
        try:
            kept = await self._evictor.kept([order.ref for order in orders])
        except ClusterError as error:
            kept = {orders[0].ref.uid: str(error)}
        for order in orders:
            if order.ref.uid in kept:
                await self._spare(order, kept[order.ref.uid])
        return not kept

    async def _see_off(self, order: Evict) -> bool:
        """Evict one pod, however often that takes within bounds; False: it stays."""
        why = ""
        for pause in (0.0, *self._pauses):
            await asyncio.sleep(pause)
            if not self._wanted(order.ref.uid):
                return True
            if self._leadership.left() <= 0:
                return False
            used = self._released(order.ref.uid)
            try:
                if await self._evictor.evict(order.ref):
                    await self._accept(order, used)
                    return True
                why = "a disruption budget, or a busy server, says so"
            except ClusterRefused as error:
                why = str(error)
                break
            except ClusterError as error:  # perhaps it was: asking again does no harm
                why = str(error)
        await self._spare(order, why)
        return False

    async def _accept(self, order: Evict, used: ReleasedView | None) -> None:
        if used is not None:
            lost = lost_by(used, self._clock())
            self._meters.evicted(used.tenant, order.cause.value, lost)
        facts = {"for": order.beneficiary_tenant, "pool": order.pool}
        log.info("pod evicted", extra=_facts(order, order.cause.value) | facts)
        await self._inbox.put(EvictionAccepted(self._clock(), order.ref.uid))

    async def _spare(self, order: Evict, why: str) -> None:
        self._meters.eviction_refused(order.tenant)
        log.warning("a pod cannot be evicted; others are sought", extra=_facts(order, why))
        await self._inbox.put(EvictionRefused(self._clock(), order.ref.uid))


def _facts(order: Evict, why: str) -> dict[str, str]:
    ref = order.ref
    return {"namespace": ref.namespace, "pod": ref.name, "uid": ref.uid, "why": why}
