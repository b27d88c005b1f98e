"""Held pods whose release was refused: they let others go first for a while."""

from __future__ import annotations

from app.core.model import Millis, Uid
from app.core.pods.roster import Roster
from app.core.pods.tracked import Tracked

FIRST = 1_000
LONGEST = 64_000
"""Milliseconds before such a pod is tried again."""


class Resting:
    """Who rests, and until when."""

    def __init__(self, roster: Roster) -> None:
        self._roster = roster
        self._until: dict[Uid, Millis] = {}

    def begin(self, at: Millis, tracked: Tracked) -> None:
        """A pod rests from now on, twice as long after each refusal."""
        pause = min(FIRST << tracked.refusals, LONGEST)
        tracked.refusals += 1
        self._until[tracked.pod.uid] = Millis(at + pause)
        self._roster.rest(tracked, True)

    def wake(self, at: Millis) -> None:
        """Let those whose rest is over wait in their queues again."""
        for uid in [uid for uid, until in self._until.items() if until <= at]:
            del self._until[uid]
            if uid in self._roster.pods:
                self._roster.rest(self._roster.pods[uid], False)

    def resting(self) -> list[Uid]:
        """Return who rests now."""
        return list(self._until)

    def due(self) -> Millis | None:
        """Return when the next rest is over."""
        return min(self._until.values(), default=None)

    def forget(self, uid: Uid) -> None:
        """A pod is gone."""
        self._until.pop(uid, None)
