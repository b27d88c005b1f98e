"""Pending evictions: which are still needed, and the events for the owners of the pods.

Other modules select the pods. Events contain no data of another tenant except its name.
"""

from __future__ import annotations

from collections.abc import Iterable

from app.core.effects import Effect, EmitEvent, EventReason, EvictForReclaim, EvictPod, ReclaimCause
from app.core.lifecycle.lost_work import describe_loss
from app.core.lifecycle.pod_record import PodRecord
from app.core.lifecycle.pod_registry import PodRegistry
from app.core.model import Millis, Uid
from app.core.scheduling.blocked_evictions import EXCLUDED_MS, OVERRIDE_DELAY_MS, BlockedEvictions
from app.core.scheduling.eviction_notices import EvictionNotices
from app.core.scheduling.reclaim import Reclaimer
from app.core.scheduling.reclaim_cooldown import ReclaimCooldowns, ReclaimRecord
from app.core.scheduling.reclaim_followers import ReclaimFollowers
from app.core.scheduling.reservation import Reservation, Reservations
from app.core.scheduling.victim_candidates import SOON_MS

STUCK_MS = 600_000
"""Capacity must be freed within this time, else other victims are sought. Some pods never end."""


class PendingEvictions:
    """Pods to evict. `_requested`: unanswered requests. `_accepted`: accepted evictions.

    `_cancelled`: pods whose request was cancelled, but not answered: it may be under way.
    """

    def __init__(
        self,
        registry: PodRegistry,
        reservations: Reservations,
        reclaimer: Reclaimer,
        cooldowns: ReclaimCooldowns,
        followers: ReclaimFollowers,
    ) -> None:
        self._registry = registry
        self._followers = followers
        self._reservations = reservations
        self._candidates = reclaimer.candidates
        self._cooldowns = cooldowns
        self.blocked = BlockedEvictions(registry)
        self.notices = EvictionNotices(registry, reservations, reclaimer, followers)
        self._requested: dict[Uid, EvictForReclaim | EvictPod] = {}
        self._accepted: set[Uid] = set()
        self._cancelled: set[Uid] = set()
        self._committed: set[Uid] = set()
        """Pods whose eviction is not cancelled, because another victim of the reclaim has already
        been evicted. A reclaim may only be carried out as a whole."""

    def add(self, effects: Iterable[Effect]) -> list[Effect]:
        """Record the evictions among these effects. Return the effects to carry out.

        A pod that is evicted for a reclaim needs no `EvictPod` in addition.
        """
        kept: list[Effect] = []
        for effect in effects:
            if isinstance(effect, EvictForReclaim | EvictPod):
                uid = effect.ref.uid
                if isinstance(effect, EvictPod) and self._is_evicted_for_reclaim(uid):
                    continue
                self._requested[uid] = effect
                self._committed.discard(uid)
                self._cancelled.discard(uid)
                if isinstance(effect, EvictPod) and (known := self._registry.pods.get(uid)):
                    known.eviction_reason = known.eviction_reason or effect.why
            kept.append(effect)
        return kept

    def cancel(self, uids: Iterable[Uid], cause: str) -> None:
        """Cancel the `EvictPod` requests with this cause. Some pods may already be gone.

        If a pod is also the victim of a reclaim, its eviction for the reclaim stays due.
        """
        for uid in uids:
            order = self._requested.get(uid)
            if isinstance(order, EvictPod) and order.cause == cause:
                if self._reservations.reservation_of_victim(uid) is None:
                    self._cancel(uid)
                else:
                    self._cancelled.add(uid)

    def is_still_needed(self, uid: Uid) -> bool:
        """Return whether a pod must still be evicted. Call it right before the eviction.

        A pod with a cancelled request may have the notice of another reclaim meanwhile.
        """
        known = self._registry.pods.get(uid)
        return known is not None and bool(known.eviction_reason) and uid not in self._cancelled

    def is_accepted(self, uid: Uid) -> bool:
        """Return whether the eviction of a pod was accepted."""
        return uid in self._accepted

    def record_accepted(self, uid: Uid) -> list[Effect]:
        """Process an accepted eviction. Return the event for the owner of the pod."""
        order, known = self._requested.pop(uid, None), self._registry.pods.get(uid)
        self._cancelled.discard(uid)
        if known is not None:
            self._accepted.add(uid)
        if order is None or known is None:
            return []
        if isinstance(order, EvictForReclaim):
            self.blocked.record_accepted(order)
        self._commit_reclaim(order)
        self._start_cooldown(order)
        return [self._eviction_event(order, known)]

    def record_refused(self, uid: Uid) -> list[Effect]:
        """Process a refused eviction: all victims of the reclaim stay. Its beneficiary waits."""
        order, known = self._requested.pop(uid, None), self._registry.pods.get(uid)
        self._accepted.discard(uid)
        self._cancelled.discard(uid)
        if known is None:
            return []
        known.eviction_reason = ""
        self.notices.withdraw_notice(uid)
        excluded_until = Millis(self._registry.usage.now + EXCLUDED_MS)
        reservation = self._reservations.reservation_of_victim(uid)
        if reservation is not None:
            del self._reservations.exclusive[reservation.pool]
            self._followers.single_until[reservation.pool] = excluded_until
        if isinstance(order, EvictPod):  # its requester repeats the request soon
            self._candidates.exclude_until(uid, excluded_until)
            return []
        for other in self._same_reclaim(order) if order is not None else ():
            self._committed.discard(other)
            self._cancel(other)
        if order is None:
            self._candidates.exclude_until(uid, excluded_until)
            return []
        self._candidates.exclude_until(uid, self.blocked.record_refused(order, known))
        if not self.blocked.record_first_report(order):
            return []
        override = (
            order.cause is ReclaimCause.GUARANTEE and self._registry.usage.policy.overrides_budgets
        )
        return [
            EmitEvent(
                order.beneficiary, EventReason.WAITING, _blocked_eviction_message(order, override)
            )
        ]

    def record_pod_gone(self, tracked: PodRecord) -> list[Effect]:
        """Remove a finished or deleted pod. Return the event for its owner."""
        uid = tracked.pod.uid
        order = self._requested.pop(uid, None)
        self._accepted.discard(uid)
        self._cancelled.discard(uid)
        self._committed.discard(uid)
        reservation = self._reservations.reservation_of_victim(uid)
        if reservation is not None:
            reservation.victims.discard(uid)
        self.blocked.forget_pod(uid)
        self.notices.forget_pod(uid)
        if order is None or not tracked.eviction_reason:
            return []
        self._commit_reclaim(order)
        self._start_cooldown(order)
        return [self._eviction_event(order, tracked)]

    def cancel_unneeded(self) -> None:
        """Cancel evictions without a waiting beneficiary, unless another victim is already evicted.

        Call it at the end of a cycle.
        """
        now = self._registry.usage.now
        self.blocked.drop_outdated()
        for pool, reservation in list(self._reservations.exclusive.items()):
            if reservation.victims and now - reservation.active_since >= _longest_wait(reservation):
                del self._reservations.exclusive[pool]
        for uid, order in self._requested.items():
            due = (
                uid in self._committed or self._reservations.reservation_of_victim(uid) is not None
            )
            if isinstance(order, EvictForReclaim) and not due:
                self._cancel(uid)

    def due(self) -> Millis | None:
        """Return the next time at which `cancel_unneeded` has work without a new event."""
        held = self._reservations.exclusive.values()
        ends = [Millis(r.active_since + _longest_wait(r)) for r in held if r.victims]
        stuck = min(ends, default=None)
        return min((at for at in (stuck, self.notices.due()) if at is not None), default=None)

    def end_term(self) -> None:
        """End a leader term: the outcome of pending requests is unknown."""
        self._requested.clear()
        self._accepted.clear()
        self._cancelled.clear()
        self._committed.clear()
        self.blocked.end_term()
        self.notices.end_term()
        for tracked in self._registry.pods.values():
            tracked.eviction_reason = ""

    def _same_reclaim(self, order: EvictForReclaim | EvictPod) -> list[Uid]:
        """Return the unanswered victims of the same reclaim."""
        if not isinstance(order, EvictForReclaim):
            return []
        whose = order.beneficiary.uid
        others = self._requested.items()
        return [
            u for u, o in others if isinstance(o, EvictForReclaim) and o.beneficiary.uid == whose
        ]

    def _commit_reclaim(self, order: EvictForReclaim | EvictPod) -> None:
        """Evict the other victims of a reclaim in any case, because one was evicted.

        Victims with a cancelled eviction are exempt: they belong to an earlier reclaim.
        """
        self._committed.update(filter(self.is_still_needed, self._same_reclaim(order)))

    def _is_evicted_for_reclaim(self, uid: Uid) -> bool:
        """Return whether a pod is to be evicted for a reclaim."""
        return isinstance(self._requested.get(uid), EvictForReclaim) and self.is_still_needed(uid)

    def _cancel(self, uid: Uid) -> None:
        """Cancel an eviction. The request stays stored, because it may be carried out already."""
        known = self._registry.pods.get(uid)
        if known is not None:
            self._cancelled.add(uid)
            known.eviction_reason = ""
            self.notices.withdraw_notice(uid)

    def _eviction_event(self, order: EvictForReclaim | EvictPod, tracked: PodRecord) -> EmitEvent:
        loss = describe_loss(tracked, self._registry.usage.now)
        text = explain_eviction(order)
        return EmitEvent(tracked.ref, EventReason.RECLAIMED, f"{text}.{loss}" if loss else text)

    def _start_cooldown(self, order: EvictForReclaim | EvictPod) -> None:
        if isinstance(order, EvictForReclaim) and order.cause is not ReclaimCause.PRIORITY:
            self._cooldowns.record_reclaim(reclaim_record_of(order), self._registry.usage.now)


