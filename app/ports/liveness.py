"""Progress of the parts of this process: when each part last finished a step.

Parts report from the event loop. `/livez` and the renewal of the Lease read it from their own
threads. A part that finishes no step for `LIMIT_SECONDS` has stalled.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable

LIMIT_SECONDS = 60.0
"""Longer than the longest legal step. The kubelet restarts a stalled process."""

SLOW_SECONDS = 0.1
"""A step that takes longer is logged and counted."""

SLICE_SECONDS = 0.05
"""A task with many small steps yields to other tasks after this time."""

BEAT_SECONDS = 1.0

EVENT_LOOP = "event loop"
ENGINE = "engine"

Clock = Callable[[], float]

log = logging.getLogger("fairgate")


class TaskSlice:
    """Measures how long a task has run since it last yielded to the event loop."""

    def __init__(self, seconds: float = SLICE_SECONDS, clock: Clock = time.perf_counter) -> None:
        self._clock = clock
        self._ends = clock() + seconds

    def is_over(self) -> bool:
        """Return whether the task must yield."""
        return self._clock() >= self._ends


class Liveness:
    """Time of the last finished step of each part. Safe to read from any thread."""

    def __init__(self, clock: Clock = time.monotonic) -> None:
        """`clock` returns seconds and is monotonic."""
        self._clock = clock
        self._finished: dict[str, float] = {}

    def finish_step(self, part: str) -> None:
        """Record a finished step. The first call registers the part."""
        self._finished[part] = self._clock()

    def stalled_parts(self) -> dict[str, float]:
        """Return how many seconds ago each stalled part finished its last step."""
        now = self._clock()
        ages = ((part, now - at) for part, at in list(self._finished.items()))
        return {part: age for part, age in ages if age > LIMIT_SECONDS}

    def makes_progress(self) -> bool:
        """Return whether no part has stalled."""
        return not self.stalled_parts()

    async def run_heartbeat(self) -> None:
        """Report once a second that the event loop runs, until cancelled."""
        while True:
            self.finish_step(EVENT_LOOP)
            await asyncio.sleep(BEAT_SECONDS)


class Steps:
    """Reports slow steps: one log line and one count each."""

    def __init__(self, liveness: Liveness, count: Callable[[str], None]) -> None:
        """`count` receives the kind of each slow step."""
        self._liveness = liveness
        self._count = count

    def finish_step(
        self, part: str, kind: str, seconds: float, namespace: str = "", name: str = ""
    ) -> None:
        """Record a finished step of this kind. Kinds are few and fixed.

        `namespace` and `name` identify the object of the step. They are empty without an object.
        """
        self._liveness.finish_step(part)
        if seconds < SLOW_SECONDS:
            return
        self._count(kind)
        facts = {
            "step": kind,
            "namespace": namespace,
            "object": name,
            "milliseconds": round(seconds * 1000),
        }
        log.warning("slow step", extra=facts)
