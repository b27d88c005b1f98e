"""Readiness of gangs: since when a gang is incomplete, and whether it lost a pod before all ran.

A gang is complete while it waits with all its pods, and after all pods have run at the same time.
`gang_timeouts` acts on the result.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from sortedcontainers import SortedList

from app.core.lifecycle.pod_record import Gang, GangKey, PodRecord
from app.core.model import Millis, Phase, Uid


class GangReadiness:
    """Records the readiness of each gang in its fields `lacks`, `lost` and `leaving`.

    `lacks` is the start of the incomplete state. `lost`: a pod left before all ran. `leaving` is
    the reason for the eviction of the released pods, or an empty string.
    """

    def __init__(self) -> None:
        self._lacking: SortedList[tuple[Millis, GangKey]] = SortedList()
        self._gangs: dict[GangKey, Gang] = {}
        """The gangs in `_lacking`: incomplete and not reported."""
        self._lost: dict[GangKey, Gang] = {}
        self.leaving: dict[GangKey, Gang] = {}

    def seen(self, tracked: PodRecord) -> bool:
        """Process the state of a gang pod. Return whether the gang must be assessed again."""
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

    def left(self, tracked: PodRecord) -> None:
        """Record that a gang pod is gone. Call it before the gang removes the pod."""
        gang, uid = tracked.gang, tracked.pod.uid
        assert gang is not None
        for those in (gang.ending, gang.past, gang.runs):
            those.discard(uid)
        works = gang.size > 0 and gang.released_count >= gang.owed
        if gang.past and not (works or gang.started or gang.leaving or uid in gang.done):
            gang.lost = True
            self._lost[gang.key] = gang

    def assess(self, gang: Gang, ready: Sequence[PodRecord], now: Millis) -> None:
        """Assess a gang after a change. `ready` are the pods that wait only for the gang."""
        using = [m for m in gang.pods.values() if m.uses]
        held = len(gang.pods) - len(using)
        if using and gang.size:
            gang.floor = min(gang.least, gang.least if gang.floor is None else gang.floor)
        if not using:
            gang.started = gang.lost = False
            gang.leaving, gang.floor = "", None
            self._lost.pop(gang.key, None)
            self.leaving.pop(gang.key, None)
        elif _all_run(gang) or _was_there(gang):
            gang.started = True
        gang.was_running = False
        if gang.is_elastic and using and not gang.started:
            whole = gang.released_count >= gang.owed
        elif gang.is_elastic:
            whole = not held or gang.released_count + len(ready) >= gang.need
        elif using and not gang.started:
            whole = not held and gang.there >= gang.owed
        else:
            whole = not held or (len(ready) == held and gang.size > 0 and gang.there >= gang.need)
        if whole:
            self._settle(gang)
        elif gang.lacks is None:
            since = now if using else min(m.pod.since for m in gang.pods.values())
            gang.lacks = min(now, since)
            self._lacking.add((gang.lacks, gang.key))
            self._gangs[gang.key] = gang

    def start_term(self, now: Millis) -> None:
        """Start a leader term: the time-outs of partially released gangs restart."""
        self._renew(now, lambda gang: now)

    def shift(self, since: Millis, now: Millis) -> None:
        """Exclude the time since `since` from the time-outs, because no gang was judged."""
        self._renew(now, lambda gang: Millis(now - max(0, since - (gang.lacks or now))))

    def restart(self, gang: Gang, now: Millis) -> None:
        """Start the time-out of an overdue gang again."""
        gang.lacks = now
        self._lacking.add((now, gang.key))
        self._gangs[gang.key] = gang

    def _renew(self, now: Millis, lacks: Callable[[Gang], Millis]) -> None:
        for gang in [gang for gang in self._gangs.values() if gang.past]:
            self._lacking.remove((gang.lacks, gang.key))
            gang.lacks = min(now, lacks(gang))
            self._lacking.add((gang.lacks, gang.key))

    def remove_gang(self, gang: Gang) -> None:
        """Remove a gang without pods."""
        self._settle(gang)
        self._lost.pop(gang.key, None)
        self.leaving.pop(gang.key, None)

    def leave(self, gang: Gang, why: str) -> None:
        """Mark the released pods of a gang for eviction, until no such pod is left."""
        gang.leaving = why
        self.leaving[gang.key] = gang

    def first(self) -> Millis | None:
        """Return the earliest start of an unreported incomplete state, or None."""
        return self._lacking[0][0] if self._lacking else None

    def take_overdue(self, until: Millis) -> list[Gang]:
        """Return, once, the gangs that have been incomplete since this time or longer."""
        found = []
        while self._lacking and self._lacking[0][0] <= until:
            found.append(self._gangs.pop(self._lacking.pop(0)[1]))
        return found

    def take_lost(self) -> list[Gang]:
        """Return, once, the gangs that lost a pod before all pods ran."""
        lost, self._lost = [g for g in self._lost.values() if g.lost], {}
        for gang in lost:
            gang.lost = False
        return lost

    def _settle(self, gang: Gang) -> None:
        """End the incomplete state of a gang that is complete or gone."""
        if self._gangs.pop(gang.key, None) is not None:
            self._lacking.remove((gang.lacks, gang.key))
        gang.lacks = None


def released(gang: Gang) -> list[Uid]:
    """Return the released pods of a gang that are not terminating."""
    return [m.pod.uid for m in gang.members if m.uses and not m.pod.terminating]


def _was_there(gang: Gang) -> bool:
    """Return whether the gang already ran when it was first observed.

    It did not if an earlier leader left its release unfinished. It did not if no pod runs either,
    because such pods may be the rest of a gang that is being evicted.
    """
    begun = any(m.begun and not m.uses for m in gang.pods.values())
    return gang.was_running and bool(gang.runs) and not begun


def _all_run(gang: Gang) -> bool:
    return not gang.started and gang.size > 0 and len(gang.runs) >= max(1, gang.owed)
