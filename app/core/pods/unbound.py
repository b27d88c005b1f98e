"""Released pods that no node takes: they give back the room they hold, and their like must wait.

Nobody learns why the scheduler finds no node. So after the Policy's time-out such a pod is
evicted, and pods of the same user that ask for the same are not released for a while. If it waited
for new nodes of a pool, the user's work waits for none of those for a while, nothing else. Nobody
is to blame for a node that was lost meanwhile.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from app.core.backoff import Backoff
from app.core.effects import Effect, Expel
from app.core.model import Kind, Millis, PoolName, Uid
from app.core.places.growth import Growth
from app.core.pods.life import Life
from app.core.pods.roster import Roster
from app.core.pods.tracked import Tracked, kind_of
from app.core.policy import Mode, Policy
from app.core.repeats import Repeats

CAUSE = "unbound"
"""Of evictions, as metrics and the audit chain name it."""

LOST = (
    "the node that it was released for was lost, or takes it no more, and no other took it within "
    "{seconds} s of its release, so its place is given back; nothing is wrong with it, and a new "
    "pod like it may be released at once"
)
MISSING = (
    "no new node of pool {pool} came for it within {seconds} s of its release, so its place is "
    "given back; the operator may see why the autoscaler added none, lower maxCapacity of the "
    "pool, or raise schedulingTimeout in the Policy if nodes come later"
)
UNTAKEN = (
    "no node took it within {seconds} s of its release, so its place goes to others; see what it "
    "asks of nodes besides devices (volumes, host ports, affinity to other pods), or let the "
    "operator raise schedulingTimeout in the Policy if nodes come later; pods like it wait for a "
    "while"
)


@dataclass(frozen=True, slots=True)
class _Hope:
    """Waits for new nodes of a pool, since so many had arrived anywhere."""

    pool: PoolName
    arrivals: int


class Unbound:
    """Released pods without a node, since when; and the kinds that found none."""

    def __init__(self, roster: Roster, growth: Growth) -> None:
        self._roster = roster
        self._growth = growth
        self._hoping: dict[Uid, _Hope] = {}
        self._texts: dict[Uid, str] = {}
        self._since: dict[Uid, Millis] = {}  # in order of time, which never goes back
        self._leaving = Repeats()
        self._bans = Backoff[Kind]()

    def see(self, tracked: Tracked) -> list[Uid]:
        """A released pod was seen. Return it if it was to go, and need not: it has a node now."""
        uid, pod = tracked.pod.uid, tracked.pod
        if pod.node is None and pod.asks and not pod.terminating:
            if uid not in self._leaving:
                self._since.setdefault(uid, self._roster.usage.now)
                pool = self._roster.usage.awaited(tracked.stay)
                if pool is not None:
                    self._hoping.setdefault(uid, _Hope(pool, self._growth.arrivals))
            return []
        if uid not in self._since and uid not in self._leaving:
            return []
        stays = uid in self._leaving and pod.node is not None
        if pod.node is not None and tracked.leaf is not None:
            hope = self._hoping.get(uid)
            if hope is not None and self._growth.is_newer(pod.node, hope.arrivals):
                self._growth.came(hope.pool, tracked.leaf.account)
            self._bans.forgive(kind_of(tracked.leaf, pod))
        self.forget(uid)
        return [uid] if stays else []

    def forget(self, uid: Uid) -> None:
        """A pod is gone."""
        self._since.pop(uid, None)
        self._hoping.pop(uid, None)
        self._texts.pop(uid, None)
        self._leaving.drop(uid)

    def due(self) -> Millis | None:
        """Return when there is more to do by time alone."""
        policy, now = self._roster.usage.policy, self._roster.usage.now
        if not _applies(policy):
            return None
        due = [self._leaving.due(), self._growth.due(now), self._bans.due(now)]
        oldest = next(iter(self._since.values()), None)
        if oldest is not None:
            due.append(Millis(oldest + policy.scheduling_timeout))
        return min((at for at in due if at is not None), default=None)

    def run(self) -> list[Effect]:
        """Evict who found no node in time, and say which kinds must wait. After every pass."""
        policy, now = self._roster.usage.policy, self._roster.usage.now
        if not _applies(policy):
            self._roster.ban(frozenset())
            self._growth.clear()
            return []
        for tracked in self._late(policy.scheduling_timeout, now):
            self._leaving.add(tracked.pod.uid, now)
            self._texts[tracked.pod.uid] = self._blame(tracked, policy.scheduling_timeout, now)
        leaving = [
            (self._roster.pods[uid].ref, self._texts[uid]) for uid in self._leaving.take(now)
        ]
        self._forgive(now)
        self._growth.advance(now)
        self._roster.ban(frozenset(self._bans.waiting(now)))
        return [Expel(ref, why, CAUSE) for ref, why in leaving]

    def _late(self, timeout: Millis, now: Millis) -> list[Tracked]:
        late: list[Uid] = []
        for uid, since in self._since.items():
            if since + timeout > now:
                break
            late.append(uid)
        for uid in late:
            del self._since[uid]
        return [self._roster.pods[uid] for uid in late]

    def _blame(self, tracked: Tracked, timeout: Millis, now: Millis) -> str:
        """Hold it against whoever is to blame that a pod found no node; return what to say."""
        usage, uid, seconds = self._roster.usage, tracked.pod.uid, timeout // 1000
        assert tracked.leaf is not None, "asked before every pod had its place"
        pool = usage.awaited(tracked.stay)
        if usage.lost(tracked.stay, tracked.aimed):
            self._hoping.pop(uid, None)  # nobody is to blame
            return LOST.format(seconds=seconds)
        if pool is None:
            self._hoping.pop(uid, None)  # there is a node, and it does not take it
            self._bans.fail(kind_of(tracked.leaf, tracked.pod), now, timeout)
            return UNTAKEN.format(seconds=seconds)
        self._hoping.setdefault(uid, _Hope(pool, self._growth.arrivals))
        self._growth.failed(pool, tracked.leaf.account, now, timeout)
        return MISSING.format(pool=pool, seconds=seconds)

    def _forgive(self, now: Millis) -> None:
        """Forget the kinds of which nothing has waited, or looked for a node, for long."""
        old = self._bans.old(now)
        if not old:
            return
        wanted = set(self._kinds(self._roster.pods.values()))
        for kind in old:
            if kind in wanted:
                self._bans.keep(kind, now)
            else:
                self._bans.forgive(kind)

    def _kinds(self, pods: Iterable[Tracked]) -> Iterable[Kind]:
        return (
            kind_of(tracked.leaf, tracked.pod)
            for tracked in pods
            if tracked.leaf is not None
            and (tracked.life is not Life.USING or tracked.pod.uid in self._since)
        )


def _applies(policy: Policy) -> bool:
    return policy.scheduling_timeout > 0 and policy.mode is Mode.ENFORCE
