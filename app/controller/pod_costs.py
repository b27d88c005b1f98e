"""CPU time of the engine, by the pod that it works for; decides which pods cost too much.

The engine reports the pod that it considers. The time until its next report belongs to that pod.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from app.core.model import Uid

LARGE_SECONDS = 2.0
"""A pod that costs this much in one step is postponed."""

NOTABLE_SECONDS = 0.5
"""A pod that costs this much in each of `MOST_STEPS` steps is postponed, too."""

MOST_STEPS = 5


class PodCosts:
    """CPU time of each pod. The engine calls `start_pod`; the loop calls `end_step`."""

    def __init__(self, clock: Callable[[], float] = time.thread_time) -> None:
        """`clock` returns seconds of CPU time."""
        self._clock = clock
        self._pod: Uid | None = None
        self._since = 0.0
        self._spent: dict[Uid, float] = {}
        self._steps: dict[Uid, int] = {}

    def start_pod(self, uid: Uid | None) -> None:
        """The engine works for this pod from now on; None: for no pod in particular."""
        now = self._clock()
        if self._pod is not None:
            self._spent[self._pod] = self._spent.get(self._pod, 0.0) + now - self._since
        self._pod, self._since = uid, now

    def end_step(self) -> list[Uid]:
        """Return the pods that cost too much, each once."""
        self.start_pod(None)
        found = []
        for uid, seconds in self._spent.items():
            if seconds >= NOTABLE_SECONDS:
                self._steps[uid] = self._steps.get(uid, 0) + 1
            if seconds >= LARGE_SECONDS or self._steps.get(uid, 0) >= MOST_STEPS:
                self._steps.pop(uid, None)
                found.append(uid)
        self._spent.clear()
        return found

    def forget_pod(self, uid: Uid) -> None:
        """Drop the step count of a deleted pod."""
        self._steps.pop(uid, None)
