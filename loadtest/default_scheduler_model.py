"""Model of the default scheduler in virtual time: its order and its resource scores only.

First come, first served; any pod that fits starts. NodeResourcesFit and, by default,
NodeResourcesBalancedAllocation choose the node; ties are random. Binding takes no time and there is
no backoff, which favours the model. It serves to run many seeds; `placement` runs the real one.
"""

from __future__ import annotations

import heapq
import random
from collections.abc import Iterable, Sequence

from app.sim.replay.machines import Machine
from loadtest.occupancy import Seen
from loadtest.openb_sample import Arrival, Shape, times

DEVICE_WEIGHT = 10
"""Weight of a device, as in the profile of `profiles.PACKING`."""


def play(load: Sequence[Arrival], fleet: Sequence[Machine], *, most: bool, seed: int) -> list[Seen]:
    """Return the times and node of every pod. `most`: MostAllocated instead of LeastAllocated."""
    return _Scheduler(load, fleet, most, random.Random(seed)).play()


class _Scheduler:
    def __init__(
        self, load: Sequence[Arrival], fleet: Sequence[Machine], most: bool, dice: random.Random
    ) -> None:
        self._load, self._fleet, self._most, self._dice = load, fleet, most, dice
        self._free = {m.name: (m.gpus, m.cpu, m.memory) for m in fleet}
        self._seen = [Seen(pod.at) for pod in load]
        self._ends: list[tuple[float, int]] = []
        self._waiting: dict[int, None] = {}

    def play(self) -> list[Seen]:
        """Play until every pod that can start has ended."""
        for number, pod in enumerate(self._load):
            self._pass_until(pod.at)
            self._waiting[number] = None
            self._schedule([number], pod.at)
        self._pass_until(float("inf"))
        return self._seen

    def _pass_until(self, until: float) -> None:
        while self._ends and self._ends[0][0] <= until:
            now, number = heapq.heappop(self._ends)
            self._seen[number].ended = now
            self._take(self._seen[number].node, self._load[number].shape, -1)
            self._schedule(list(self._waiting), now)

    def _schedule(self, pods: Iterable[int], now: float) -> None:
        for number in pods:
            shape, one = self._load[number].shape, self._seen[number]
            node = self._choose(shape)
            if node is not None:
                del self._waiting[number]
                self._take(node, shape, 1)
                one.opened = one.bound = now
                one.node = node
                heapq.heappush(self._ends, (now + self._load[number].runs, number))

    def _choose(self, shape: Shape) -> str | None:
        best = -1.0
        chosen: list[str] = []
        for machine in self._fleet:
            free = self._free[machine.name]
            if times(shape, machine, *free) > 0:
                score = _score(shape, machine, free, self._most)
                if score > best:
                    best, chosen = score, []
                if score == best:
                    chosen.append(machine.name)
        return self._dice.choice(chosen) if chosen else None

    def _take(self, node: str, shape: Shape, sign: int) -> None:
        gpus, cpu, memory = self._free[node]
        self._free[node] = (
            gpus - sign * shape.gpus,
            cpu - sign * shape.cpu,
            memory - sign * shape.memory,
        )


def _score(shape: Shape, machine: Machine, free: tuple[int, int, int], most: bool) -> float:
    """Return the sum of the resource scores, with the default or the packing profile.

    The default ignores devices. The packing profile weights a device tenfold, without balancing.
    """
    gpus = (machine.gpus - free[0] + shape.gpus) / machine.gpus
    cpu = (machine.cpu - free[1] + shape.cpu) / machine.cpu
    memory = (machine.memory - free[2] + shape.memory) / machine.memory
    if most:
        return (DEVICE_WEIGHT * gpus + cpu + memory) / (DEVICE_WEIGHT + 2)
    return 1 - (cpu + memory) / 2 + 1 - abs(cpu - memory) / 2
