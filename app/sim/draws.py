"""Run times for a forecast, drawn from what is known, repeatably."""

from __future__ import annotations

from random import Random

from app.core.fair.tenancy import Tenancy
from app.core.model import Millis, Pod
from app.core.telling.snapshot import Snapshot
from app.sim.run_times import RunTimes, kind_of, observed

STEP = Millis(10_000)
"""Ends of work are taken to the next full step: it saves most of the engine's passes."""

UNKNOWN = Millis(3_600_000)
"""How long work is taken to run where nothing was learned and nothing declared."""


class Drawn:
    """Run times drawn once for each pod, a gang's once for all: every run hears the same."""

    def __init__(self, snapshot: Snapshot, runs: RunTimes, tenancy: Tenancy, seed: int) -> None:
        self._snapshot = snapshot
        self._runs = observed(runs, snapshot, tenancy) if runs else runs
        self._tenancy = tenancy
        self._seed = seed

    def left(self, pod: Pod, ran: Millis) -> Millis:
        """Return how much longer a pod runs; at least one step."""
        dice = Random(f"{self._seed}/{pod.namespace}/{pod.gang or pod.uid}")  # noqa: S311
        kind = kind_of(pod, self._tenancy, self._snapshot.managed)
        lasts = self._runs.draw(kind, ran, dice) if self._runs else Millis(ran + UNKNOWN)
        if pod.max_runtime is not None:
            lasts = min(lasts, pod.max_runtime) if self._runs else pod.max_runtime
        left = max(STEP, lasts - ran)
        return Millis(-(-left // STEP) * STEP)
