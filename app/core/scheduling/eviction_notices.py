"""Reclaims that wait for a notice, which some of their victims want.

The victims count as being evicted meanwhile, and the freed capacity is reserved. The end of a
notice is in the pod, so the next leader continues it. After the notice the victims are checked
again, and evicted as one set or not at all.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace

from app.core.effects import (
    Effect,
    EmitEvent,
    EventReason,
    EvictForReclaim,
    GiveReclaimNotice,
    WithdrawReclaimNotice,
)
from app.core.lifecycle.pod_record import PodRecord
from app.core.lifecycle.pod_registry import PodRegistry
from app.core.lifecycle.pod_state import PodState
from app.core.model import Millis, PoolName, Uid
from app.core.policy import Mode, Reclaim, WithinQueue
from app.core.scheduling.reclaim import Reclaimer
from app.core.scheduling.reservation import Reservation, Reservations
from app.core.scheduling.victims import Victim

REPEAT_MS = 10_000
"""A notice that is not observed in the pod is given again after this time."""

MOST_TRIES = 6
"""A pod that never shows its notice is evicted after this number of tries. The API server may
refuse every change of a very large object."""

STALE_MS = 60_000
"""A notice that ended this long ago without an eviction is void."""

SECOND_MS = 1000

STAYS = "the reclaim is withdrawn; this pod stays"


@dataclass(slots=True, eq=False)
class _NoticedReclaim:
    """One reclaim. `again` is when a notice that was not observed is given again.

    `tries`: how often each notice was given.
    """

    owner: Uid
    victims: tuple[Victim, ...]
    orders: tuple[EvictForReclaim, ...]
    begun: Millis
    ends: Millis
    again: dict[Uid, Millis] = field(default_factory=dict)
    tries: dict[Uid, int] = field(default_factory=dict)


class EvictionNotices:
    """The reclaims that wait, at most one for each pool, and the pods with a notice."""

    def __init__(
        self, registry: PodRegistry, reservations: Reservations, reclaimer: Reclaimer
    ) -> None:
        self._registry = registry
        self._reservations = reservations
        self._reclaimer = reclaimer
        self._reclaims: dict[PoolName, _NoticedReclaim] = {}
        self._noticed: dict[Uid, PodRecord] = {}
        """Pods that carry a notice, as observed."""
        self._withdrawn: dict[Uid, Millis] = {}
        """Pods that stay, and when to remove their notice again."""
        self._effects: list[Effect] = []

    def see(self, tracked: PodRecord) -> None:
        """Process an observation of a released pod."""
        uid = tracked.pod.uid
        if tracked.pod.reclaim.ends is not None:
            self._noticed[uid] = tracked
        elif self._noticed.pop(uid, None) is not None:
            self._withdrawn.pop(uid, None)

    def gone(self, uid: Uid) -> None:
        """Remove a finished or deleted pod."""
        self._noticed.pop(uid, None)
        self._withdrawn.pop(uid, None)

    def end(self) -> None:
        """End a leader term. The pods keep their notices for the next leader."""
        self._reclaims.clear()
        self._withdrawn.clear()
        self._effects.clear()

    def begin(
        self,
        reservation: Reservation,
        victims: Sequence[Victim],
        orders: Sequence[EvictForReclaim],
    ) -> list[Effect]:
        """Start a reclaim. Return its evictions, or the notices if any victim wants one."""
        now = self._now
        wanting = [t for victim in victims for t in victim.pods if self._notice(t)]
        if not wanting:
            return list(orders)
        # A notice that is being withdrawn does not count: the pod is about to lose it.
        fresh = [t for t in wanting if not self._is_told(t, now) or t.pod.uid in self._withdrawn]
        ends = [t.pod.reclaim.ends for t in wanting if t not in fresh] + list(map(self._end, fresh))
        found = _NoticedReclaim(
            reservation.owner.uid,
            tuple(victims),
            tuple(orders),
            now,
            max(each for each in ends if each is not None),
        )
        self._reclaims[reservation.pool] = found
        reservation.since = found.ends  # a victim must be gone some time after its notice
        for tracked in fresh:
            self._give(found, tracked)
        return self.take()

    def due_actions(self) -> list[Effect]:
        """Return the evictions that are due, and notices to give again or to withdraw.

        Call it at the start of a cycle.
        """
        for pool, waiting in list(self._reclaims.items()):
            reservation = self._reservations.strict.get(pool)
            if reservation is None or reservation.owner.uid != waiting.owner or self._is_off():
                self._drop(pool)
            elif self._is_due(waiting):
                self._act(pool, waiting, reservation)
        self._clear_void_notices()
        return self.take()

    def due(self) -> Millis | None:
        """Return the next time at which `due_actions` has work without a new event."""
        times = [r.ends for r in self._reclaims.values() if r.ends > self._now]
        times += [at for r in self._reclaims.values() for at in r.again.values()]
        return min(times, default=None)

    def withdraw(self, uid: Uid) -> None:
        """Remove the notice of a pod that stays, if it has one."""
        tracked = self._noticed.get(uid)
        if tracked is not None and uid not in self._withdrawn:
            self._effects.append(EmitEvent(tracked.ref, EventReason.RECLAIM_NOTICE, STAYS))
            self._remove(tracked)

    def take(self) -> list[Effect]:
        """Return, once, the effects so far."""
        effects, self._effects = self._effects, []
        return effects

    @property
    def _now(self) -> Millis:
        return self._registry.usage.now

    def _is_off(self) -> bool:
        policy = self._registry.usage.policy
        off = policy.reclaim is Reclaim.OFF and policy.within_queue is WithinQueue.NEVER
        return off or policy.mode is Mode.OBSERVE

    def _notice(self, tracked: PodRecord) -> int:
        """Return the notice of a pod in milliseconds, as far as the Policy allows it."""
        most = self._registry.usage.policy.max_reclaim_notice
        return min(tracked.pod.reclaim.notice, most)

    def _is_told(self, tracked: PodRecord, at: Millis) -> bool:
        """Return whether a pod carries a notice that was valid at a time.

        Its user may have written a later end than any notice, before Fairgate guarded the pod.
        """
        ends = tracked.pod.reclaim.ends
        longest = self._now + self._registry.usage.policy.max_reclaim_notice + STALE_MS
        return ends is not None and at - STALE_MS < ends <= longest

    def _end(self, tracked: PodRecord) -> Millis:
        """Return the end of a notice that starts now, in whole seconds."""
        ends = self._now + self._notice(tracked)
        return Millis(-(-ends // SECOND_MS) * SECOND_MS)

    def _give(self, waiting: _NoticedReclaim, tracked: PodRecord) -> None:
        """Give a pod the notice of its reclaim. All victims are evicted at the same time."""
        uid = tracked.pod.uid
        self._withdrawn.pop(uid, None)
        waiting.again[uid] = Millis(self._now + REPEAT_MS)
        waiting.tries[uid] = waiting.tries.get(uid, 0) + 1
        why = tracked.evicted
        seconds = max(0, waiting.ends - self._now) // SECOND_MS
        text = f"will be evicted in {seconds} s: {why}; save your work, and end the pod earlier"
        self._effects += [
            GiveReclaimNotice(tracked.ref, waiting.ends, why, tracked.pod.reclaim.responds),
            EmitEvent(tracked.ref, EventReason.RECLAIM_NOTICE, text),
        ]

    def _is_due(self, waiting: _NoticedReclaim) -> bool:
        """Return whether every remaining notice is over. Give notices again that got lost."""
        wanting = [t for t in self._living(waiting.victims) if self._notice(t)]
        for tracked in wanting:
            if self._is_told(tracked, waiting.begun):
                waiting.again.pop(tracked.pod.uid, None)
        unheard = [t for t in wanting if t.pod.uid in waiting.again]
        waiting.again = {t.pod.uid: waiting.again[t.pod.uid] for t in unheard}
        for tracked in unheard:
            if waiting.again[tracked.pod.uid] > self._now:
                continue
            if waiting.tries[tracked.pod.uid] >= MOST_TRIES:
                del waiting.again[tracked.pod.uid]
            else:
                waiting.ends = max(waiting.ends, self._end(tracked))
                self._give(waiting, tracked)
        return not wanting or (not waiting.again and waiting.ends <= self._now)

    def _act(self, pool: PoolName, waiting: _NoticedReclaim, reservation: Reservation) -> None:
        """Check a reclaim again after its notice. Order its evictions, or withdraw it."""
        workload = self._registry.workload(waiting.owner)
        there = [v for v in map(self._remaining, waiting.victims) if v.pods]
        if workload is None or workload.leaf is None or workload.shape is None:
            return
        queue_key = reservation.owner
        found = self._reclaimer.confirm(workload.leaf, queue_key, workload.shape, pool, there)
        self._registry.usage.tree.settle()
        if not found.is_permitted:
            del self._reservations.strict[pool]
            self._drop(pool)
        elif found.fits:
            del self._reclaims[pool]
            self._order(waiting, reservation, found.needed)

    def _order(
        self, waiting: _NoticedReclaim, reservation: Reservation, needed: Iterable[Victim]
    ) -> None:
        gone = {t.pod.uid for victim in needed for t in victim.pods}
        for tracked in self._living(waiting.victims):
            if tracked.pod.uid not in gone:
                tracked.evicted = ""
                reservation.victims.discard(tracked.pod.uid)
                self.withdraw(tracked.pod.uid)
        orders = [order for order in waiting.orders if order.ref.uid in gone]
        self._effects += [replace(order, together=len(orders)) for order in orders]

    def _drop(self, pool: PoolName) -> None:
        """Withdraw a reclaim. Its victims stay."""
        for tracked in self._living(self._reclaims.pop(pool).victims):
            tracked.evicted = ""
            self.withdraw(tracked.pod.uid)

    def _clear_void_notices(self) -> None:
        for uid, tracked in self._noticed.items():
            void = (tracked.pod.reclaim.ends or 0) + STALE_MS
            at = self._withdrawn.get(uid, void)
            if not tracked.evicted and at <= self._now:
                self._remove(tracked)

    def _remove(self, tracked: PodRecord) -> None:
        self._withdrawn[tracked.pod.uid] = Millis(self._now + REPEAT_MS)
        self._effects.append(WithdrawReclaimNotice(tracked.ref, tracked.pod.reclaim.responds))

    def _living(self, victims: Iterable[Victim]) -> Iterator[PodRecord]:
        return (t for victim in victims for t in self._remaining(victim).pods)

    def _remaining(self, victim: Victim) -> Victim:
        """Return a victim without its pods that ended, or are terminating."""
        return replace(victim, pods=tuple(t for t in victim.pods if self._is_there(t)))

    def _is_there(self, tracked: PodRecord) -> bool:
        known = self._registry.pods.get(tracked.pod.uid)
        is_used = (
            known is tracked and tracked.life is PodState.USING and tracked.allocation is not None
        )
        return is_used and not tracked.pod.terminating
