"""Released pods that must go for their own sake: no node takes them, or their gang is not whole.

Joins those who decide about them, so that each is asked in its turn.
"""

from __future__ import annotations

from app.core.effects import Effect
from app.core.model import Millis, Uid
from app.core.places.growth import Growth
from app.core.pods.broken import Broken, Explain
from app.core.pods.roster import Roster
from app.core.pods.tracked import Tracked
from app.core.pods.unbound import Unbound


class Misfits:
    """See the module. `explain` puts into words what a held pod waits for."""

    def __init__(self, roster: Roster, growth: Growth, explain: Explain) -> None:
        self._unbound = Unbound(roster, growth)
        self._broken = Broken(roster, explain)

    def see(self, tracked: Tracked) -> list[Uid]:
        """A released pod was seen. Return it if it was to go as `unbound`, and need not."""
        return self._unbound.see(tracked)

    def forget(self, uid: Uid) -> None:
        """A pod is gone."""
        self._unbound.forget(uid)
        self._broken.forget(uid)

    def due(self) -> Millis | None:
        """Return when there is more to do by time alone."""
        due = [self._unbound.due(), self._broken.due()]
        return min((at for at in due if at is not None), default=None)

    def run(self) -> list[Effect]:
        """Evict who must go, and say why. After every settling."""
        return [*self._unbound.run(), *self._broken.run()]
