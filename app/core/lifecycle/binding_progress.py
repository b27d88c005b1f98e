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
from app.core.model import Millis, PoolName, SchedulerCondition, Uid

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
"""Pool, scheduler ("" for the default one), and a user if the scheduler may be silent."""

Clock = tuple[PoolName, str]


@dataclass(slots=True, eq=False)
class UnboundPod:
    """A released pod without a node. `observed_at`: when its release was observed, or None."""

    tracked: PodRecord
    lane: Lane
    account: UserAccount
    observed_at: Millis | None = None
    scheduler_condition: SchedulerCondition | None = None
    was_judged: bool = False
    is_overdue: bool = False

    @property
    def timer_key(self) -> Clock:
        """Return the key of the timer of its time-out."""
        return self.lane[0], self.lane[1]


@dataclass(slots=True, eq=False)
class _Line:
    """The silent pods of a lane. `observed`: those with an observed release, in that order."""

    silent: dict[Uid, UnboundPod] = field(default_factory=dict)
    observed: dict[Uid, UnboundPod] = field(default_factory=dict)
    progressed_at: Millis | None = None
    bound_rate: EventRate = field(default_factory=lambda: EventRate(RECENT_MS))

    def first_observed_at(self, after: int = -1) -> Millis | None:
        """Return when the first release of a silent pod was observed, optionally after a time."""
        found = (p.observed_at for p in self.observed.values())
        return next((since for since in found if since is not None and since > after), None)

    def silent_since(self) -> Millis | None:
        """Return since when a pod is silent without progress in the lane, or None."""
        first = self.first_observed_at()
        if first is None or self.progressed_at is None:
            return first
        return max(first, self.progressed_at)

    def stalled_since(self) -> Millis | None:
        """Do the same as `silent_since`, without pods that were long silent at the last progress.

        The scheduler need not be the cause: a volume that is never provisioned keeps a pod silent.
        """
        if self.progressed_at is None:
            return self.first_observed_at()
        first = self.first_observed_at(self.progressed_at - STALL_MS)
        return max(first, self.progressed_at) if first is not None else None


@dataclass(slots=True, eq=False)
class _Timer:
    """Running time of the time-outs of a pool and scheduler, and its value at the start of each."""

    elapsed: int = 0
    elapsed_at_start: dict[Uid, int] = field(default_factory=dict)


