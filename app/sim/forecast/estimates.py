"""Estimates of the waits of all held pods: simulates repeatedly, answers from the last result.

The simulation runs in a worker process. Run times are learned from the usage records in the store,
and ranges from the outcomes of earlier estimates. The leader is not contacted.
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import Callable, Mapping

from app.core.errors import ForecastFailed, StoreError
from app.core.explain.snapshot import Snapshot
from app.core.fairshare.usage_record import UsageRecord
from app.core.model import Millis, Uid
from app.core.quantities import ManagedResources
from app.ports.forecasts import Estimate
from app.ports.store import UsageRecordReader
from app.sim.forecast.calibration import Range
from app.sim.forecast.forward_run import simulate_waits
from app.sim.forecast.run_times import ObservedRunTime, RunTimeClass, RunTimes, request_size_class
from app.sim.forecast.wait_model import Name, WaitModel, workload_key
from app.sim.forecast.worker import Worker

EVERY_SECONDS = 15.0
PAUSES = 4.0
"""Pause after a round, as a multiple of its duration, if longer than `EVERY_SECONDS`."""

SECONDS = 120.0
NICE = 10
MOST_PODS = 30_000
LEARNED = Millis(7 * 24 * 3_600_000)
"""Age of the oldest usage records that are read at the start."""

OLD = Millis(15 * 60_000)
"""Age at which an estimate that was not renewed is dropped."""

NOT_YET = "No estimate was made since it began to wait; ask again in a minute."
NO_START = "It does not start within four days in a simulation."
NO_OUTCOMES = (
    "Too few estimates of similar waits could be checked yet, or they were too far off, so an "
    "estimate would be a guess."
)

log = logging.getLogger("fairgate.forecasts")


DEFECT = (
    "The simulation failed because of a defect of Fairgate; the log of the API has the details."
)


class Estimates:
    """Implements `Forecasts`. `renew_periodically` renews estimates until cancelled, `renew` once.

    `snapshot` returns None until all watches have synced.
    """

    def __init__(
        self,
        snapshot: Callable[[], Snapshot | None],
        reader: UsageRecordReader,
        managed: ManagedResources,
        worker: Worker | None = None,
    ) -> None:
        self._snapshot = snapshot
        self._reader = reader
        self._managed = managed
        self._worker = worker or Worker(SECONDS, nice=NICE)
        self._wait_model = WaitModel()
        self._at = Millis(0)
        self._ranges: Mapping[Uid, Range] = {}
        self._withheld_reasons: dict[Uid, str] = {}
        self._failure = ""
        self._waiting: dict[Uid, Name] = {}
        self._learned_until: Millis | None = None
        self._last_learned: set[tuple[Uid, Millis]] = set()
        self._rounds = 0

    @property
    def run_times(self) -> RunTimes:
        """The learned run times."""
        return self._wait_model.run_times

    def estimate(self, uid: Uid) -> Estimate | None:
        """Return when a held pod is likely to start; None if there is no reliable estimate."""
        found = self._ranges.get(uid)
        if found is None:
            return None
        return Estimate(math.ceil(found.p50), math.ceil(found.p90), self._at)

    def missing_estimate_reason(self, uid: Uid) -> str:
        """Return why there is no estimate, as a sentence."""
        return self._failure or self._withheld_reasons.get(uid, NOT_YET)

    def estimate_from_wait(self, seconds: float, at: Millis) -> Estimate | None:
        """Return the estimate for a simulated wait from `at`; None if it would be a guess."""
        found = self._wait_model.range_for(seconds)
        return None if found is None else Estimate(math.ceil(found.p50), math.ceil(found.p90), at)

    async def renew_periodically(self) -> None:
        """Renew the estimates repeatedly, until cancelled."""
        try:
            while True:
                began = time.monotonic()
                try:
                    await self.renew()
                except Exception:  # a failed forecast must not end the API process
                    log.exception("looking ahead failed by a defect")
                    self._failure = DEFECT
                took = time.monotonic() - began
                await asyncio.sleep(max(EVERY_SECONDS, PAUSES * took))
        finally:
            await self._worker.close()

    async def renew(self) -> None:
        """Learn from new usage records and outcomes, and renew the estimates once."""
        begun = await self._learn()
        snapshot = self._snapshot()
        if snapshot is None:
            return
        self._record_outcomes(snapshot, begun)
        try:
            waits = await self._simulate_waits(snapshot)
        except ForecastFailed as error:
            log.warning("could not look ahead", extra={"why": str(error)})
            self._failure = str(error)
            if snapshot.at - self._at > OLD:
                self._ranges, self._withheld_reasons = {}, {}
            return
        ranges = self._wait_model.update_ranges(snapshot, waits)
        self._at, self._ranges, self._failure = snapshot.at, ranges, ""
        self._withheld_reasons = {
            pod.uid: NO_OUTCOMES if pod.uid in waits else NO_START
            for pod in snapshot.held
            if pod.uid not in ranges
        }

    async def _simulate_waits(self, snapshot: Snapshot) -> Mapping[Uid, float]:
        if not snapshot.held:
            return {}
        if len(snapshot.held) > MOST_PODS:
            raise ForecastFailed(
                f"{len(snapshot.held)} pods wait; more than {MOST_PODS} are too many to look ahead."
            )
        self._rounds += 1
        return await self._worker.call(simulate_waits, snapshot, self.run_times, self._rounds)

    async def _learn(self) -> dict[Uid, Millis]:
        """Learn from usage records that ended; return the earliest begin for each pod."""
        begun: dict[Uid, Millis] = {}
        try:
            if self._learned_until is None:
                snapshot = self._snapshot()
                if snapshot is None:
                    return begun
                self._learned_until = Millis(max(0, snapshot.at - LEARNED))
            async for run in self._reader.read_ended_usage(Millis(self._learned_until - 1)):
                self._learn_record(run, begun)
        except StoreError as error:
            log.warning("could not read the runs", extra={"why": str(error)})
        return begun

    def _learn_record(self, run: UsageRecord, begun: dict[Uid, Millis]) -> None:
        if run.end is None or run.id in self._last_learned:
            return
        if self._learned_until is None or run.end > self._learned_until:
            self._learned_until = run.end
            self._last_learned.clear()
        self._last_learned.add(run.id)
        begun[run.uid] = min(run.begin, begun.get(run.uid, run.begin))
        if not run.assumed:
            kind = RunTimeClass(
                run.tenant, run.user, request_size_class(run.amounts, self._managed)
            )
            self._wait_model.record_end(ObservedRunTime(kind, Millis(run.end - run.begin)))

    def _record_outcomes(self, snapshot: Snapshot, begun: Mapping[Uid, Millis]) -> None:
        """Record the outcomes of the pods that waited in the last round."""
        now = {pod.uid: workload_key(pod) for pod in snapshot.held}
        left = {uid: name for uid, name in self._waiting.items() if uid not in now}
        if left:
            starts = {pod.uid: pod.started_at or snapshot.at for pod in snapshot.running}
            starts.update(begun)
            for uid, name in left.items():
                if uid in starts:
                    self._wait_model.record_start(name, starts[uid])
            self._wait_model.drop_workloads(
                {name for uid, name in left.items() if uid not in starts}
            )
        self._waiting = now