def reclaim_record_of(order: EvictForReclaim) -> ReclaimRecord:
    """Return the pool, the losing tenant and the winning tenant of a reclaim."""
    return ReclaimRecord(order.pool, order.tenant, order.beneficiary_tenant)


def explain_eviction(order: EvictForReclaim | EvictPod) -> str:
    """Return for its owner why a pod is evicted, and how to prevent such an eviction."""
    if isinstance(order, EvictPod):
        return order.why
    if order.cause is ReclaimCause.PRIORITY:
        return (
            "makes room for work of the same user that has a higher priority, as the Policy allows "
            "(withinQueue: LowerPriority); a higher priority of its own would have prevented it"
        )
    theirs, ours = (f"{share:.3g}" for share in order.weighted_shares.shares)
    their_name, our_name = order.weighted_shares.names
    against = " Its disruption budget does not prevent that (disruptionBudgets: Override)."
    return (
        f"makes room for work of tenant {order.beneficiary_tenant} in pool {order.pool}: "
        f"{order.cause.explanation}. Once done, {their_name} borrows a weighted share of "
        f"{theirs} of the cluster, {our_name} one of {ours}. It would have stayed within a "
        f"guarantee of tenant {order.tenant} in that pool, and of each tenant above it; with "
        'fairgate.io/preemptible: "false" work starts only within that, and no reclaim evicts it'
        f"{'.' + against if order.overrides else ''}"
    )


def _blocked_eviction_message(order: EvictForReclaim, override: bool) -> str:
    then = f"sought elsewhere, or again in {EXCLUDED_MS // 1000} s"
    if override:
        then = f"the Policy overrides a budget after {OVERRIDE_DELAY_MS // 1000} s"
    return (
        f"room is to be made for it in pool {order.pool}, but work of tenant {order.tenant} cannot "
        f"be evicted now: a disruption budget, or the API server, forbids it; {then}"
    )


def _longest_wait(reservation: Reservation) -> int:
    """Return for how many milliseconds a reclaim waits for its victims to end."""
    return SOON_MS if reservation.only_awaits else STUCK_MS
