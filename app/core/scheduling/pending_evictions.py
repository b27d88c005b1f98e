"""Pending evictions: which are still needed, and the events for the owners of the pods.

Other modules select the pods. Events contain no data of another tenant except its name.
"""

from __future__ import annotations

from collections.abc import Iterable

from app.core.effects import Effect, EmitEvent, EventReason, EvictForReclaim, EvictPod, ReclaimCause
from app.core.lifecycle.lost_work import say_loss
from app.core.lifecycle.pod_record import PodRecord
from app.core.lifecycle.pod_registry import PodRegistry
from app.core.model import Millis, Uid
from app.core.scheduling.blocked_evictions import PATIENCE_MS, SPARED_MS, BlockedEvictions
from app.core.scheduling.eviction_notices import EvictionNotices
from app.core.scheduling.reclaim import Reclaimer
from app.core.scheduling.reclaim_cooldown import ReclaimCooldowns, ReclaimRecord
from app.core.scheduling.reservation import Reservations

STUCK_MS = 600_000
"""Capacity must be freed within this time, else other victims are sought. Some pods never end."""


class PendingEvictions:
    """Pods to evict. `_asked` are unanswered requests, `_going` are the accepted evictions."""

    def __init__(
        self,
        registry: PodRegistry,
        reservations: Reservations,
        reclaimer: Reclaimer,
        cooldowns: ReclaimCooldowns,
    ) -> None:
        self._registry = registry
        self._reservations = reservations
        self._reclaimer = reclaimer
        self._cooldowns = cooldowns
        self.blocked = BlockedEvictions(registry)
        self.notices = EvictionNotices(registry, reservations, reclaimer)
        self._asked: dict[Uid, EvictForReclaim | EvictPod] = {}
        self._going: set[Uid] = set()
        self._bound: set[Uid] = set()
        """Pods whose eviction is not cancelled, because another victim of the reclaim has already
        been evicted. A reclaim may only be carried out as a whole."""

    def ordered(self, effects: Iterable[Effect]) -> list[Effect]:
        """Record the evictions among these effects. Return the effects to carry out.

        A pod that is evicted for a reclaim needs no `EvictPod` in addition.
        """
        kept: list[Effect] = []
        for effect in effects:
            if isinstance(effect, EvictForReclaim | EvictPod):
                uid = effect.ref.uid
                if isinstance(effect, EvictPod) and self._makes_room(uid):
                    continue
                self._asked[uid] = effect
                self._bound.discard(uid)
                if isinstance(effect, EvictPod) and uid in self._registry.pods:
                    self._registry.pods[uid].evicted = effect.why
            kept.append(effect)
        return kept

    def withdraw(self, uids: Iterable[Uid], cause: str) -> None:
        """Cancel the `EvictPod` requests with this cause. Some pods may already be gone."""
        for uid in uids:
            order = self._asked.get(uid)
            if isinstance(order, EvictPod) and order.cause == cause:
                self._withdraw(uid)

    def wanted(self, uid: Uid) -> bool:
        """Return whether a pod must still be evicted. Call it right before the eviction."""
        known = self._registry.pods.get(uid)
        return known is not None and bool(known.evicted)

    def goes(self, uid: Uid) -> bool:
        """Return whether the eviction of a pod was accepted."""
        return uid in self._going

    def accepted(self, uid: Uid) -> list[Effect]:
        """Process an accepted eviction. Return the event for the owner of the pod."""
        order, known = self._asked.pop(uid, None), self._registry.pods.get(uid)
        if known is not None:
            self._going.add(uid)
        if order is None or known is None:
            return []
        if isinstance(order, EvictForReclaim):
            self.blocked.evicted(order)
        self._bind(order)
        self._sign(order)
        return [self._say(order, known)]

    def refused(self, uid: Uid) -> list[Effect]:
        """Process a refused eviction: all victims of the reclaim stay. Its beneficiary waits."""
        order, known = self._asked.pop(uid, None), self._registry.pods.get(uid)
        self._going.discard(uid)
        if known is None:
            return []
        known.evicted = ""
        self.notices.withdraw(uid)
        reservation = self._reservations.evicting(uid)
        if reservation is not None:
            del self._reservations.strict[reservation.pool]
        if isinstance(order, EvictPod):
            return []  # its requester repeats the request soon
        for other in self._with(order) if order is not None else ():
            self._bound.discard(other)
            self._withdraw(other)
        if order is None:
            self._reclaimer.spare(uid, Millis(self._registry.usage.now + SPARED_MS))
            return []
        self._reclaimer.spare(uid, self.blocked.refuse(order, known))
        if not self.blocked.is_new(order):
            return []
        override = (
            order.cause is ReclaimCause.GUARANTEE and self._registry.usage.policy.overrides_budgets
        )
        return [EmitEvent(order.beneficiary, EventReason.WAITING, _put_off(order, override))]

    def gone(self, tracked: PodRecord) -> list[Effect]:
        """Remove a finished or deleted pod. Return the event for its owner."""
        uid = tracked.pod.uid
        order = self._asked.pop(uid, None)
        self._going.discard(uid)
        self._bound.discard(uid)
        reservation = self._reservations.evicting(uid)
        if reservation is not None:
            reservation.victims.discard(uid)
        self.blocked.gone(uid)
        self.notices.gone(uid)
        if order is None or not tracked.evicted:
            return []
        self._bind(order)
        self._sign(order)
        return [self._say(order, tracked)]

    def review(self) -> None:
        """Cancel evictions without a waiting beneficiary, unless another victim is already evicted.

        Call it at the end of a cycle.
        """
        now = self._registry.usage.now
        self.blocked.review()
        for pool, reservation in list(self._reservations.strict.items()):
            if reservation.victims and now - reservation.since >= STUCK_MS:
                del self._reservations.strict[pool]
        for uid, order in self._asked.items():
            due = uid in self._bound or self._reservations.evicting(uid) is not None
            if isinstance(order, EvictForReclaim) and not due:
                self._withdraw(uid)

    def due(self) -> Millis | None:
        """Return the next time at which `review` has work without a new event."""
        since = [r.since for r in self._reservations.strict.values() if r.victims]
        stuck = Millis(min(since) + STUCK_MS) if since else None
        return min((at for at in (stuck, self.notices.due()) if at is not None), default=None)

    def end(self) -> None:
        """End a leader term: the outcome of pending requests is unknown."""
        self._asked.clear()
        self._going.clear()
        self._bound.clear()
        self.blocked.end()
        self.notices.end()
        for tracked in self._registry.pods.values():
            tracked.evicted = ""

    def _with(self, order: EvictForReclaim | EvictPod) -> list[Uid]:
        """Return the unanswered victims of the same reclaim."""
        if not isinstance(order, EvictForReclaim):
            return []
        whose = order.beneficiary.uid
        others = self._asked.items()
        return [
            u for u, o in others if isinstance(o, EvictForReclaim) and o.beneficiary.uid == whose
        ]

    def _bind(self, order: EvictForReclaim | EvictPod) -> None:
        """Evict the other victims of a reclaim in any case, because one was evicted.

        Victims with a cancelled eviction are exempt: they belong to an earlier reclaim.
        """
        self._bound.update(filter(self.wanted, self._with(order)))

    def _makes_room(self, uid: Uid) -> bool:
        """Return whether a pod is to be evicted for a reclaim."""
        return isinstance(self._asked.get(uid), EvictForReclaim) and self.wanted(uid)

    def _withdraw(self, uid: Uid) -> None:
        """Cancel an eviction. The request stays stored, because it may be carried out already."""
        known = self._registry.pods.get(uid)
        if known is not None:
            known.evicted = ""
            self.notices.withdraw(uid)

    def _say(self, order: EvictForReclaim | EvictPod, tracked: PodRecord) -> EmitEvent:
        loss = say_loss(tracked, self._registry.usage.now)
        text = explain(order)
        return EmitEvent(tracked.ref, EventReason.RECLAIMED, f"{text}.{loss}" if loss else text)

    def _sign(self, order: EvictForReclaim | EvictPod) -> None:
        if isinstance(order, EvictForReclaim) and order.cause is not ReclaimCause.PRIORITY:
            self._cooldowns.sign(taking_of(order), self._registry.usage.now)


