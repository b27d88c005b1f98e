"""What-if service: simulates the backlog with and without changes, in two worker processes.

Callers, pods and seconds are limited.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

from app.core.errors import ForecastFailed, ForecastTimeout
from app.core.explain.snapshot import Snapshot
from app.ports.forecasts import Comparison, WeightChanges
from app.sim.forecast.call_limit import CallLimit
from app.sim.forecast.run_times import RunTimes
from app.sim.forecast.what_if import apply_weights, assumptions_text, forecast_pickled
from app.sim.forecast.worker import Worker
from app.sim.forecast.worker_protocol import encode_body

MOST_PODS = 30_000
"""Largest backlog that is simulated. A larger one is refused, not cut."""

SECONDS = 20.0


class WhatIfs:
    """Implements `Simulations` on snapshots of the cluster and learned run times."""

    def __init__(
        self,
        snapshot: Callable[[], Snapshot],
        runs: Callable[[], RunTimes],
        seconds: float = SECONDS,
    ) -> None:
        self._snapshot = snapshot
        self._runs = runs
        self._workers = (Worker(seconds), Worker(seconds))
        self._limit = CallLimit()

    @property
    def pids(self) -> list[int]:
        """Process ids of the running workers."""
        return [worker.pid for worker in self._workers if worker.pid is not None]

    @property
    def worker(self) -> Worker:
        """A worker that other simulations may share, because each one takes memory."""
        return self._workers[0]

    async def compare(self, changes: WeightChanges, hours: float) -> Comparison:
        """Simulate with and without the changes.

        Raises InvalidInput, ForecastBusy, ForecastFailed.
        """
        async with self._limit.acquire_turn():
            try:
                return await self._compare(changes, hours)
            except ForecastTimeout as error:
                raise ForecastTimeout(f"{error} Ask for fewer hours, or later.") from error

    async def close(self) -> None:
        """Kill the worker processes."""
        for worker in self._workers:
            await worker.close()

    async def _compare(self, changes: WeightChanges, hours: float) -> Comparison:
        began = time.monotonic()
        # A copy: a thread pickles it while learning may change the original.
        snapshot, runs = self._snapshot(), self._runs().copy()
        then = apply_weights(snapshot, changes)
        pods = len(snapshot.held)
        if pods > MOST_PODS:
            raise ForecastFailed(
                f"{pods} pods wait, and a simulation takes {MOST_PODS} at most; it leaves none out."
            )
        workers = self._workers
        try:
            async with asyncio.TaskGroup() as group:
                body = await asyncio.to_thread(encode_body, (snapshot, runs))  # once for both
                first = group.create_task(
                    workers[0].call(forecast_pickled, body, snapshot.tenants, hours)
                )
                second = group.create_task(workers[1].call(forecast_pickled, body, then, hours))
        except ExceptionGroup as failed:
            raise failed.exceptions[0] from failed
        before, after = first.result(), second.result()
        return Comparison(
            pods=pods,
            seconds=time.monotonic() - began,
            assumed=assumptions_text(runs),
            tenants={name: (before[name], after[name]) for name in before if name in after},
        )
