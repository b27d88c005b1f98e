"""What was learned of run times and of earlier forecasts, and the ranges that follow from both.

Pure: told what happened, it never looks. One for a live replica, one for a log played back.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from app.core.model import Millis, Pod, Uid
from app.core.telling.snapshot import Snapshot
from app.sim.calibration import Calibration, Forecast, Range
from app.sim.run_times import Lasted, RunTimes

NOTED_EVERY = Millis(3 * 3_600_000)
"""So often what was said of one workload is kept, to be judged later."""

LEAST_RUNS = 10
"""Before so many runs are known nothing is said: what would be, says nothing of later."""

Name = tuple[str, str, str]
"""A workload: namespace, user, and gang or uid."""


def name_of(pod: Pod) -> Name:
    """Return the name of a pod's workload."""
    return pod.namespace, pod.user, pod.gang or pod.uid


class Foretelling:
    """Learns, and turns simulated waits into ranges."""

    def __init__(self) -> None:
        self.runs = RunTimes()
        self._calibration = Calibration()
        self._noted: dict[Name, Millis] = {}

    def ended(self, run: Lasted) -> None:
        """A workload ended."""
        self.runs.learn(run)

    def started(self, name: Name, at: Millis) -> None:
        """A workload waits no more."""
        self._calibration.started(name, at / 1000)
        self._noted.pop(name, None)

    def gone(self, names: Collection[Name]) -> None:
        """Workloads will never start."""
        self._calibration.gone(names)
        for name in names:
            self._noted.pop(name, None)

    def ranges(self, snapshot: Snapshot, waits: Mapping[Uid, float]) -> dict[Uid, Range]:
        """Return the ranges that may be promised; keep what was said, to learn from it."""
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
