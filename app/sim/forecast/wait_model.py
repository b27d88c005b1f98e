"""Learned run times and calibration, and the wait ranges that follow from both.

Pure: callers report the events. Used by a live replica, and to play back a log.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from app.core.explain.snapshot import Snapshot
from app.core.model import Millis, Pod, Uid
from app.sim.forecast.calibration import Calibration, Forecast, Range
from app.sim.forecast.run_times import Lasted, RunTimes

NOTED_EVERY = Millis(3 * 3_600_000)
"""Interval at which the forecast of a workload is stored for the calibration."""

LEAST_RUNS = 10
"""Runs needed before the first forecast, because earlier ones would say little about later ones."""

Name = tuple[str, str, str]
"""Key of a workload: namespace, user, and gang or uid."""


def name_of(pod: Pod) -> Name:
    """Return the key of a pod's workload."""
    return pod.namespace, pod.user, pod.gang or pod.uid


class WaitModel:
    """Learns run times, and turns simulated waits into ranges."""

    def __init__(self) -> None:
        self.runs = RunTimes()
        self._calibration = Calibration()
        self._noted: dict[Name, Millis] = {}

    def ended(self, run: Lasted) -> None:
        """Learn the run time of a workload that ended."""
        self.runs.learn(run)

    def started(self, name: Name, at: Millis) -> None:
        """Record the start of a workload as the outcome of its forecasts."""
        self._calibration.started(name, at / 1000)
        self._noted.pop(name, None)

    def gone(self, names: Collection[Name]) -> None:
        """Drop the forecasts of workloads that will never start."""
        self._calibration.gone(names)
        for name in names:
            self._noted.pop(name, None)

    def range(self, wait: float) -> Range | None:
        """Return the reliable range of a simulated wait in seconds, as of the last `ranges`."""
        return self._calibration.range(wait) if len(self.runs) >= LEAST_RUNS else None

    def ranges(self, snapshot: Snapshot, waits: Mapping[Uid, float]) -> dict[Uid, Range]:
        """Return the reliable ranges, and store the forecasts to learn from their outcomes."""
        at = snapshot.at
        self._calibration.settle(at / 1000)
        ranges: dict[Uid, Range] = {}
        if len(self.runs) < LEAST_RUNS:
            return ranges
        said: dict[Name, float] = {}
        for pod in snapshot.held:
            wait = waits.get(pod.uid)
            if wait is None:
                continue
            found = self._calibration.range(wait)
            if found is not None:
                ranges[pod.uid] = found
            said.setdefault(name_of(pod), wait)
        for name, wait in said.items():
            noted = self._noted.get(name)
            if noted is None or at - noted >= NOTED_EVERY:
                self._noted[name] = at
                found = self._calibration.range(wait)
                self._calibration.note(Forecast(at / 1000, name[:2], name, wait, found))
        return ranges