class BindingProgress:
    """Binding progress of all lanes. Call `advance` before a query that depends on time."""

    def __init__(self) -> None:
        self.unbound: dict[Uid, UnboundPod] = {}
        self.unowned: dict[UserAccount, dict[Uid, UnboundPod]] = {}
        self._now = Millis(0)
        self._is_timing = True
        self._progress: dict[Lane, _Line] = {}
        self._user_lanes: dict[UserAccount, list[Lane]] = {}
        """Index of the user lanes by user, because there may be many users."""
        self._timers: dict[Clock, _Timer] = {}
        self._scheduler_acted_at: dict[str, Millis] = {}
        """When each scheduler last bound or judged a pod in this term."""
        self._bound_by_pool: dict[PoolName, EventRate] = {}
        self._bound_by_user: dict[UserAccount, EventRate] = {}
        self._most = MOST

    # Observations

    def observe_pod(self, tracked: PodRecord) -> None:
        """Process the current state of a pod after it was accounted."""
        pod, uid = tracked.pod, tracked.pod.uid
        known = self.unbound.get(uid)
        leaf, allocation = tracked.leaf, tracked.allocation
        if (
            not tracked.counts_as_used
            or allocation is None
            or leaf is None
            or pod.terminating
            or pod.node
        ):
            if known is not None:
                if (
                    tracked.counts_as_used
                    and pod.node is not None
                    and known.observed_at is not None
                ):
                    self._record_bound(known)
                self.forget_pod(uid)
            return
        lane = allocation.pool, pod.scheduler, leaf.account if pod.scheduler_may_be_silent else None
        if known is not None and (known.lane, known.account) != (lane, leaf.account):
            self.forget_pod(uid)
            known = None
        if known is None:
            known = self.unbound[uid] = UnboundPod(tracked, lane, leaf.account)
            known.scheduler_condition = pod.scheduler_condition
            known.was_judged = (
                pod.scheduler_condition is not None and pod.scheduler_condition.was_judged
            )
            if not pod.is_owned:
                self.unowned.setdefault(leaf.account, {})[uid] = known
        if known.observed_at is None and tracked.state is PodState.USING:
            known.observed_at = self._now
            self._progress_of(lane).silent.pop(uid, None)
        self._note_message(known, pod.scheduler_condition)

    def forget_pod(self, uid: Uid) -> None:
        """Stop tracking a pod that is gone, bound or terminating."""
        known = self.unbound.pop(uid, None)
        if known is None:
            return
        self._remove_silent(known)
        self._stop_timer(known)
        mine = self.unowned.get(known.account)
        if mine is not None and mine.pop(uid, None) is not None and not mine:
            del self.unowned[known.account]

    def start_term(self, now: Millis) -> None:
        """Start a leader term: no scheduler is known to work, and every time-out restarts."""
        self.advance(now)
        self._scheduler_acted_at.clear()
        self._timers.clear()
        for line in self._progress.values():
            line.progressed_at = None
        for known in self.unbound.values():
            if known.observed_at is not None:
                known.observed_at = self._now
            known.is_overdue = False

    def update_timeouts(self, now: Millis, runs: bool) -> None:
        """Start or stop all time-outs. They stop while the cluster is not fully observed."""
        self.advance(now)
        self._is_timing = runs

    def advance(self, now: Millis) -> None:
        """Advance the clock."""
        before, self._now = self._now, max(now, self._now)
        if self._is_timing:
            for clock, timer in self._timers.items():
                if timer.elapsed_at_start:
                    timer.elapsed += max(0, min(self._now, self._timer_stops_at(clock)) - before)

    # Queries

    def count_silent(self, pool: PoolName) -> int:
        """Return the number of silent pods in the lanes of a pool."""
        line = self._progress.get((pool, "", None))
        return len(line.silent) if line is not None else 0

    def count_user_lane_silent(self, account: UserAccount) -> int:
        """Return the number of silent pods in the lanes of a user."""
        return sum(len(line.silent) for line in self._user_lane_progress(account))

    def count_recently_bound(self, pool: PoolName) -> int:
        """Return how many pods in the lanes of a pool were bound within `RECENT_MS`."""
        line = self._progress.get((pool, "", None))
        return line.bound_rate.count(self._now) if line is not None else 0

    def count_user_lane_bound(self, account: UserAccount) -> int:
        """Return how many pods in the lanes of a user were bound within `RECENT_MS`."""
        return sum(line.bound_rate.count(self._now) for line in self._user_lane_progress(account))

    def count_bound_unowned(self, account: UserAccount) -> int:
        """Return how many pods of a user without a controller were bound within `RECENT_MS`."""
        rate = self._bound_by_user.get(account)
        return rate.count(self._now) if rate is not None else 0

    def count_bound_long_term(self, pool: PoolName) -> int:
        """Return how many pods of a pool were bound within `LONG_MS`."""
        rate = self._bound_by_pool.get(pool)
        return rate.count(self._now) if rate is not None else 0

    def stalled_since(self, pool: PoolName) -> Millis | None:
        """Return since when binding is stalled in the lanes of a pool, or None."""
        return self._lane_stalled_since((pool, "", None))

    def is_timeout_paused(self, pool: PoolName) -> bool:
        """Return whether time-outs are stopped in a pool, because binding is or may be stalled."""
        line = self._progress.get((pool, "", None))
        return line is not None and self._is_past_stall_limit(line.silent_since())

    def is_user_lane_stalled(self, account: UserAccount) -> bool:
        """Return whether pods in a user's lanes are not bound although one was just released."""
        lanes = self._user_lanes.get(account, ())
        is_stalled = any(self._lane_stalled_since(lane) is not None for lane in lanes)
        return is_stalled and self.has_recent_user_lane(account)

    def has_recent_user_lane(self, account: UserAccount) -> bool:
        """Return whether a silent pod in a user's lanes was released within `PROBE_MS`."""
        lines = self._user_lane_progress(account)
        return any(self._is_recent(each) for line in lines for each in line.silent.values())

    def is_stuck(self, pool: PoolName) -> bool:
        """Return whether a pod in the lanes of a pool is silent for `STALL_MS`."""
        line = self._progress.get((pool, "", None))
        first = line.first_observed_at() if line is not None else None
        return first is not None and first + STALL_MS <= self._now

    def silent_by_user(self, pool: PoolName) -> dict[UserAccount, int]:
        """Return the number of silent pods per user in the lanes of a pool."""
        line = self._progress.get((pool, "", None))
        return Counter(each.account for each in line.silent.values()) if line is not None else {}

    def recently_released_users(self, pool: PoolName) -> dict[UserAccount, Millis]:
        """Return the users with silent pods released within `PROBE_MS`, and when that ends."""
        line = self._progress.get((pool, "", None))
        silent = line.silent.values() if line is not None else ()
        return {
            each.account: Millis(
                (self._now if each.observed_at is None else each.observed_at) + PROBE_MS
            )
            for each in silent
            if self._is_recent(each)
        }

    def users_with_silent_lane(self) -> set[UserAccount]:
        """Return the users with silent pods in their lanes."""
        return {lane[2] for lane, line in self._progress.items() if lane[2] and line.silent}

    def pools_with_silent_pods(self) -> list[PoolName]:
        """Return the pools with silent pods in their lanes, by name."""
        return sorted(
            p for (p, _, who), line in self._progress.items() if line.silent and who is None
        )

    @property
    def is_gang_timeout_paused(self) -> bool:
        """Whether gang time-outs are stopped: pods are silent, perhaps because of the scheduler."""
        return any(
            line.silent
            and (
                self._is_past_stall_limit(line.silent_since())
                or lane[1] not in self._scheduler_acted_at
            )
            for lane, line in self._progress.items()
            if lane[2] is None and line.silent_since() is not None
        )

    def has_scheduler_acted_since(self, tracked: PodRecord, since: Millis) -> bool:
        """Return whether the scheduler of a pod bound or judged any pod after this time."""
        return self._scheduler_acted_at.get(tracked.pod.scheduler, Millis(0)) > since

    def drain_overdue(self, timeout: Millis) -> Iterator[PodRecord]:
        """Yield, once, the pods with an expired time-out, in the order of release."""
        for timer in self._timers.values():
            for uid, began in list(timer.elapsed_at_start.items()):
                if began + timeout > timer.elapsed:
                    break
                del timer.elapsed_at_start[uid]
                known = self.unbound[uid]
                known.is_overdue = True
                yield known.tracked

    def restart_timeout(self, uid: Uid) -> None:
        """Restart the time-out of a pod."""
        known = self.unbound.get(uid)
        if known is not None:
            self._stop_timer(known)
            known.is_overdue = False
            self._mark_silent_or_start_timer(known)

    def due(self, timeout: Millis) -> Millis | None:
        """Return when a time-out expires or binding counts as stalled next."""
        found = [
            Millis(since + STALL_MS)
            for line in self._progress.values()
            for since in (line.silent_since(), line.stalled_since())
            if since is not None and since + STALL_MS > self._now
        ]
        for clock, timer in self._timers.items():
            began = next(iter(timer.elapsed_at_start.values()), None)
            if began is not None and timeout:
                at = Millis(self._now + max(0, began + timeout - timer.elapsed))
                if at <= self._timer_stops_at(clock):
                    found.append(at)
        return min(found, default=None)

    # State changes

    def _note_message(self, known: UnboundPod, said: SchedulerCondition | None) -> None:
        """Process a changed scheduler message of an unbound pod."""
        changed, known.scheduler_condition = said != known.scheduler_condition, said
        known.was_judged = said is not None and said.was_judged
        if changed and known.was_judged and known.observed_at is not None:
            self._record_scheduler_action(known)
        self._mark_silent_or_start_timer(known)

    def _mark_silent_or_start_timer(self, known: UnboundPod) -> None:
        """Add a pod to the silent pods, or start its time-out."""
        uid, line = known.tracked.pod.uid, self._progress_of(known.lane)
        if not known.was_judged:
            if uid not in line.silent:
                self._stop_timer(known)
                line.silent[uid] = known
                if known.observed_at is not None:
                    line.observed[uid] = known
                    known.observed_at = self._now  # keeps the order by time
            return
        self._remove_silent(known)
        if (
            known.lane[1] in self._scheduler_acted_at
            and known.observed_at is not None
            and not known.is_overdue
        ):
            self._start_timer(known)

    def _record_bound(self, known: UnboundPod) -> None:
        self._record_scheduler_action(known)
        self._progress_of(known.lane).bound_rate.add(self._now)
        self._bound_by_pool.setdefault(known.lane[0], EventRate(LONG_MS)).add(self._now)
        if not known.tracked.pod.is_owned:
            self._bound_by_user.setdefault(known.account, EventRate(RECENT_MS)).add(self._now)

    def _record_scheduler_action(self, known: UnboundPod) -> None:
        """Record that a scheduler bound or judged a pod, and therefore works."""
        scheduler = known.lane[1]
        is_first = scheduler not in self._scheduler_acted_at
        self._scheduler_acted_at[scheduler] = self._progress_of(known.lane).progressed_at = (
            self._now
        )
        for other in list(self.unbound.values()) if is_first else ():
            if other.lane[1] == scheduler:
                self._mark_silent_or_start_timer(other)

    def _is_recent(self, known: UnboundPod) -> bool:
        return known.observed_at is None or known.observed_at + PROBE_MS > self._now

    def _progress_of(self, lane: Lane) -> _Line:
        if lane not in self._progress:
            if len(self._progress) >= self._most:
                self._drop_idle_lanes()
            self._progress[lane] = _Line()
            if lane[2] is not None:
                self._user_lanes.setdefault(lane[2], []).append(lane)
        return self._progress[lane]

    def _user_lane_progress(self, account: UserAccount) -> list[_Line]:
        return [self._progress[lane] for lane in self._user_lanes.get(account, ())]

    def _drop_idle_lanes(self) -> None:
        """Drop lanes and users without recently bound pods. A lane with silent pods stays."""
        now = self._now
        self._progress = {
            lane: each
            for lane, each in self._progress.items()
            if each.silent or each.bound_rate.count(now)
        }
        self._user_lanes.clear()
        for lane in self._progress:
            if lane[2] is not None:
                self._user_lanes.setdefault(lane[2], []).append(lane)
        self._bound_by_user = {
            who: rate for who, rate in self._bound_by_user.items() if rate.count(now)
        }
        self._most = 2 * len(self._progress) + MOST

    def _remove_silent(self, known: UnboundPod) -> None:
        """Remove a pod from the silent pods."""
        line = self._progress.get(known.lane)
        if line is not None:
            line.silent.pop(known.tracked.pod.uid, None)
            line.observed.pop(known.tracked.pod.uid, None)

    def _start_timer(self, known: UnboundPod) -> None:
        timer = self._timers.setdefault(known.timer_key, _Timer())
        timer.elapsed_at_start.setdefault(known.tracked.pod.uid, timer.elapsed)

    def _stop_timer(self, known: UnboundPod) -> None:
        timer = self._timers.get(known.timer_key)
        if timer is not None:
            timer.elapsed_at_start.pop(known.tracked.pod.uid, None)

    def _lane_stalled_since(self, lane: Lane) -> Millis | None:
        line = self._progress.get(lane)
        since = line.stalled_since() if line is not None else None
        return since if self._is_past_stall_limit(since) else None

    def _is_past_stall_limit(self, since: Millis | None) -> bool:
        return since is not None and since + STALL_MS <= self._now

    def _timer_stops_at(self, clock: Clock) -> int:
        """Return when a time-out clock stops if no other event happens.

        It stops if binding stalls in its pool, or in another pool while no pool makes progress.
        """
        pool, scheduler = clock
        spoke = self._scheduler_acted_at.get(scheduler)
        if spoke is None:
            return 0
        found = [1 << 62]
        for (where, whose, account), line in self._progress.items():
            since = line.silent_since() if whose == scheduler else None
            if since is None or (account is not None and not scheduler):
                continue
            found.append(since + STALL_MS if where == pool else max(since, spoke) + STALL_MS)
        return min(found)
