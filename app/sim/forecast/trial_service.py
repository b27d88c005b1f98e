"""Trial service: simulates proposed pods in a worker process.

Callers, pods and seconds are limited.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from app.core.admission.submitters import limit_name
from app.core.errors import ForecastBusy, ForecastFailed
from app.core.explain.snapshot import Snapshot
from app.core.model import Pod, UserName
from app.ports.forecasts import Trial
from app.sim.forecast.call_limit import RETRY_AFTER, CallLimit
from app.sim.forecast.run_times import RunTimes
from app.sim.forecast.trial import simulate_first_instant, simulate_last_wait
from app.sim.forecast.what_if import assumptions_text
from app.sim.forecast.what_if_service import MOST_PODS
from app.sim.forecast.worker import Worker
from app.sim.forecast.worker_protocol import encode_body


class TrialRuns:
    """Implements `Trials` on snapshots of the cluster and learned run times.

    A trial has two calls of the worker, each with its limits. If the second one fails, the first
    one still gives the answer, without the wait.
    """

    def __init__(
        self,
        snapshot: Callable[[], Snapshot],
        runs: Callable[[], RunTimes],
        worker: Worker,
    ) -> None:
        """`worker` may be shared. It serves one call at a time."""
        self._snapshot = snapshot
        self._runs = runs
        self._worker = worker
        self._limit = CallLimit()
        self._users: set[str] = set()

    async def simulate_pods(self, user: UserName, pods: Sequence[Pod]) -> Trial:
        """Simulate the pods of a user. Raises ForecastBusy, ForecastFailed."""
        name = limit_name(user)
        if name in self._users:  # no user can take all places
            raise ForecastBusy("A trial of yours still runs; try again soon.", RETRY_AFTER)
        self._users.add(name)
        try:
            async with self._limit.acquire_turn():
                return await self._simulate(tuple(pods))
        finally:
            self._users.discard(name)

    async def _simulate(self, pods: tuple[Pod, ...]) -> Trial:
        # A copy: a thread pickles it while learning may change the original.
        snapshot, runs = self._snapshot(), self._runs().copy()
        if len(snapshot.held) > MOST_PODS:
            raise ForecastFailed(
                f"{len(snapshot.held)} pods wait, and a simulation takes {MOST_PODS} at most."
            )
        body = await asyncio.to_thread(encode_body, (snapshot, runs))
        found = await self._worker.call(simulate_first_instant, body, pods)
        wait, failure = (0.0, None) if found.held is None else await self._simulate_wait(body, pods)
        return Trial(
            at=snapshot.at,
            released=found.released,
            held=found.held,
            why=found.why,
            wait=wait,
            failure=failure,
            assumed=assumptions_text(runs),
        )

    async def _simulate_wait(
        self, body: bytes, pods: tuple[Pod, ...]
    ) -> tuple[float | None, str | None]:
        """Return the wait of the last pod, or else why the simulation was not completed."""
        try:
            return await self._worker.call(simulate_last_wait, body, pods), None
        except ForecastFailed as error:
            return None, str(error)
