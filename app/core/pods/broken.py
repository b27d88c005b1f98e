"""Gangs that are not whole: what is said of them, and when the released part of one must go.

Half a gang is of no use to anybody, so after the Policy's time-out it gives back what it holds,
and waits again as a whole. One that asks for it begins anew as soon as it loses a pod before all
of it ran, after a pause that doubles each time: what fails once may fail for ever.
"""

from __future__ import annotations

from collections.abc import Callable

from app.core.backoff import Backoff
from app.core.effects import Effect, Expel, Notice, Tell
from app.core.model import Millis, Uid
from app.core.pods.life import Life
from app.core.pods.muster import Muster, released
from app.core.pods.roster import Roster
from app.core.pods.tracked import Gang, GangKey, Tracked
from app.core.policy import Mode
from app.core.repeats import Repeats

Explain = Callable[[Tracked, Roster], str]
"""Tells in a sentence what a held pod waits for."""

CAUSE = "gang"
"""Of evictions, as metrics and the audit chain name it."""

PAUSE = 10_000
"""Milliseconds from the first loss of a pod until the gang may start anew."""

TOLD = 10
"""Pods of an overdue gang whose owner is told so: they are one user's, and there may be many."""


class Broken:
    """See the module. Acts only while this engine leads."""

    def __init__(self, roster: Roster, explain: Explain) -> None:
        self._roster, self._explain = roster, explain
        self._leaving = Repeats()
        self._lost = Backoff[GangKey]()

    @property
    def _muster(self) -> Muster:
        return self._roster.gangs.muster

    def forget(self, uid: Uid) -> None:
        """A pod is gone."""
        self._leaving.drop(uid)

    def due(self) -> Millis | None:
        """Return when there is more to do by time alone."""
        due = [self._leaving.due(), self._lost.due(self._roster.usage.now)]
        first, timeout = self._muster.first(), self._roster.usage.policy.gang_timeout
        if timeout and first is not None:
            due.append(Millis(first + timeout))
        return min((at for at in due if at is not None), default=None)

    def run(self) -> list[Effect]:
        """Report who is not whole for too long, and evict what must go. After every settling."""
        policy, now = self._roster.usage.policy, self._roster.usage.now
        lost = [gang for gang in self._muster.take_lost() if _is_anew(gang)]
        late: list[Gang] = []
        if policy.gang_timeout:
            late = self._muster.take_overdue(Millis(now - policy.gang_timeout))
        effects: list[Effect] = [tell for gang in late for tell in self._report(gang)]
        if policy.mode is not Mode.ENFORCE:
            self._lost.clear()
            self._roster.gangs.defer({})
            return effects
        for gang in lost:
            if self._part(gang, _explain_lost(gang)):
                self._lost.fail(gang.key, now, PAUSE)
        for gang in late:
            if not gang.started:
                self._part(gang, _explain_late(gang, policy.gang_timeout))
        self._forgive(now)
        self._roster.gangs.defer(self._lost.waiting(now))
        return effects + self._expel(now)

    def _report(self, gang: Gang) -> list[Tell]:
        held = [m for m in gang.members if m.life is Life.HELD][:TOLD]
        return [Tell(m.ref, Notice.WAITING, self._explain(m, self._roster)) for m in held]

    def _part(self, gang: Gang, why: str) -> bool:
        """Let go of what was released of a gang; tell whether anything was."""
        if gang.leaving or not any(m.uses for m in gang.members):
            return False
        self._muster.leave(gang, why)
        self._roster.gangs.loosen(gang)
        return True

    def _forgive(self, now: Millis) -> None:
        """Forget the gangs of which all ran at once, and those that lost no pod for long."""
        for key in [*self._lost.old(now), *filter(self._roster.gangs.started, self._lost)]:
            self._lost.forgive(key)

    def _expel(self, now: Millis) -> list[Effect]:
        for each in self._muster.leaving.values():
            for uid in released(each):
                self._leaving.add(uid, now)
        effects: list[Effect] = []
        for uid in self._leaving.take(now):
            tracked = self._roster.pods[uid]
            gang = tracked.gang
            if gang is None or not gang.leaving or tracked.life is not Life.USING:
                self._leaving.drop(uid)
            elif not tracked.pod.terminating:
                effects.append(Expel(tracked.ref, gang.leaving, CAUSE))
        return effects


def _is_anew(gang: Gang) -> bool:
    return any(m.pod.gang_anew for m in gang.members)


def _explain_lost(gang: Gang) -> str:
    return (
        f"a pod of its gang {gang.name} failed or was deleted before all of the gang ran, and "
        "fairgate.io/gang-failure: restart asks that all begin anew, later each time; "
        "write keep, and the others go on while a replacement is awaited"
    )


def _explain_late(gang: Gang, timeout: Millis) -> str:
    run = sum(m.uses for m in gang.members)
    return (
        f"only {run} of the {gang.need} pods of its gang {gang.name} were released within "
        f"{timeout // 1000} s, so their place goes to others and the gang waits again as a whole; "
        "see what became of its other pods, or let the operator raise gangTimeout in the Policy"
    )
