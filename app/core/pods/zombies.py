"""Pods that hold a place in vain: held ones whose controller is gone, and running ones that leave
their devices idle. They are reported; they go only where the operator asked for that.

That a pod is one is found out elsewhere. Released pods that find no node are in `unbound`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass

from app.core.effects import Effect, Expel, Notice, Tell
from app.core.model import Millis, Pod, TenantName, Uid
from app.core.pods.life import Life
from app.core.pods.roster import Roster
from app.core.pods.tracked import Tracked
from app.core.pods.vain import Vain
from app.core.policy import Mode

SURE_MS = 60_000
"""Who is found so twice, at least so long apart, goes: one look may be an unlucky one."""
PAUSE_MS = 3_600_000
"""An owner is told no more often."""
AGAIN_MS = 300_000
"""An eviction is asked for no more often."""


@dataclass(slots=True)
class _Found:
    kind: Vain
    why: str
    since: Millis
    told: Millis
    asked: Millis | None = None


class Zombies:
    """Pods that were found to be of no use, until they go or are found otherwise."""

    def __init__(
        self, roster: Roster, reclaims: Collection[Vain], goes: Callable[[Uid], bool]
    ) -> None:
        """`goes`: whether the eviction of a pod was accepted, though it may not show yet."""
        self._roster = roster
        self._goes = goes
        self._reclaims = frozenset(reclaims)
        self._found: dict[Uid, _Found] = {}

    def find(self, uid: Uid, kind: Vain, why: str) -> list[Effect]:
        """A pod was found to be of no use; `why` is a sentence for its owner."""
        tracked, now = self._roster.pods.get(uid), self._roster.usage.now
        if tracked is None or not _could_be(tracked, kind):
            return []
        effects: list[Effect] = []
        found = self._found.get(uid)
        if found is None or found.kind is not kind:
            found = self._found[uid] = _Found(kind, why, now, now)
            effects.append(Tell(tracked.ref, Notice.USELESS, why))
        elif now - found.told >= PAUSE_MS:
            found.told = now
            effects.append(Tell(tracked.ref, Notice.USELESS, why))
        found.why = why
        return effects + self._reclaim(tracked, found, now)

    def clear(self, uid: Uid, kind: Vain | None = None) -> list[Uid]:
        """A pod does not hold its place in vain, for this reason or for any.

        Return who need not go for it any more: it and its mates, unless some of them went already.
        """
        found = self._found.get(uid)
        if found is None or kind not in (None, found.kind):
            return []
        del self._found[uid]
        tracked = self._roster.pods.get(uid)
        if found.asked is None or tracked is None:
            return []
        mates = tracked.gang.members if tracked.gang is not None else (tracked,)
        if any(mate.pod.terminating or self._goes(mate.pod.uid) for mate in mates):
            return []
        for mate in mates:
            if (known := self._found.get(mate.pod.uid)) is not None:
                known.asked = None
        return [mate.pod.uid for mate in mates]

    def suspects(self) -> Iterator[Pod]:
        """Return the pods that may leave devices idle: those past the gate that use any."""
        using = (t for t in self._roster.pods.values() if _could_be(t, Vain.IDLE))
        return (tracked.pod for tracked in using)

    def count(self) -> Counter[tuple[TenantName, str]]:
        """Return how many there are, by tenant and kind."""
        return Counter(
            (leaf.tenant, found.kind.value)
            for uid, found in self._found.items()
            if (known := self._roster.pods.get(uid)) and (leaf := known.leaf)
        )

    def end(self) -> None:
        """A term is over."""
        self._found.clear()

    def _reclaim(self, tracked: Tracked, found: _Found, now: Millis) -> list[Effect]:
        """Ask for what may go. A gang goes when all of it is of no use."""
        if found.kind not in self._reclaims or self._roster.usage.policy.mode is Mode.OBSERVE:
            return []
        mates = tracked.gang.members if tracked.gang is not None else (tracked,)
        effects: list[Effect] = []
        for mate in mates:
            known = self._found.get(mate.pod.uid)
            if known is None or known.kind is not found.kind or now - known.since < SURE_MS:
                return []
            if not (mate.pod.preemptible or found.kind is Vain.OWNERLESS):
                return []
            if known.asked is None or now - known.asked >= AGAIN_MS:
                effects.append(Expel(mate.ref, known.why, known.kind.value))
        for mate in mates if effects else ():
            self._found[mate.pod.uid].asked = now
        return effects


def _could_be(tracked: Tracked, kind: Vain) -> bool:
    """Tell whether a pod is what it was taken for; the finding may be old."""
    if tracked.pod.terminating:
        return False
    if kind is Vain.OWNERLESS:
        return tracked.life is Life.HELD
    return tracked.life is Life.USING and tracked.pod.asks
