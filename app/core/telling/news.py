"""What the owners of held pods are told: that a pod is held, and when another reason holds it."""

from __future__ import annotations

from app.core.effects import Effect, Notice, Tell
from app.core.pods.life import Life
from app.core.pods.roster import Roster
from app.core.pods.tracked import Tracked
from app.core.telling.outlook import Outlook


class News:
    """Pods that came, until their owners are told. Call `tell` at the end of a pass.

    `silent`: nobody is told of anything.
    """

    def __init__(self, roster: Roster, outlook: Outlook, *, silent: bool = False) -> None:
        self._roster = roster
        self._outlook = outlook
        self._silent = silent
        self._new: list[Tracked] = []

    def add(self, tracked: Tracked) -> None:
        """A held pod came."""
        self._new.append(tracked)

    def tell(self) -> list[Effect]:
        """Tell of those not released at once, and of those that wait for another reason now."""
        pods, new, self._new = self._roster.pods, self._new, []
        changed = self._roster.take_changed()
        if self._silent:
            return []
        held = [t for t in new if t.life is Life.HELD and pods.get(t.pod.uid) is t]
        effects: list[Effect] = []
        for tracked, text in self._outlook.texts(held):
            effects += self.of(tracked, Notice.HELD, text)
        for tracked, text in self._outlook.texts(changed):
            effects += self.of(tracked, Notice.WAITING, text)
        return effects

    def of(self, tracked: Tracked, notice: Notice, message: str) -> list[Effect]:
        """Return what tells the owner of one pod."""
        return [] if self._silent else [Tell(tracked.ref, notice, message)]
