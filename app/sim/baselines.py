"""The two orders that Fairgate is measured against: first come first served, with or without
backfill. One pool of devices, no nodes, no preemption; who submits plays no part.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable, Sequence

from app.core.model import Millis, NodeName, PoolName, Resource
from app.sim.waits import devices_of
from app.sim.work import Moment, Step, Work


class Line:
    """What waits, oldest first, kept apart by size so that the oldest that fits is found fast."""

    def __init__(self) -> None:
        self._sizes: dict[int, deque[tuple[int, Work]]] = {}

    def add(self, number: int, size: int, work: Work) -> None:
        """Put a workload at the end; `number` grows with every call."""
        self._sizes.setdefault(size, deque()).append((number, work))

    def take(self, free: int, backfill: bool) -> Work | None:
        """Take the oldest if it fits; with `backfill`, the oldest of those that fit."""
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
    works: Sequence[Work],
    devices: int,
    device: Resource,
    *,
    backfill: bool,
    pool: PoolName,
    tell: Callable[[Millis], None] | None = None,
) -> list[Moment]:
    """Play a log, sorted by arrival, in the order it came, and return what happened.

    At one instant work ends first, then work arrives, then whatever may start does. FIFO: only
    the oldest may start, so it holds up all others while it does not fit. With `backfill`: the
    oldest that fits starts, again and again, until nothing fits. What asks for more than there
    is can never start: it waits to the end and holds up nobody.
    """
    hall = _Hall(devices, device, backfill, pool)
    arriving = deque(works)
    while arriving or hall.next_end is not None:
        instants = [arriving[0].at] if arriving else []
        if hall.next_end is not None:
            instants.append(hall.next_end)
        now = min(instants)
        hall.end(now)
        while arriving and arriving[0].at == now:
            hall.submit(now, arriving.popleft())
        hall.start(now)
        if tell is not None:
            tell(now)
    return hall.timeline


class _Hall:
    """One pool of devices, who uses them, and the line before it."""

    def __init__(self, devices: int, device: Resource, backfill: bool, pool: PoolName) -> None:
        self.timeline: list[Moment] = []
        self._devices = self._free = devices
        self._device = device
        self._backfill = backfill
        self._pool = pool
        self._line = Line()
        self._running: list[tuple[Millis, int, Work]] = []

    @property
    def next_end(self) -> Millis | None:
        """When the next workload ends; None: none will."""
        return self._running[0][0] if self._running else None

    def end(self, now: Millis) -> None:
        while self.next_end == now:
            work = heapq.heappop(self._running)[2]
            self._free += devices_of(work, self._device)
            self.timeline.append(Moment(now, Step.ENDED, work))

    def submit(self, now: Millis, work: Work) -> None:
        size = devices_of(work, self._device)
        if size <= self._devices:
            self._line.add(len(self.timeline), size, work)
        self.timeline.append(Moment(now, Step.SUBMITTED, work))

    def start(self, now: Millis) -> None:
        while (work := self._line.take(self._free, self._backfill)) is not None:
            self._free -= devices_of(work, self._device)
            nodes = (NodeName(self._pool),) * work.pods
            self.timeline.append(Moment(now, Step.RELEASED, work, self._pool, nodes))
            if work.duration is not None:
                ends = Millis(now + work.duration)
                heapq.heappush(self._running, (ends, len(self.timeline), work))
