"""Reclaims that wait for a notice, which some of their victims want.

The victims count as being evicted meanwhile, and the freed capacity is reserved. The end of a
notice is in the pod, so the next leader continues it. The victims are checked again after the
notice, and evicted as one set or not at all.
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
    PodRef,
    ReclaimCause,
    WithdrawReclaimNotice,
)
from app.core.lifecycle.pod_record import PodRecord
from app.core.lifecycle.pod_registry import PodRegistry
from app.core.lifecycle.pod_state import PodState
from app.core.model import Millis, PoolName, Uid
from app.core.policy import Mode, Reclaim, WithinQueue
from app.core.scheduling.reclaim import Reclaimer
from app.core.scheduling.reclaim_followers import ReclaimFollowers, most_permitted
from app.core.scheduling.reservation import Reservation, Reservations
from app.core.scheduling.victims import ReclaimCheck, Victim, losing_tenants

REPEAT_MS = 10_000
"""A notice that is not observed in the pod is given again after this time."""

MOST_TRIES = 6
"""A pod that never shows its notice is evicted after this number of tries. The API server may
refuse every change of a very large object."""

UNFIT_MS = 60_000
"""Time after a notice for which a reclaim waits for missing capacity, such as a node that is not
ready. Then it is withdrawn, and other victims are sought."""

STALE_MS = 60_000
"""A notice that ended this long ago without an eviction is void."""

SECOND_MS = 1000

WITHDRAWN_MESSAGE = "the reclaim is withdrawn; this pod stays"


@dataclass(slots=True, eq=False)
class _NoticedReclaim:
    """One reclaim. `repeat_at` is when a notice that was not observed is given again.

    `given`: for each pod, the ends of its notices so far, also of one by an earlier leader.
    `first_owner`: the first owner of its reservation, which identifies it.
    """

    first_owner: Uid | None
    victims: tuple[Victim, ...]
    orders: tuple[EvictForReclaim, ...]
    ends_at: Millis
    repeat_at: dict[Uid, Millis] = field(default_factory=dict)
    given: dict[Uid, list[Millis]] = field(default_factory=dict)


class EvictionNotices:
    """The reclaims that wait, at most one for each pool, and the pods with a notice."""

    def __init__(
        self,
        registry: PodRegistry,
        reservations: Reservations,
        reclaimer: Reclaimer,
        followers: ReclaimFollowers,
    ) -> None:
        self._registry = registry
        self._reservations = reservations
        self._reclaimer = reclaimer
        self._followers = followers
        self._reclaims: dict[PoolName, _NoticedReclaim] = {}
        self._noticed: dict[Uid, PodRecord] = {}
        """Pods that carry a notice, as observed."""
        self._withdrawn: dict[Uid, Millis] = {}
        """Pods that stay, and when to remove their notice again."""
        self._effects: list[Effect] = []

    def observe_pod(self, tracked: PodRecord) -> None:
        """Process an observation of a released pod."""
        uid = tracked.pod.uid
        if tracked.pod.reclaim_terms.notice_ends_at is not None:
            self._noticed[uid] = tracked
        elif self._noticed.pop(uid, None) is not None:
            self._withdrawn.pop(uid, None)

    def forget_pod(self, uid: Uid) -> None:
        """Remove a finished or deleted pod."""
        self._noticed.pop(uid, None)
        self._withdrawn.pop(uid, None)

    def end_term(self) -> None:
        """End a leader term. The pods keep their notices for the next leader."""
        self._reclaims.clear()
        self._withdrawn.clear()
        self._effects.clear()

    def start_reclaim(
        self,
        reservation: Reservation,
        victims: Sequence[Victim],
        orders: Sequence[EvictForReclaim],
    ) -> list[Effect]:
        """Start a reclaim. Return its evictions, or the notices if any victim wants one."""
        now = self._now
        wanting = [t for victim in victims for t in victim.pods if self._notice_length(t)]
        if not wanting:
            return list(orders)
        # A notice that is being withdrawn does not count: the pod is about to lose it.
        fresh = [
            t for t in wanting if not self._had_valid_notice(t, now) or t.pod.uid in self._withdrawn
        ]
        kept = {
            t.pod.uid: ends
            for t in wanting
            if t not in fresh and (ends := t.pod.reclaim_terms.notice_ends_at) is not None
        }
        found = _NoticedReclaim(
            reservation.first_owner,
            tuple(victims),
            tuple(orders),
            max(*kept.values(), *map(self._notice_end, fresh), now),
            given={uid: [ends] for uid, ends in kept.items()},
        )
        self._reclaims[reservation.pool] = found
        reservation.active_since = found.ends_at  # a victim must be gone some time after its notice
        for tracked in fresh:
            self._give_notice(found, tracked)
        return self.drain_effects()

    def due_actions(self) -> list[Effect]:
        """Return the evictions that are due, and notices to give again or to withdraw.

        Call it at the start of a cycle.
        """
        self.withdraw_ended_reclaims()
        for pool, waiting in list(self._reclaims.items()):
            reservation = self._reservations.exclusive[pool]
            is_due = self._is_due(waiting)
            reservation.active_since = waiting.ends_at  # a notice that is given again ends later
            if is_due:
                self._recheck_reclaim(pool, waiting, reservation)
        self._clear_void_notices()
        return self.drain_effects()

    def withdraw_ended_reclaims(self) -> None:
        """Withdraw the reclaims without a reservation, and all if reclaim is off.

        Call it before another reclaim may start in their pools, and after reservations were
        dropped.
        """
        for pool, waiting in list(self._reclaims.items()):
            reservation = self._reservations.exclusive.get(pool)
            if reservation is None or reservation.first_owner != waiting.first_owner:
                self._withdraw_reclaim(pool)
            elif self._is_reclaim_off():
                self._give_up(pool)

    def due(self) -> Millis | None:
        """Return the next time at which `due_actions` has work without a new event."""
        ends = [r.ends_at for r in self._reclaims.values()]
        times = [at for end in ends for at in (end, Millis(end + UNFIT_MS)) if at > self._now]
        times += [at for r in self._reclaims.values() for at in r.repeat_at.values()]
        removals = [self._removal_time(t) for t in self._noticed.values() if not t.eviction_reason]
        # Only a leader removes notices. In other processes a past time would hide later timers.
        times += [at for at in removals if at > self._now]
        return min(times, default=None)

    def withdraw_notice(self, uid: Uid) -> None:
        """Remove the notice of a pod that stays, if it has one."""
        tracked = self._noticed.get(uid)
        if tracked is not None and uid not in self._withdrawn:
            self._effects.append(
                EmitEvent(tracked.ref, EventReason.RECLAIM_NOTICE, WITHDRAWN_MESSAGE)
            )
            self._remove_notice(tracked)

    def drain_effects(self) -> list[Effect]:
        """Return, once, the effects so far."""
        effects, self._effects = self._effects, []
        return effects

    @property
    def _now(self) -> Millis:
        return self._registry.usage.now

    def _is_reclaim_off(self) -> bool:
        policy = self._registry.usage.policy
        off = policy.reclaim is Reclaim.OFF and policy.within_queue is WithinQueue.NEVER
        return off or policy.mode is Mode.OBSERVE

    def _notice_length(self, tracked: PodRecord) -> int:
        """Return the notice of a pod in milliseconds, as far as the Policy allows it."""
        most = self._registry.usage.policy.max_reclaim_notice
        return min(tracked.pod.reclaim_terms.notice, most)

    def _had_valid_notice(self, tracked: PodRecord, at: Millis) -> bool:
        """Return whether a pod carries a notice that was valid at a time.

        Its user may have written a later end than any notice, before Fairgate guarded the pod.
        """
        ends = tracked.pod.reclaim_terms.notice_ends_at
        longest = self._now + self._registry.usage.policy.max_reclaim_notice + STALE_MS
        return ends is not None and at - STALE_MS < ends <= longest

    def _notice_end(self, tracked: PodRecord) -> Millis:
        """Return the end of a notice that starts now, in whole seconds."""
        ends = self._now + self._notice_length(tracked)
        return Millis(-(-ends // SECOND_MS) * SECOND_MS)

    def _give_notice(self, waiting: _NoticedReclaim, tracked: PodRecord) -> None:
        """Give a pod the notice of its reclaim. All victims are evicted at the same time."""
        uid = tracked.pod.uid
        self._withdrawn.pop(uid, None)
        waiting.repeat_at[uid] = Millis(self._now + REPEAT_MS)
        waiting.given.setdefault(uid, []).append(waiting.ends_at)
        why = tracked.eviction_reason
        seconds = max(0, waiting.ends_at - self._now) // SECOND_MS
        text = f"will be evicted in {seconds} s: {why}; save your work, and end the pod earlier"
        self._effects += [
            GiveReclaimNotice(
                tracked.ref, waiting.ends_at, why, tracked.pod.reclaim_terms.has_responders
            ),
            EmitEvent(tracked.ref, EventReason.RECLAIM_NOTICE, text),
        ]

    def _is_due(self, waiting: _NoticedReclaim) -> bool:
        """Return whether every remaining notice is over. Give notices again that got lost."""
        wanting = [t for t in self._remaining_pods(waiting.victims) if self._notice_length(t)]
        unheard = [t for t in wanting if self._misses_notice(waiting, t)]
        next_try = Millis(self._now + REPEAT_MS)
        waiting.repeat_at = {t.pod.uid: waiting.repeat_at.get(t.pod.uid, next_try) for t in unheard}
        for tracked in unheard:
            if waiting.repeat_at[tracked.pod.uid] > self._now:
                continue
            if len(waiting.given[tracked.pod.uid]) >= MOST_TRIES:
                del waiting.repeat_at[tracked.pod.uid]
            else:
                waiting.ends_at = max(waiting.ends_at, self._notice_end(tracked))
                self._give_notice(waiting, tracked)
        return not wanting or (not waiting.repeat_at and waiting.ends_at <= self._now)

    def _misses_notice(self, waiting: _NoticedReclaim, tracked: PodRecord) -> bool:
        """Return whether a pod carries none of the notices that this reclaim gave it.

        The notice of an earlier reclaim may be withdrawn at this moment. After `MOST_TRIES` none is
        expected any more.
        """
        uid, given = tracked.pod.uid, waiting.given.get(tracked.pod.uid, ())
        if not given or (len(given) >= MOST_TRIES and uid not in waiting.repeat_at):
            return False
        return tracked.pod.reclaim_terms.notice_ends_at not in given

    def _recheck_reclaim(
        self, pool: PoolName, waiting: _NoticedReclaim, reservation: Reservation
    ) -> None:
        """Check a reclaim again after its notice. Order its evictions, or withdraw it.

        It goes on for as many workloads as are still permitted, fit, and are next in the fair
        order; for at most one while the scheduler binds no pods. If the capacity does not suffice
        for one, for example because a node is not ready, it waits for `UNFIT_MS`.
        """
        reservation = self._reservations.update_workloads(reservation, self._registry.find_workload)
        workload = self._registry.find_workload(reservation.owner.uid)
        there = [v for v in map(self._present_victim, waiting.victims) if v is not None]
        if workload is None or workload.leaf is None or workload.equivalence_class is None:
            return
        leaf, shape, owner = workload.leaf, workload.equivalence_class, reservation.owner
        checks: dict[int, ReclaimCheck] = {}

        def succeeds_for(number: int) -> bool:
            together = shape if number == 1 else shape.copies(number)
            found = self._reclaimer.recheck_victims(leaf, owner, together, pool, there)
            self._registry.usage.tree.update_order()
            checks[number] = found
            return found.is_permitted and found.fits

        self._registry.usage.tree.update_order()  # the events of this cycle may have changed it
        is_stalled = self._registry.binding.stalled_since(pool) is not None
        behind = 0 if is_stalled else len(reservation.workloads) - 1
        most = 1 + self._followers.count_next(leaf, shape, pool, behind)
        number = most_permitted(most, succeeds_for)
        if number:
            if number < len(reservation.workloads):
                kept = reservation.workloads[:number]
                reservation = self._reservations.reduce_to(reservation, kept) or reservation
            del self._reclaims[pool]
            beneficiary = workload.pods_to_release[0].ref
            self._evict_needed(waiting, reservation, checks[number], beneficiary)
        elif not checks[1].is_permitted or self._now >= waiting.ends_at + UNFIT_MS:
            self._give_up(pool)

    def _give_up(self, pool: PoolName) -> None:
        del self._reservations.exclusive[pool]
        self._withdraw_reclaim(pool)

    def _evict_needed(
        self,
        waiting: _NoticedReclaim,
        reservation: Reservation,
        found: ReclaimCheck,
        beneficiary: PodRef,
    ) -> None:
        """Order the evictions that are still needed. `beneficiary`: what starts first now."""
        reservation.losing_tenants = losing_tenants(found.needed)
        to_evict = {
            tracked.pod.uid: (victim.cause, shares)
            for victim, shares in zip(found.needed, found.weighted_shares, strict=True)
            for tracked in victim.pods
        }
        for tracked in self._remaining_pods(waiting.victims):
            if tracked.pod.uid not in to_evict:
                tracked.eviction_reason = ""
                reservation.victims.discard(tracked.pod.uid)
                self.withdraw_notice(tracked.pod.uid)
        for order in waiting.orders:
            if order.ref.uid in to_evict:
                cause, shares = to_evict[order.ref.uid]
                self._effects.append(
                    replace(
                        order,
                        beneficiary=beneficiary,
                        cause=cause,
                        weighted_shares=shares,
                        batch_size=len(to_evict),
                        overrides=order.overrides and cause is ReclaimCause.GUARANTEE,
                    )
                )

    def _withdraw_reclaim(self, pool: PoolName) -> None:
        """Withdraw a reclaim. Its victims stay. A notice is removed even if it arrives later."""
        waiting = self._reclaims.pop(pool)
        for tracked in self._remaining_pods(waiting.victims):
            uid = tracked.pod.uid
            tracked.eviction_reason = ""
            self.withdraw_notice(uid)
            if uid in waiting.given and uid not in self._noticed:
                self._withdrawn[uid] = self._now

    def _clear_void_notices(self) -> None:
        for tracked in self._noticed.values():
            if not tracked.eviction_reason and self._removal_time(tracked) <= self._now:
                self._remove_notice(tracked)

    def _removal_time(self, tracked: PodRecord) -> Millis:
        """Return when to remove, perhaps again, the notice of a pod that is not to be evicted."""
        void = (tracked.pod.reclaim_terms.notice_ends_at or 0) + STALE_MS
        return self._withdrawn.get(tracked.pod.uid, Millis(void))

    def _remove_notice(self, tracked: PodRecord) -> None:
        self._withdrawn[tracked.pod.uid] = Millis(self._now + REPEAT_MS)
        self._effects.append(
            WithdrawReclaimNotice(tracked.ref, tracked.pod.reclaim_terms.has_responders)
        )

    def _remaining_pods(self, victims: Iterable[Victim]) -> Iterator[PodRecord]:
        """Yield the pods of victims without those that ended, or will end soon."""
        return (t for victim in victims for t in victim.pods if self._still_uses_capacity(t))

    def _present_victim(self, victim: Victim) -> Victim | None:
        """Return a victim as it is now; None if it ended, or no tenant has it any more.

        A change of a Tenant may have replaced its user in the share tree during the notice.
        """
        left = tuple(t for t in victim.pods if self._still_uses_capacity(t))
        leaf = left[0].leaf if left else None
        return None if leaf is None else replace(victim, leaf=leaf, pods=left)

    def _still_uses_capacity(self, tracked: PodRecord) -> bool:
        known = self._registry.pods.get(tracked.pod.uid)
        is_used = (
            known is tracked and tracked.state is PodState.USING and tracked.allocation is not None
        )
        return is_used and self._reclaimer.candidates.needs_eviction(tracked)
