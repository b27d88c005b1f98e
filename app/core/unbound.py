"""Released pods that no node takes: they give back the room they hold, and their like must wait.

Nobody learns why the scheduler finds no node. So after the Policy's time-out such a pod is
evicted, and pods of the same user that ask for the same are not released for a while.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from app.core.effects import Effect, Expel
from app.core.life import Life
from app.core.model import Kind, Millis, Uid
from app.core.policy import Mode, Policy
from app.core.repeats import Repeats
from app.core.roster import Roster
from app.core.tracked import Tracked, kind_of

MOST_DOUBLINGS = 6

LONG = 1_200_000
"""Milliseconds: longer than controllers pause before they create a pod anew."""


@dataclass(slots=True)
class Ban:
    """Pods of a kind wait until `until`, after finding no node so many `times`."""

    times: int
    until: Millis
    length: int

    @property
    def forgotten(self) -> Millis:
        """When it is forgotten, unless pods of the kind wait or look for a node."""
        return Millis(self.until + max(self.length, LONG))


class Unbound:
    """Released pods without a node, since when; and the kinds that found none."""

    def __init__(self, roster: Roster) -> None:
        self._roster = roster
        self._since: dict[Uid, Millis] = {}  # in order of time, which never goes back
        self._leaving = Repeats()
        self._bans: dict[Kind, Ban] = {}

    def see(self, tracked: Tracked) -> None:
        """A released pod was seen."""
        uid, pod = tracked.pod.uid, tracked.pod
        if pod.node is None and pod.asks and not pod.terminating:
            if uid not in self._leaving:
                self._since.setdefault(uid, self._roster.usage.now)
            return
        if uid not in self._since and uid not in self._leaving:
            return
        if pod.node is not None:
            if uid in self._leaving:
                tracked.evicted = ""  # whoever evicts it now does so for another reason
            if tracked.leaf is not None:
                self._bans.pop(kind_of(tracked.leaf, pod), None)
        self.forget(uid)

    def forget(self, uid: Uid) -> None:
        """A pod is gone."""
        self._since.pop(uid, None)
        self._leaving.drop(uid)

    def stays(self, uid: Uid) -> bool:
        """Tell whether an eviction that was refused was asked for here. It is asked again."""
        return uid in self._leaving

    def due(self) -> Millis | None:
        """Return when there is more to do by time alone."""
        policy, now = self._roster.usage.policy, self._roster.usage.now
        if not _applies(policy):
            return None
        due = [self._leaving.due()]
        oldest = next(iter(self._since.values()), None)
        if oldest is not None:
            due.append(Millis(oldest + policy.scheduling_timeout))
        due += (ban.until if ban.until > now else ban.forgotten for ban in self._bans.values())
        return min((at for at in due if at is not None), default=None)

    def run(self) -> list[Effect]:
        """Evict who found no node in time, and say which kinds must wait. After every pass."""
        policy, now = self._roster.usage.policy, self._roster.usage.now
        if not _applies(policy):
            self._roster.ban(frozenset())
            return []
        late = self._late(policy.scheduling_timeout, now)
        for tracked in late:
            self._leaving.add(tracked.pod.uid, now)
            self._ban(tracked, policy.scheduling_timeout, now)
        effects: list[Effect] = []
        for uid in self._leaving.take(now):
            tracked = self._roster.pods[uid]
            tracked.evicted = _explain(policy.scheduling_timeout)
            effects.append(Expel(tracked.ref, tracked.evicted))
        self._forgive(now)
        self._roster.ban(frozenset(kind for kind, ban in self._bans.items() if ban.until > now))
        return effects

    def _late(self, timeout: Millis, now: Millis) -> list[Tracked]:
        late: list[Uid] = []
        for uid, since in self._since.items():
            if since + timeout > now:
                break
            late.append(uid)
        for uid in late:
            del self._since[uid]
        return [self._roster.pods[uid] for uid in late]

    def _ban(self, tracked: Tracked, timeout: Millis, now: Millis) -> None:
        """Let the like of it wait. Who was released together counts once."""
        assert tracked.leaf is not None, "asked before every pod had its place"
        kind = kind_of(tracked.leaf, tracked.pod)
        known = self._bans.get(kind)
        if known is not None and known.until > now:
            return
        times = known.times + 1 if known else 1
        length = timeout << min(times - 1, MOST_DOUBLINGS)
        self._bans[kind] = Ban(times, Millis(now + length), length)

    def _forgive(self, now: Millis) -> None:
        """Forget the kinds of which nothing has waited, or looked for a node, for long."""
        old = {kind for kind, ban in self._bans.items() if ban.forgotten <= now}
        if not old:
            return
        wanted = set(self._kinds(self._roster.pods.values())) & old
        for kind in old:
            ban = self._bans[kind]
            if kind in wanted:
                ban.until = now  # asked about again after as long
            else:
                del self._bans[kind]

    def _kinds(self, pods: Iterable[Tracked]) -> Iterable[Kind]:
        return (
            kind_of(tracked.leaf, tracked.pod)
            for tracked in pods
            if tracked.leaf is not None
            and (tracked.life is not Life.USING or tracked.pod.uid in self._since)
        )


def _applies(policy: Policy) -> bool:
    return policy.scheduling_timeout > 0 and policy.mode is Mode.ENFORCE


def _explain(timeout: Millis) -> str:
    return (
        f"no node took it within {timeout // 1000} s of its release, so its place goes to others; "
        "see what it asks of nodes besides devices (affinity, tolerations, volumes), or let the "
        "operator raise schedulingTimeout in the Policy if nodes come later; pods like it wait "
        "for a while"
    )
