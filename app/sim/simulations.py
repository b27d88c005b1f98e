"""What-if for callers: a few at a time, each run twice in worker processes, within limits."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

from app.core.errors import ForecastBusy, ForecastFailed
from app.core.telling.snapshot import Snapshot
from app.foresight_ports import Changes, Comparison
from app.sim.run_times import RunTimes
from app.sim.what_if import assumed, changed, fare
from app.sim.worker import Worker

MOST_WAITING = 2
"""Callers who wait beside the one who is served."""

MOST_PODS = 30_000
"""Pods of a backlog that is simulated: all of them, or none."""

SECONDS = 20.0
RETRY_AFTER = 5.0


class WhatIfs:
    """Implements `Simulations` on what is seen of the cluster and was learned of run times."""

    def __init__(
        self,
        snapshot: Callable[[], Snapshot],
        runs: Callable[[], RunTimes],
        seconds: float = SECONDS,
    ) -> None:
        self._snapshot = snapshot
        self._runs = runs
        self._workers = (Worker(seconds), Worker(seconds))
        self._turn = asyncio.Lock()
        self._callers = 0

    @property
    def pids(self) -> list[int]:
        """The worker processes that are there."""
        return [worker.pid for worker in self._workers if worker.pid is not None]

    async def compare(self, changes: Changes, hours: float) -> Comparison:
        """Let time run twice. Raises InvalidInput, ForecastBusy, ForecastFailed."""
        if self._callers > MOST_WAITING:
            raise ForecastBusy("Several simulations wait already; try again soon.", RETRY_AFTER)
        self._callers += 1
        try:
            async with self._turn:
                return await self._compare(changes, hours)
        finally:
            self._callers -= 1

    async def close(self) -> None:
        """End the processes."""
        for worker in self._workers:
            await worker.close()

    async def _compare(self, changes: Changes, hours: float) -> Comparison:
        began = time.monotonic()
        # A copy: a thread packs it, and what is learned meanwhile would change it under its hands.
        snapshot, runs = self._snapshot(), self._runs().copy()
        then = changed(snapshot, changes)
        pods = len(snapshot.held)
        if pods > MOST_PODS:
            raise ForecastFailed(
                f"{pods} pods wait, and a simulation takes {MOST_PODS} at most; it leaves none out."
            )
        workers = self._workers
        try:
            async with asyncio.TaskGroup() as group:
                first = group.create_task(
                    workers[0].call(fare, snapshot, runs, snapshot.tenants, hours)
                )
                second = group.create_task(workers[1].call(fare, snapshot, runs, then, hours))
        except ExceptionGroup as failed:
            raise failed.exceptions[0] from failed
        before, after = first.result(), second.result()
        return Comparison(
            pods=pods,
            seconds=time.monotonic() - began,
            assumed=assumed(runs),
            tenants={name: (before[name], after[name]) for name in before if name in after},
        )
