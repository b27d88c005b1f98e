"""Finds orphaned and idle pods, and reports them to the engine.

It checks one held pod a second: the pod's controller may be gone. Prometheus supplies the use of
devices. The engine decides about the reported pods.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from app.controller.background import run_periodically
from app.controller.event_queue import EventQueue
from app.core.engine import Engine
from app.core.errors import FairgateError
from app.core.events import StalePodCleared, StalePodFound
from app.core.lifecycle.stale_pods import StaleReason
from app.core.model import Millis, Pod, Uid
from app.ports.cluster import DeviceUse, OwnerLookup
from app.ports.metrics import LeaderMetrics

LOOK_SECONDS = 1.0
DEVICE_CHECK_MS = Millis(300_000)
MIN_HELD_MS = Millis(600_000)
"""Minimum time in the queue. Kubernetes itself deletes younger orphans."""
BUSY_FRACTION = 0.01
"""A pod is idle if each of its devices is busy for less than this fraction of the window."""
SETTLED_MS = Millis(300_000)
"""Grace period after the first full window of a pod: images and data take time to load."""

log = logging.getLogger("fairgate.control")


class StalePodScanner:
    """The scanner. It is active while this replica leads."""

    def __init__(
        self,
        engine: Engine,
        owners: OwnerLookup,
        device_use: DeviceUse | None,
        event_queue: EventQueue,
        metrics: LeaderMetrics,
        leads: Callable[[], bool],
        clock: Callable[[], Millis],
        *,
        window: Millis,
    ) -> None:
        """`window`: how long devices must have been idle."""
        self._engine = engine
        self._owners = owners
        self._device_use = device_use
        self._event_queue = event_queue
        self._metrics = metrics
        self._leads = leads
        self._clock = clock
        self._window = window
        self._unchecked_pods: list[Pod] = []
        self._devices_checked_at: Millis | None = None

    async def scan_pods(self) -> None:
        """Scan until cancelled."""
        await run_periodically(LOOK_SECONDS, self._leads, self.check, self._reset)

    def _reset(self) -> None:
        self._unchecked_pods, self._devices_checked_at = [], None
        self._metrics.set_stale_pods({})

    async def check(self) -> None:
        """Check the next held pod and, if due, all devices. The two checks fail independently."""
        for part in (self._check_owner, self._check_devices):
            try:
                await part()
            except FairgateError as error:
                log.warning("stale pods not checked", extra={"why": str(error)})
        self._metrics.set_stale_pods(self._engine.stale_pods.count_by_tenant())

    async def _check_owner(self) -> None:
        if not self._unchecked_pods:
            old = self._clock() - MIN_HELD_MS
            self._unchecked_pods = [
                p for p in self._engine.held_pods() if p.owner and p.created_at <= old
            ][::-1]
        if not self._unchecked_pods:
            return
        pod = self._unchecked_pods.pop()
        gone = await self._owners.find_missing_owner(pod.namespace, pod.name, pod.uid)
        if not gone:
            await self._event_queue.put(
                StalePodCleared(self._clock(), pod.uid, StaleReason.OWNERLESS)
            )
            return
        why = (
            f"its controller, {gone}, is gone; delete the pod, or remove the controller from its "
            "ownerReferences"
        )
        await self._report(pod.uid, StaleReason.OWNERLESS, why)

    async def _check_devices(self) -> None:
        """Every `DEVICE_CHECK_MS`, report each pod with measurements as idle or in use."""
        now = self._clock()
        if self._device_use is None or (
            self._devices_checked_at is not None
            and now - self._devices_checked_at < DEVICE_CHECK_MS
        ):
            return
        self._devices_checked_at = now
        measured = await self._device_use.read_peak_device_use(self._window // 1000)
        for pod in self._engine.stale_pods.idle_candidates():
            part = measured.get((pod.namespace, pod.name))
            began = pod.started_at
            if part is None or began is None or now - began < self._window + SETTLED_MS:
                continue
            if part >= BUSY_FRACTION:
                await self._event_queue.put(StalePodCleared(now, pod.uid, StaleReason.IDLE))
                continue
            why = (
                f"it has not used its devices for {self._window // 60_000} min (at most "
                f"{part:.1%} of the time), while others may wait for them; end it if it is done"
            )
            await self._report(pod.uid, StaleReason.IDLE, why)

    async def _report(self, uid: Uid, kind: StaleReason, why: str) -> None:
        await self._event_queue.put(StalePodFound(self._clock(), uid, kind, why))