def taking_of(order: EvictForReclaim) -> ReclaimRecord:
    """Return the pool, the losing tenant and the winning tenant of a reclaim."""
    return ReclaimRecord(order.pool, order.tenant, order.beneficiary_tenant)


def explain(order: EvictForReclaim | EvictPod) -> str:
    """Return for its owner why a pod is evicted, and how to prevent such an eviction."""
    if isinstance(order, EvictPod):
        return order.why
    if order.cause is ReclaimCause.PRIORITY:
        return (
            "makes room for work of the same user that has a higher priority, as the Policy allows "
            "(withinQueue: LowerPriority); a higher priority of its own would have prevented it"
        )
    theirs, ours = (f"{share:.3g}" for share in order.compared.shares)
    their_name, our_name = order.compared.names
    against = " Its disruption budget does not prevent that (disruptionBudgets: Override)."
    return (
        f"makes room for work of tenant {order.beneficiary_tenant} in pool {order.pool}: "
        f"{order.cause.explanation}. Once done, {their_name} borrows a weighted share of "
        f"{theirs} of the cluster, {our_name} one of {ours}. It would have stayed within a "
        f"guarantee of tenant {order.tenant} in that pool, and of each tenant above it; with "
        'fairgate.io/preemptible: "false" work starts only within that, and no reclaim evicts it'
        f"{'.' + against if order.overrides else ''}"
    )


def _put_off(order: EvictForReclaim, override: bool) -> str:
    then = f"sought elsewhere, or again in {SPARED_MS // 1000} s"
    if override:
        then = f"the Policy overrides a budget after {PATIENCE_MS // 1000} s"
    return (
        f"room is to be made for it in pool {order.pool}, but work of tenant {order.tenant} cannot "
        f"be evicted now: a disruption budget, or the API server, forbids it; {then}"
    )
