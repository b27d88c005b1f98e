"""Baselines that Fairgate is compared with: FIFO, and FIFO with backfill.

One pool of devices, without nodes and preemption. Tenants and users are ignored.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable, Sequence

from app.core.model import Millis, NodeName, PoolName, Resource
from app.sim.cluster.workload import (
    SimulatedWorkload,
    TimelineEntry,
    TimelineStep,
    rigid_entry,
)
from app.sim.metrics.waits import devices_of


class BaselineQueue:
    """Waiting workloads, oldest first, one queue per size to find the oldest that fits fast."""

    def __init__(self) -> None:
        self._sizes: dict[int, deque[tuple[int, SimulatedWorkload]]] = {}

    def add(self, number: int, size: int, work: SimulatedWorkload) -> None:
        """Append a workload; `number` must grow with every call."""
        self._sizes.setdefault(size, deque()).append((number, work))

    def take_fitting(self, free: int, backfill: bool) -> SimulatedWorkload | None:
        """Take the oldest if it fits; with `backfill`, the oldest that fits. Otherwise None."""
        heads = (
            (queue[0][0], size)
            for size, queue in self._sizes.items()
            if queue and (size <= free or not backfill)
        )
        number, size = min(heads, default=(-1, free + 1))
        if number < 0 or size > free:
            return None
        return self._sizes[size].popleft()[1]


def replay(
    works: Sequence[SimulatedWorkload],
    devices: int,
    device: Resource,
    *,
    backfill: bool,
    pool: PoolName,
    tell: Callable[[Millis], None] | None = None,
) -> list[TimelineEntry]:
    """Play a log, sorted by arrival, in FIFO order, and return its timeline.

    At one instant workloads end first, then arrive, then start. FIFO: only the oldest may start,
    so it blocks all others while it does not fit. With `backfill`: the oldest that fits starts,
    repeatedly, until no workload fits. A workload that requests more devices than exist waits to
    the end and does not block others.
    """
    hall = _BaselineCluster(devices, device, backfill, pool)
    arriving = deque(works)
    while arriving or hall.next_end is not None:
        instants = [arriving[0].at] if arriving else []
        if hall.next_end is not None:
            instants.append(hall.next_end)
        now = min(instants)
        hall.end_workloads(now)
        while arriving and arriving[0].at == now:
            hall.submit(now, arriving.popleft())
        hall.start_workloads(now)
        if tell is not None:
            tell(now)
    return hall.timeline


class _BaselineCluster:
    """One pool of devices, its running workloads and its queue."""

    def __init__(self, devices: int, device: Resource, backfill: bool, pool: PoolName) -> None:
        self.timeline: list[TimelineEntry] = []
        self._devices = self._free = devices
        self._device = device
        self._backfill = backfill
        self._pool = pool
        self._queue = BaselineQueue()
        self._running: list[tuple[Millis, int, SimulatedWorkload]] = []

    @property
    def next_end(self) -> Millis | None:
        """End of the next workload; None if no end is due."""
        return self._running[0][0] if self._running else None

    def end_workloads(self, now: Millis) -> None:
        while self.next_end == now:
            work = heapq.heappop(self._running)[2]
            self._free += devices_of(work, self._device)
            self.timeline.append(rigid_entry(now, TimelineStep.ENDED, work))

    def submit(self, now: Millis, work: SimulatedWorkload) -> None:
        size = devices_of(work, self._device)
        if size <= self._devices:
            self._queue.add(len(self.timeline), size, work)
        self.timeline.append(rigid_entry(now, TimelineStep.SUBMITTED, work))

    def start_workloads(self, now: Millis) -> None:
        while (work := self._queue.take_fitting(self._free, self._backfill)) is not None:
            self._free -= devices_of(work, self._device)
            nodes = (NodeName(self._pool),) * work.pods
            self.timeline.append(rigid_entry(now, TimelineStep.RELEASED, work, self._pool, nodes))
            if work.duration is not None:
                ends = Millis(now + work.duration)
                heapq.heappush(self._running, (ends, len(self.timeline), work))
