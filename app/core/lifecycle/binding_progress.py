"""Tracks, per pool, scheduler and user, whether the scheduler binds released pods.

A pod is silent until the scheduler binds it or writes that it found no node. Binding in a pool is
stalled while pods stay silent and no pod is bound. No time-out runs there in that state. Only
changes that this engine observed are evidence. A value that a user may write is no evidence.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

from app.core.fairshare.closed_pools import UserAccount
from app.core.lifecycle.event_rate import EventRate
from app.core.lifecycle.pod_record import PodRecord
from app.core.lifecycle.pod_state import PodState
from app.core.model import Millis, PoolName, Said, Uid

STALL_MS = 30_000
"""Binding is stalled if a pod was silent for this long and no other pod was bound or judged."""

PROBE_MS = 60_000
"""While binding is stalled, a user with silent pods may have one more released per interval."""

RECENT_MS = 10_000
"""The release window follows the number of pods bound within this time."""

LONG_MS = 600_000
"""Evictions are compared with the number of pods bound within this time."""

MOST = 100
"""Number of lanes to store before unused lanes are dropped."""

Lane = tuple[PoolName, str, UserAccount | None]
"""Pool, scheduler (empty for the default one), and the user if the pods are `apart`."""

Clock = tuple[PoolName, str]


@dataclass(slots=True, eq=False)
class UnboundAmounts:
    """A released pod without a node. `since`: when its release was observed; None if not yet."""

    tracked: PodRecord
    lane: Lane
    account: UserAccount
    since: Millis | None = None
    said: Said | None = None
    judged: bool = False
    overdue: bool = False

    @property
    def clock(self) -> Clock:
        """Return the key of the timer of its time-out."""
        return self.lane[0], self.lane[1]


@dataclass(slots=True, eq=False)
class _Line:
    """The silent pods of a lane. `seen`: those with an observed release, in that order."""

    silent: dict[Uid, UnboundAmounts] = field(default_factory=dict)
    seen: dict[Uid, UnboundAmounts] = field(default_factory=dict)
    progressed: Millis | None = None
    bound: EventRate = field(default_factory=lambda: EventRate(RECENT_MS))

    def first(self, after: int = -1) -> Millis | None:
        """Return when the first release of a silent pod was observed, optionally after a time."""
        found = (p.since for p in self.seen.values())
        return next((since for since in found if since is not None and since > after), None)

    def waits_since(self) -> Millis | None:
        """Return since when a pod is silent without progress in the lane, or None."""
        first = self.first()
        if first is None or self.progressed is None:
            return first
        return max(first, self.progressed)

    def stalls_since(self) -> Millis | None:
        """Do the same as `waits_since`, without pods that were long silent at the last progress.

        The scheduler need not be the cause: a volume that is never provisioned keeps a pod silent.
        """
        if self.progressed is None:
            return self.first()
        first = self.first(self.progressed - STALL_MS)
        return max(first, self.progressed) if first is not None else None


@dataclass(slots=True, eq=False)
class _Timer:
    """Running time of the time-outs of a pool and scheduler, and its value at the start of each."""

    ran: int = 0
    began: dict[Uid, int] = field(default_factory=dict)


class BindingProgress:
    """Binding progress of all lanes. Call `advance` before a query that depends on time."""

    def __init__(self) -> None:
        self.loose: dict[Uid, UnboundAmounts] = {}
        self.unowned: dict[UserAccount, dict[Uid, UnboundAmounts]] = {}
        self._now = Millis(0)
        self._runs = True
        self._lines: dict[Lane, _Line] = {}
        self._apart: dict[UserAccount, list[Lane]] = {}
        """Index of the lanes for `apart` pods by user, because there may be many users."""
        self._timers: dict[Clock, _Timer] = {}
        self._spoke: dict[str, Millis] = {}
        """When each scheduler last bound or judged a pod in this term."""
        self._bound_here: dict[PoolName, EventRate] = {}
        self._bound_for: dict[UserAccount, EventRate] = {}
        self._most = MOST

    # Observations

    def see(self, tracked: PodRecord) -> None:
        """Process the current state of a pod after it was accounted."""
        pod, uid = tracked.pod, tracked.pod.uid
        known = self.loose.get(uid)
        leaf, allocation = tracked.leaf, tracked.allocation
        if not tracked.uses or allocation is None or leaf is None or pod.terminating or pod.node:
            if known is not None:
                if tracked.uses and pod.node is not None and known.since is not None:
                    self._bound(known)
                self.drop(uid)
            return
        lane = allocation.pool, pod.scheduler, leaf.account if pod.apart else None
        if known is not None and (known.lane, known.account) != (lane, leaf.account):
            self.drop(uid)
            known = None
        if known is None:
            known = self.loose[uid] = UnboundAmounts(tracked, lane, leaf.account)
            known.said = pod.said
            known.judged = pod.said is not None and pod.said.judged
            if not pod.is_owned:
                self.unowned.setdefault(leaf.account, {})[uid] = known
        if known.since is None and tracked.life is PodState.USING:
            known.since = self._now
            self._line(lane).silent.pop(uid, None)
        self._note_message(known, pod.said)

    def drop(self, uid: Uid) -> None:
        """Stop tracking a pod that is gone, bound or terminating."""
        known = self.loose.pop(uid, None)
        if known is None:
            return
        self._quiet(known)
        self._stop(known)
        mine = self.unowned.get(known.account)
        if mine is not None and mine.pop(uid, None) is not None and not mine:
            del self.unowned[known.account]

    def start_term(self, now: Millis) -> None:
        """Start a leader term: no scheduler is known to work, and every time-out restarts."""
        self.advance(now)
        self._spoke.clear()
        self._timers.clear()
        for line in self._lines.values():
            line.progressed = None
        for known in self.loose.values():
            if known.since is not None:
                known.since = self._now
            known.overdue = False

    def update_timeouts(self, now: Millis, runs: bool) -> None:
        """Start or stop all time-outs. They stop while the cluster is not fully observed."""
        self.advance(now)
        self._runs = runs

    def advance(self, now: Millis) -> None:
        """Advance the clock."""
        before, self._now = self._now, max(now, self._now)
        if self._runs:
            for clock, timer in self._timers.items():
                if timer.began:
                    timer.ran += max(0, min(self._now, self._stops_at(clock)) - before)

    # Queries

    def silent(self, pool: PoolName) -> int:
        """Return the number of silent pods of a pool, except `apart` pods."""
        line = self._lines.get((pool, "", None))
        return len(line.silent) if line is not None else 0

    def silent_apart(self, account: UserAccount) -> int:
        """Return the number of silent `apart` pods of a user."""
        return sum(len(line.silent) for line in self._lines_apart(account))

    def bound_recently(self, pool: PoolName) -> int:
        """Return how many pods of a pool, except `apart` pods, were bound within `RECENT_MS`."""
        line = self._lines.get((pool, "", None))
        return line.bound.count(self._now) if line is not None else 0

    def bound_recently_apart(self, account: UserAccount) -> int:
        """Return how many `apart` pods of a user were bound within `RECENT_MS`."""
        return sum(line.bound.count(self._now) for line in self._lines_apart(account))

    def bound_unowned(self, account: UserAccount) -> int:
        """Return how many pods of a user without a controller were bound within `RECENT_MS`."""
        rate = self._bound_for.get(account)
        return rate.count(self._now) if rate is not None else 0

    def bound_long(self, pool: PoolName) -> int:
        """Return how many pods of a pool were bound within `LONG_MS`."""
        rate = self._bound_here.get(pool)
        return rate.count(self._now) if rate is not None else 0

    def stalled(self, pool: PoolName) -> Millis | None:
        """Return since when binding is stalled in a pool, except for `apart` pods, or None."""
        return self._stalled((pool, "", None))

    def is_quiet(self, pool: PoolName) -> bool:
        """Return whether time-outs are stopped in a pool, because binding is or may be stalled."""
        line = self._lines.get((pool, "", None))
        return line is not None and self._is_long(line.waits_since())

    def stalled_apart(self, account: UserAccount) -> bool:
        """Return whether a user's `apart` pods are not bound although one was released recently."""
        lanes = self._apart.get(account, ())
        is_stalled = any(self._stalled(lane) is not None for lane in lanes)
        return is_stalled and self.is_recent_apart(account)

    def is_recent_apart(self, account: UserAccount) -> bool:
        """Return whether a silent `apart` pod of a user was released within `PROBE_MS`."""
        lines = self._lines_apart(account)
        return any(self._is_recent(each) for line in lines for each in line.silent.values())

    def is_stuck(self, pool: PoolName) -> bool:
        """Return whether a pod of a pool, except `apart` pods, is silent for `STALL_MS`."""
        line = self._lines.get((pool, "", None))
        first = line.first() if line is not None else None
        return first is not None and first + STALL_MS <= self._now

    def silent_of(self, pool: PoolName) -> dict[UserAccount, int]:
        """Return the number of silent pods per user in a pool, except `apart` pods."""
        line = self._lines.get((pool, "", None))
        return Counter(each.account for each in line.silent.values()) if line is not None else {}

    def recent(self, pool: PoolName) -> dict[UserAccount, Millis]:
        """Return the users with silent pods released within `PROBE_MS`, and when that ends."""
        line = self._lines.get((pool, "", None))
        silent = line.silent.values() if line is not None else ()
        return {
            each.account: Millis((self._now if each.since is None else each.since) + PROBE_MS)
            for each in silent
            if self._is_recent(each)
        }

    def accounts_apart(self) -> set[UserAccount]:
        """Return the users with silent `apart` pods."""
        return {lane[2] for lane, line in self._lines.items() if lane[2] and line.silent}

    def pools(self) -> list[PoolName]:
        """Return the pools with silent pods that are not `apart`, by name."""
        return sorted(p for (p, _, who), line in self._lines.items() if line.silent and who is None)

    @property
    def halted(self) -> bool:
        """Whether gang time-outs are stopped: pods are silent, perhaps because of the scheduler."""
        return any(
            line.silent and (self._is_long(line.waits_since()) or lane[1] not in self._spoke)
            for lane, line in self._lines.items()
            if lane[2] is None and line.waits_since() is not None
        )

    def has_spoken_since(self, tracked: PodRecord, since: Millis) -> bool:
        """Return whether the scheduler of a pod bound or judged any pod after this time."""
        return self._spoke.get(tracked.pod.scheduler, Millis(0)) > since

    def overdue(self, timeout: Millis) -> Iterator[PodRecord]:
        """Yield, once, the pods with an expired time-out, in the order of release."""
        for timer in self._timers.values():
            for uid, began in list(timer.began.items()):
                if began + timeout > timer.ran:
                    break
                del timer.began[uid]
                known = self.loose[uid]
                known.overdue = True
                yield known.tracked

    def restart(self, uid: Uid) -> None:
        """Restart the time-out of a pod."""
        known = self.loose.get(uid)
        if known is not None:
            self._stop(known)
            known.overdue = False
            self._file(known)

    def due(self, timeout: Millis) -> Millis | None:
        """Return when a time-out expires or binding counts as stalled next."""
        found = [
            Millis(since + STALL_MS)
            for line in self._lines.values()
            for since in (line.waits_since(), line.stalls_since())
            if since is not None and since + STALL_MS > self._now
        ]
        for clock, timer in self._timers.items():
            began = next(iter(timer.began.values()), None)
            if began is not None and timeout:
                at = Millis(self._now + max(0, began + timeout - timer.ran))
                if at <= self._stops_at(clock):
                    found.append(at)
        return min(found, default=None)

    # State changes

    def _note_message(self, known: UnboundAmounts, said: Said | None) -> None:
        """Process a changed scheduler message of an unbound pod."""
        changed, known.said = said != known.said, said
        known.judged = said is not None and said.judged
        if changed and known.judged and known.since is not None:
            self._speak(known)
        self._file(known)

    def _file(self, known: UnboundAmounts) -> None:
        """Add a pod to the silent pods, or start its time-out."""
        uid, line = known.tracked.pod.uid, self._line(known.lane)
        if not known.judged:
            if uid not in line.silent:
                self._stop(known)
                line.silent[uid] = known
                if known.since is not None:
                    line.seen[uid] = known
                    known.since = self._now  # keeps the order by time
            return
        self._quiet(known)
        if known.lane[1] in self._spoke and known.since is not None and not known.overdue:
            self._start(known)

    def _bound(self, known: UnboundAmounts) -> None:
        self._speak(known)
        self._line(known.lane).bound.add(self._now)
        self._bound_here.setdefault(known.lane[0], EventRate(LONG_MS)).add(self._now)
        if not known.tracked.pod.is_owned:
            self._bound_for.setdefault(known.account, EventRate(RECENT_MS)).add(self._now)

    def _speak(self, known: UnboundAmounts) -> None:
        """Record that a scheduler bound or judged a pod, and therefore works."""
        scheduler = known.lane[1]
        is_first = scheduler not in self._spoke
        self._spoke[scheduler] = self._line(known.lane).progressed = self._now
        for other in list(self.loose.values()) if is_first else ():
            if other.lane[1] == scheduler:
                self._file(other)

    def _is_recent(self, known: UnboundAmounts) -> bool:
        return known.since is None or known.since + PROBE_MS > self._now

    def _line(self, lane: Lane) -> _Line:
        if lane not in self._lines:
            if len(self._lines) >= self._most:
                self._forget_old()
            self._lines[lane] = _Line()
            if lane[2] is not None:
                self._apart.setdefault(lane[2], []).append(lane)
        return self._lines[lane]

    def _lines_apart(self, account: UserAccount) -> list[_Line]:
        return [self._lines[lane] for lane in self._apart.get(account, ())]

    def _forget_old(self) -> None:
        """Drop lanes and users without recently bound pods. A lane with silent pods stays."""
        now = self._now
        self._lines = {
            lane: each for lane, each in self._lines.items() if each.silent or each.bound.count(now)
        }
        self._apart.clear()
        for lane in self._lines:
            if lane[2] is not None:
                self._apart.setdefault(lane[2], []).append(lane)
        self._bound_for = {who: rate for who, rate in self._bound_for.items() if rate.count(now)}
        self._most = 2 * len(self._lines) + MOST

    def _quiet(self, known: UnboundAmounts) -> None:
        """Remove a pod from the silent pods."""
        line = self._lines.get(known.lane)
        if line is not None:
            line.silent.pop(known.tracked.pod.uid, None)
            line.seen.pop(known.tracked.pod.uid, None)

    def _start(self, known: UnboundAmounts) -> None:
        timer = self._timers.setdefault(known.clock, _Timer())
        timer.began.setdefault(known.tracked.pod.uid, timer.ran)

    def _stop(self, known: UnboundAmounts) -> None:
        timer = self._timers.get(known.clock)
        if timer is not None:
            timer.began.pop(known.tracked.pod.uid, None)

    def _stalled(self, lane: Lane) -> Millis | None:
        line = self._lines.get(lane)
        since = line.stalls_since() if line is not None else None
        return since if self._is_long(since) else None

    def _is_long(self, since: Millis | None) -> bool:
        return since is not None and since + STALL_MS <= self._now

    def _stops_at(self, clock: Clock) -> int:
        """Return when a time-out clock stops if no other event happens.

        It stops if binding stalls in its pool, or in another pool while no pool makes progress.
        """
        pool, scheduler = clock
        spoke = self._spoke.get(scheduler)
        if spoke is None:
            return 0
        found = [1 << 62]
        for (where, whose, account), line in self._lines.items():
            since = line.waits_since() if whose == scheduler else None
            if since is None or (account is not None and not scheduler):
                continue
            found.append(since + STALL_MS if where == pool else max(since, spoke) + STALL_MS)
        return min(found)
