"""Sets right what is past the gate: stamps who was there before us, evicts who must go.

A few at a time, and only while the lease is valid. What fails is not tried again here: the engine
asks again until it sees that it has happened.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable

from app.control.inbox import Inbox
from app.control.patience import Patience
from app.core.effects import Adopt, Bypassed, Expel
from app.core.errors import ClusterError, ClusterRefused
from app.core.events import EvictionAccepted, EvictionRefused
from app.core.model import Millis, Resource, Uid
from app.core.telling.views import ReleasedView
from app.ports import Adopter, Evictor, Leadership, Meters

CONCURRENCY = 8
"""Few enough that releases hardly wait behind them."""

log = logging.getLogger("fairgate.control")


class Corrections:
    """The adoptions and evictions under way."""

    def __init__(
        self,
        adopter: Adopter,
        evictor: Evictor,
        leadership: Leadership,
        inbox: Inbox,
        meters: Meters,
        clock: Callable[[], Millis],
        released: Callable[[Uid], ReleasedView | None] = lambda _: None,
        wanted: Callable[[Uid], bool] = lambda _: True,
    ) -> None:
        """`released` tells what a pod uses, and since when; `wanted` whether it is still to go."""
        self._adopter = adopter
        self._evictor = evictor
        self._leadership = leadership
        self._inbox = inbox
        self._meters = meters
        self._clock = clock
        self._released = released
        self._wanted = wanted
        self._orders: dict[Uid, Adopt | Expel] = {}
        """What waits, or is under way: one for a pod."""
        self._waiting: deque[Uid] = deque()
        self._workers: set[asyncio.Task[None]] = set()

    def begin(self, order: Adopt | Expel) -> None:
        """Start to carry this out, unless something is under way for that pod already."""
        uid = order.ref.uid
        if uid in self._orders:
            return
        self._orders[uid] = order
        self._waiting.append(uid)
        if sum(not worker.done() for worker in self._workers) < CONCURRENCY:
            worker = asyncio.create_task(self._work())
            self._workers.add(worker)
            worker.add_done_callback(self._end)

    def report(self, found: Bypassed) -> None:
        """Count and log a pod that got round the gate."""
        self._meters.bypassed()
        facts = {
            "uid": found.ref.uid,
            "namespace": found.ref.namespace,
            "pod": found.ref.name,
            "tenant": found.tenant,
            "user": found.user,
            "node": found.node,
            "stamp": found.stamp,
            "since": found.since,
        }
        log.error("a pod got past the gate without a release", extra=facts)

    async def stop(self) -> None:
        """Abandon what is under way. The next leader finds out what happened."""
        self._waiting.clear()
        tasks = list(self._workers)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._orders.clear()

    async def _work(self) -> None:
        """Carry out what waits, one after the other."""
        patience = Patience()
        while self._waiting:
            order = self._orders[self._waiting.popleft()]
            try:
                await self._carry_out(order, patience)
            finally:
                self._orders.pop(order.ref.uid, None)

    def _end(self, task: asyncio.Task[None]) -> None:
        self._workers.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("a correction failed unexpectedly", exc_info=error)

    async def _carry_out(self, order: Adopt | Expel, patience: Patience) -> None:
        if self._leadership.left() <= 0:
            return
        try:
            await self._attempt(order)
        except ClusterError as error:
            what = "adopt" if isinstance(order, Adopt) else "evict"
            facts = {**_facts(order, error), "tried": what}
            log.warning("a pod could not be put right; tried again later", extra=facts)
            if isinstance(order, Expel) and isinstance(error, ClusterRefused):
                await self._inbox.put(EvictionRefused(self._clock(), order.ref.uid))
            if not isinstance(error, ClusterRefused) or error.status in (409, 429):
                await asyncio.sleep(patience.after(error))
        else:
            patience.fulfilled()

    async def _attempt(self, order: Adopt | Expel) -> None:
        if isinstance(order, Adopt):
            await self._adopter.adopt(order)
            return
        if not self._wanted(order.ref.uid):
            return  # it turned out to be of use meanwhile, or is gone
        used = self._released(order.ref.uid)
        if await self._evictor.evict(order.ref):
            if used is not None:
                lost = lost_by(used, self._clock())
                self._meters.evicted(used.tenant, order.cause, lost)
            log.info("pod evicted", extra=_facts(order, order.why))
            await self._inbox.put(EvictionAccepted(self._clock(), order.ref.uid))
        else:
            await self._inbox.put(EvictionRefused(self._clock(), order.ref.uid))


def lost_by(used: ReleasedView, now: Millis) -> dict[Resource, float]:
    """Return the resource-seconds that a pod has used so far."""
    held = 0.0
    if used.released is not None:
        held = max(0, now - used.released) / 1000
    return {resource: amount * held for resource, amount in used.request.items()}


def _facts(order: Adopt | Expel, why: object) -> dict[str, str]:
    ref = order.ref
    return {"namespace": ref.namespace, "pod": ref.name, "uid": ref.uid, "why": str(why)}
