"""Which gangs are not whole, since when; and which lost a pod before all of it ran.

A gang is whole while it waits with all its pods, and once all of them have run together. Decides
nothing: see `broken`.
"""

from __future__ import annotations

from collections.abc import Sequence

from sortedcontainers import SortedList

from app.core.model import Millis, Phase, Uid
from app.core.pods.tracked import Gang, GangKey, Tracked


class Muster:
    """What is noted of gangs: in `Gang.lacks`, since when it is not whole; in `lost`, that a pod
    left before all ran; in `leaving`, why those that were released are being evicted ("": they
    are not).
    """

    def __init__(self) -> None:
        self._lacking: SortedList[tuple[Millis, GangKey]] = SortedList()
        self._gangs: dict[GangKey, Gang] = {}
        """Those of `_lacking`: not whole, and not reported."""
        self._lost: dict[GangKey, Gang] = {}
        self.leaving: dict[GangKey, Gang] = {}

    def seen(self, tracked: Tracked) -> bool:
        """A pod of a gang is as it is. Tell whether its mates should be counted anew."""
        gang, pod = tracked.gang, tracked.pod
        assert gang is not None
        uid, ended = pod.uid, pod.terminating
        if tracked.uses:
            gang.past.add(uid)
        else:
            gang.past.discard(uid)
        if tracked.uses and pod.phase is Phase.RUNNING and not ended:
            gang.runs.add(uid)
        else:
            gang.runs.discard(uid)
        changed = ended is not (uid in gang.ending)
        if ended:
            gang.ending.add(uid)
        elif changed:
            gang.ending.discard(uid)
        return changed or (not gang.started and gang.lacks is not None) or _all_run(gang)

    def left(self, tracked: Tracked) -> None:
        """A pod of a gang is gone; say so before it is forgotten there."""
        gang, uid = tracked.gang, tracked.pod.uid
        assert gang is not None
        for those in (gang.ending, gang.past, gang.runs):
            those.discard(uid)
        if gang.past and not (gang.started or gang.leaving or uid in gang.done):
            gang.lost = True
            self._lost[gang.key] = gang

    def assess(self, gang: Gang, ready: Sequence[Tracked], now: Millis) -> None:
        """Its pods were counted; `ready` are those that wait for nothing else."""
        using = [m for m in gang.pods.values() if m.uses]
        held = len(gang.pods) - len(using)
        if not using:
            gang.started = gang.lost = False
            gang.leaving = ""
            self._lost.pop(gang.key, None)
            self.leaving.pop(gang.key, None)
        elif _all_run(gang) or _was_there(gang):
            gang.started = True
        gang.found = False
        if using and not gang.started:
            whole = not held and gang.there >= gang.need
        else:
            whole = not held or (len(ready) == held and gang.size > 0 and gang.there >= gang.need)
        if whole:
            self._settle(gang)
        elif gang.lacks is None:
            since = now if using else min(m.pod.since for m in gang.pods.values())
            gang.lacks = min(now, since)
            self._lacking.add((gang.lacks, gang.key))
            self._gangs[gang.key] = gang

    def forget(self, gang: Gang) -> None:
        """Nothing is left of a gang."""
        self._settle(gang)
        self._lost.pop(gang.key, None)
        self.leaving.pop(gang.key, None)

    def leave(self, gang: Gang, why: str) -> None:
        """What of it was released is evicted from now on, until nothing of that is left."""
        gang.leaving = why
        self.leaving[gang.key] = gang

    def first(self) -> Millis | None:
        """Return since when the gang is not whole that is so for longest, of those not reported."""
        return self._lacking[0][0] if self._lacking else None

    def take_overdue(self, until: Millis) -> list[Gang]:
        """Return, once, the gangs that are not whole since then or longer."""
        found = []
        while self._lacking and self._lacking[0][0] <= until:
            found.append(self._gangs.pop(self._lacking.pop(0)[1]))
        return found

    def take_lost(self) -> list[Gang]:
        """Return, once, the gangs that lost a pod before all of it ran."""
        lost, self._lost = [g for g in self._lost.values() if g.lost], {}
        for gang in lost:
            gang.lost = False
        return lost

    def _settle(self, gang: Gang) -> None:
        """A gang is whole, or gone."""
        if self._gangs.pop(gang.key, None) is not None:
            self._lacking.remove((gang.lacks, gang.key))
        gang.lacks = None


def released(gang: Gang) -> list[Uid]:
    """Return which pods of a gang are past the gate, and not on their way out."""
    return [m.pod.uid for m in gang.members if m.uses and not m.pod.terminating]


def _was_there(gang: Gang) -> bool:
    """Tell whether it ran before it was first heard of, as far as it shows.

    It never did if a leader died over its release, or if nothing of it runs: that may be what is
    left of one that is being given back.
    """
    begun = any(m.begun and not m.uses for m in gang.pods.values())
    return gang.found and bool(gang.runs) and not begun


def _all_run(gang: Gang) -> bool:
    return not gang.started and gang.size > 0 and len(gang.runs) >= max(1, gang.need)
