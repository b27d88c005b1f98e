"""Learned run times and calibration, and the wait ranges that follow from both.

Pure: callers report the events. Used by a live replica, and to play back a log.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from app.core.explain.snapshot import Snapshot
from app.core.model import Millis, Pod, Uid
from app.sim.forecast.calibration import Calibration, Forecast, Range
from app.sim.forecast.run_times import ObservedRunTime, RunTimes

STORE_INTERVAL = Millis(3 * 3_600_000)
"""Interval at which the forecast of a workload is stored for the calibration."""

LEAST_RUNS = 10
"""Runs needed before the first forecast, because earlier ones would say little about later ones."""

Name = tuple[str, str, str]
"""Key of a workload: namespace, user, and gang or uid."""


def workload_key(pod: Pod) -> Name:
    """Return the key of a pod's workload."""
    return pod.namespace, pod.user, pod.gang or pod.uid


class WaitModel:
    """Learns run times, and turns simulated waits into ranges."""

    def __init__(self) -> None:
        self.run_times = RunTimes()
        self._calibration = Calibration()
        self._last_stored: dict[Name, Millis] = {}

    def record_end(self, run: ObservedRunTime) -> None:
        """Learn the run time of a workload that ended."""
        self.run_times.add_run(run)

    def record_start(self, name: Name, at: Millis) -> None:
        """Record the start of a workload as the outcome of its forecasts."""
        self._calibration.record_start(name, at / 1000)
        self._last_stored.pop(name, None)

    def drop_workloads(self, names: Collection[Name]) -> None:
        """Drop the forecasts of workloads that will never start."""
        self._calibration.drop_workloads(names)
        for name in names:
            self._last_stored.pop(name, None)

    def range_for(self, wait: float) -> Range | None:
        """Return the reliable range of a simulated wait, in seconds, by `update_ranges`."""
        return self._calibration.range_for(wait) if len(self.run_times) >= LEAST_RUNS else None

    def update_ranges(self, snapshot: Snapshot, waits: Mapping[Uid, float]) -> dict[Uid, Range]:
        """Return the reliable ranges, and store the forecasts to learn from their outcomes."""
        at = snapshot.at
        self._calibration.update_classes(at / 1000)
        ranges: dict[Uid, Range] = {}
        if len(self.run_times) < LEAST_RUNS:
            return ranges
        said: dict[Name, float] = {}
        for pod in snapshot.held:
            wait = waits.get(pod.uid)
            if wait is None:
                continue
            found = self._calibration.range_for(wait)
            if found is not None:
                ranges[pod.uid] = found
            said.setdefault(workload_key(pod), wait)
        for name, wait in said.items():
            noted = self._last_stored.get(name)
            if noted is None or at - noted >= STORE_INTERVAL:
                self._last_stored[name] = at
                found = self._calibration.range_for(wait)
                self._calibration.add_forecast(Forecast(at / 1000, name[:2], name, wait, found))
        return ranges
