"""Executes the effects of `Correction`, one at a time for each pod or claim.

It stamps pods that predate Fairgate, evicts pods, gives and withdraws the notice of a reclaim, and
adds or removes the finalizer of claims.
A few run at a time, and only while the Lease is valid. Namespaces take turns, and after a failure
only the namespace of the order waits. A failed order is not retried here: the engine orders it
again until it observes the result.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Mapping
from typing import assert_never

from app.controller.background import TaskSet
from app.controller.event_queue import EventQueue
from app.core.effects import (
    Adopt,
    Bypassed,
    ClaimDeleted,
    EvictPod,
    GiveReclaimNotice,
    NodeRefused,
    ProtectClaim,
    UnprotectClaim,
    WithdrawReclaimNotice,
)
from app.core.errors import ClusterError, ClusterRefused
from app.core.events import EvictionAccepted, EvictionRefused
from app.core.explain.views import ReleasedView
from app.core.lifecycle.lost_work import lost_time
from app.core.model import Millis, Resource, Uid
from app.core.retry import ServerBackoff
from app.ports.cluster import Adopter, ClaimProtector, Evictor, ReclaimNotifier
from app.ports.leadership import Leadership
from app.ports.metrics import LeaderMetrics

CONCURRENCY = 8
"""Small, so that releases hardly wait for corrections."""

log = logging.getLogger("fairgate.control")


Correction = (
    Adopt | EvictPod | GiveReclaimNotice | WithdrawReclaimNotice | ProtectClaim | UnprotectClaim
)

_VERBS: Mapping[type[Correction], str] = {
    Adopt: "adopt",
    EvictPod: "evict",
    GiveReclaimNotice: "give notice",
    WithdrawReclaimNotice: "withdraw notice",
    ProtectClaim: "protect",
    UnprotectClaim: "unprotect",
}


class _Turns:
    """Waiting orders by namespace. A paused namespace gets no turn."""

    def __init__(self) -> None:
        self.paused: set[str] = set()
        self._waiting: dict[str, deque[Uid]] = {}

    def __contains__(self, namespace: str) -> bool:
        return namespace in self._waiting

    def add(self, namespace: str, uid: Uid) -> None:
        self._waiting.setdefault(namespace, deque()).append(uid)

    def take_next(self) -> Uid | None:
        """Return the next order, None if no namespace has a turn."""
        namespace = next((each for each in self._waiting if each not in self.paused), None)
        if namespace is None:
            return None
        orders = self._waiting.pop(namespace)
        uid = orders.popleft()
        if orders:
            self._waiting[namespace] = orders
        return uid

    def clear(self) -> None:
        self._waiting.clear()
        self.paused.clear()


class AdoptEvictExecutor:
    """The orders that wait or are in progress."""

    def __init__(
        self,
        adopter: Adopter,
        claims: ClaimProtector,
        evictor: Evictor,
        notifier: ReclaimNotifier,
        leadership: Leadership,
        event_queue: EventQueue,
        metrics: LeaderMetrics,
        clock: Callable[[], Millis],
        find_released: Callable[[Uid], ReleasedView | None] = lambda _: None,
        is_still_needed: Callable[[Uid], bool] = lambda _: True,
    ) -> None:
        """`find_released` returns the use of a pod, `is_still_needed` whether it must still be
        evicted.
        """
        self._adopter = adopter
        self._claims = claims
        self._evictor = evictor
        self._notifier = notifier
        self._leadership = leadership
        self._event_queue = event_queue
        self._metrics = metrics
        self._clock = clock
        self._find_released = find_released
        self._is_still_needed = is_still_needed
        self._orders: dict[Uid, Correction] = {}
        """Orders that wait or are in progress, at most one for each pod or claim."""
        self._turns = _Turns()
        self._backoffs: dict[str, ServerBackoff] = {}
        """Backoffs of namespaces whose last order failed."""
        self._failing: set[str] = set()
        """Namespaces in which an order failed since the last success."""
        self._server_backoff = ServerBackoff()
        self._workers, self._pauses = TaskSet(_log_failure), TaskSet(_log_failure)

    def start_order(self, order: Correction) -> None:
        """Queue an order. Ignore it if another order for the same object is unfinished."""
        uid = order.ref.uid
        if uid in self._orders:
            return
        self._orders[uid] = order
        self._turns.add(order.ref.namespace, uid)
        self._start_worker()

    def report_bypass(self, found: Bypassed | ClaimDeleted) -> None:
        """Log, and count, a pod that bypassed its queue; log a claim that is deleted too early."""
        facts: dict[str, object] = {
            "uid": found.ref.uid,
            "namespace": found.ref.namespace,
            "pod": found.ref.name,
            "tenant": found.tenant,
            "user": found.user,
        }
        if found.claim:
            facts |= {"claim": found.claim, "claim_uid": found.claim_uid}
        if isinstance(found, ClaimDeleted):
            log.warning("a claim of a released pod without a node is being deleted", extra=facts)
            return
        self._metrics.count_bypass()
        facts |= {"node": found.node, "stamp": found.stamp, "since": found.since}
        if found.claim:
            facts["gained"] = dict(found.gained)
            log.error("a pod has another claim than it was released for", extra=facts)
        else:
            log.error("a pod got past the gate without a release", extra=facts)

    def report_refusal(self, found: NodeRefused) -> None:
        """Count and log a released pod that its node refused."""
        self._metrics.count_node_refusal(found.pool, found.reason)
        facts = {
            "uid": found.ref.uid,
            "namespace": found.ref.namespace,
            "pod": found.ref.name,
            "tenant": found.tenant,
            "node": found.node,
            "reason": found.reason,
            "until": found.until,
        }
        log.warning("a node refused a released pod", extra=facts)

    async def stop(self) -> None:
        """Cancel all orders. The next leader observes their results."""
        self._turns.clear()
        await self._workers.stop()
        await self._pauses.stop()
        self._turns.paused.clear()
        self._orders.clear()
        self._backoffs.clear()
        self._failing.clear()

    def _start_worker(self) -> None:
        if len(self._workers) < CONCURRENCY:
            self._workers.start(self._run_worker())

    async def _run_worker(self) -> None:
        """Execute waiting orders, one after the other."""
        while (uid := self._turns.take_next()) is not None:
            order = self._orders[uid]
            try:
                await self._execute(order)
            finally:
                self._orders.pop(uid, None)

    async def _pause(self, namespace: str, error: ClusterError) -> None:
        """Delay further orders of a namespace, so that others do not wait for its failures.

        If many namespaces fail one after the other, the API server is overloaded: wait for it.
        """
        if namespace not in self._turns.paused:
            self._turns.paused.add(namespace)
            backoff = self._backoffs.setdefault(namespace, ServerBackoff())
            self._pauses.start(self._end_pause(namespace, backoff.next_delay(error)))
        self._failing.add(namespace)
        if len(self._failing) >= CONCURRENCY:
            await asyncio.sleep(self._server_backoff.next_delay(error))

    async def _end_pause(self, namespace: str, seconds: float) -> None:
        await asyncio.sleep(seconds)
        self._turns.paused.discard(namespace)
        if namespace not in self._turns:
            self._backoffs.pop(namespace, None)
            return
        for _ in range(CONCURRENCY):
            self._start_worker()

    async def _execute(self, order: Correction) -> None:
        if self._leadership.seconds_left() <= 0:
            return
        try:
            await self._attempt(order)
        except ClusterError as error:
            facts = {**_facts(order, error), "tried": _VERBS[type(order)]}
            log.warning("a pod or claim could not be put right; tried again later", extra=facts)
            if isinstance(order, EvictPod) and isinstance(error, ClusterRefused):
                await self._event_queue.put(EvictionRefused(self._clock(), order.ref.uid))
            if not isinstance(error, ClusterRefused) or error.status in (409, 429):
                await self._pause(order.ref.namespace, error)
        else:
            self._backoffs.pop(order.ref.namespace, None)
            self._failing.clear()
            self._server_backoff.reset()

    async def _attempt(self, order: Correction) -> None:
        match order:
            case Adopt():
                await self._adopter.adopt(order)
            case ProtectClaim(ref):
                await self._claims.protect(ref)
            case UnprotectClaim(ref, version):
                await self._claims.unprotect(ref, version)
            case GiveReclaimNotice():
                await self._notifier.give_notice(order)
            case WithdrawReclaimNotice():
                await self._notifier.withdraw_notice(order)
            case EvictPod():
                await self._evict(order)
            case _:
                assert_never(order)

    async def _evict(self, order: EvictPod) -> None:
        if not self._is_still_needed(order.ref.uid):
            return  # the pod was found to be in use meanwhile, or it is gone
        used = self._find_released(order.ref.uid)
        if await self._evictor.evict(order.ref):
            if used is not None:
                lost = lost_resource_seconds(used, self._clock())
                self._metrics.count_eviction(used.tenant, order.cause, lost)
            log.info("pod evicted", extra=_facts(order, order.why))
            await self._event_queue.put(EvictionAccepted(self._clock(), order.ref.uid))
        else:
            await self._event_queue.put(EvictionRefused(self._clock(), order.ref.uid))


def lost_resource_seconds(used: ReleasedView, now: Millis) -> dict[Resource, float]:
    """Return the resource-seconds that the eviction of a pod loses at most."""
    held = lost_time(used.released_at, used.checkpoint_interval, now) / 1000
    return {resource: amount * held for resource, amount in used.request.items()}


def _log_failure(error: BaseException) -> None:
    log.error("a correction failed unexpectedly", exc_info=error)


def _facts(order: Correction, why: object) -> dict[str, str]:
    ref = order.ref
    kind = "claim" if isinstance(order, ProtectClaim | UnprotectClaim) else "pod"
    return {"namespace": ref.namespace, kind: ref.name, "uid": ref.uid, "why": str(why)}
