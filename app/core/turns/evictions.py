"""The evictions that were ordered, until the world has answered: which are still wanted, and what
their owners are told.

Whom to evict is decided elsewhere. Of other tenants nothing but the name is told.
"""

from __future__ import annotations

from collections.abc import Iterable

from app.core.effects import Cause, Effect, Evict, Expel, Notice, Tell
from app.core.model import Millis, Uid
from app.core.pods.roster import Roster
from app.core.pods.tracked import Tracked
from app.core.turns.reclaim import Reclaimer
from app.core.turns.reservation import Reservations
from app.core.turns.truces import Taking, Truces

SPARED_MS = 60_000
"""A pod whose eviction was refused is left alone for so long."""

STUCK_MS = 600_000
"""Room that has not come free by then is sought elsewhere: some pods never end."""


class Evictions:
    """Pods that are to go. `_asked` are the orders that nothing has answered yet, `_going` those
    whose eviction was accepted."""

    def __init__(
        self, roster: Roster, reservations: Reservations, reclaimer: Reclaimer, truces: Truces
    ) -> None:
        self._roster = roster
        self._reservations = reservations
        self._reclaimer = reclaimer
        self._truces = truces
        self._asked: dict[Uid, Evict | Expel] = {}
        self._going: set[Uid] = set()
        self._bound: set[Uid] = set()
        """Pods that go whatever comes: another of the same reclaim has gone already, and what it
        takes may be taken all together only."""

    def ordered(self, effects: Iterable[Effect]) -> list[Effect]:
        """These are asked for, some of them again. Return those that are to be carried out.

        Who makes room for others already need not go for its own sake too.
        """
        kept: list[Effect] = []
        for effect in effects:
            if isinstance(effect, Evict | Expel):
                uid = effect.ref.uid
                if isinstance(effect, Expel) and self._makes_room(uid):
                    continue
                self._asked[uid] = effect
                self._bound.discard(uid)
                if isinstance(effect, Expel) and uid in self._roster.pods:
                    self._roster.pods[uid].evicted = effect.why
            kept.append(effect)
        return kept

    def withdraw(self, uids: Iterable[Uid], cause: str) -> None:
        """Those need not go any more for this cause, of their own; some may be gone already."""
        for uid in uids:
            order = self._asked.get(uid)
            if isinstance(order, Expel) and order.cause == cause:
                self._withdraw(uid)

    def wanted(self, uid: Uid) -> bool:
        """Tell whether a pod is still to be evicted. Ask right before it is."""
        known = self._roster.pods.get(uid)
        return known is not None and bool(known.evicted)

    def goes(self, uid: Uid) -> bool:
        """Tell whether the eviction of a pod was accepted."""
        return uid in self._going

    def accepted(self, uid: Uid) -> list[Effect]:
        """A pod is on its way out: its owner is told why."""
        order, known = self._asked.pop(uid, None), self._roster.pods.get(uid)
        if known is not None:
            self._going.add(uid)
        if order is None or known is None:
            return []
        self._bind(order)
        self._sign(order)
        return [Tell(known.ref, Notice.RECLAIMED, explain(order))]

    def refused(self, uid: Uid) -> list[Effect]:
        """A pod stays, and so do all that were to go with it: what wanted its place waits on."""
        order, known = self._asked.pop(uid, None), self._roster.pods.get(uid)
        self._going.discard(uid)
        if known is None:
            return []
        known.evicted = ""
        reservation = self._reservations.evicting(uid)
        if reservation is not None:
            del self._reservations.strict[reservation.pool]
        if isinstance(order, Expel):
            return []  # asked again before long by whoever asked
        for other in self._with(order) if order is not None else ():
            self._bound.discard(other)
            self._withdraw(other)
        self._reclaimer.spare(uid, Millis(self._roster.usage.now + SPARED_MS))
        if order is None:
            return []
        return [Tell(order.beneficiary, Notice.WAITING, _put_off(order))]

    def gone(self, tracked: Tracked) -> list[Effect]:
        """A pod is finished, or no more."""
        uid = tracked.pod.uid
        order = self._asked.pop(uid, None)
        self._going.discard(uid)
        self._bound.discard(uid)
        reservation = self._reservations.evicting(uid)
        if reservation is not None:
            reservation.victims.discard(uid)
        if order is None or not tracked.evicted:
            return []
        self._bind(order)
        self._sign(order)
        return [Tell(tracked.ref, Notice.RECLAIMED, explain(order))]

    def review(self) -> None:
        """Spare those whose place nobody waits for any more, unless others have gone with them.

        Call it at the end of a pass.
        """
        now = self._roster.usage.now
        for pool, reservation in list(self._reservations.strict.items()):
            if reservation.victims and now - reservation.since >= STUCK_MS:
                del self._reservations.strict[pool]
        for uid, order in self._asked.items():
            due = uid in self._bound or self._reservations.evicting(uid) is not None
            if isinstance(order, Evict) and not due:
                self._withdraw(uid)

    def due(self) -> Millis | None:
        """Return when there is more to do by time alone."""
        since = [r.since for r in self._reservations.strict.values() if r.victims]
        return Millis(min(since) + STUCK_MS) if since else None

    def end(self) -> None:
        """A term is over: what was asked for may or may not happen."""
        self._asked.clear()
        self._going.clear()
        self._bound.clear()
        for tracked in self._roster.pods.values():
            tracked.evicted = ""

    def _with(self, order: Evict | Expel) -> list[Uid]:
        """Return those that are asked to go together with a pod, and have not answered."""
        if not isinstance(order, Evict):
            return []
        whose = order.beneficiary.uid
        others = self._asked.items()
        return [u for u, o in others if isinstance(o, Evict) and o.beneficiary.uid == whose]

    def _bind(self, order: Evict | Expel) -> None:
        """One goes: so do the others, whatever becomes of what they make room for.

        But not those that were spared since: they were asked to go for an earlier reclaim.
        """
        self._bound.update(filter(self.wanted, self._with(order)))

    def _makes_room(self, uid: Uid) -> bool:
        """Tell whether a pod is to go for the sake of others."""
        return isinstance(self._asked.get(uid), Evict) and self.wanted(uid)

    def _withdraw(self, uid: Uid) -> None:
        """Let a pod stay. The order is kept: it may be too late, and then its owner is told why."""
        known = self._roster.pods.get(uid)
        if known is not None:
            known.evicted = ""

    def _sign(self, order: Evict | Expel) -> None:
        if isinstance(order, Evict) and order.cause is not Cause.PRIORITY:
            self._truces.sign(taking_of(order), self._roster.usage.now)


def taking_of(order: Evict) -> Taking:
    """Return who takes from whom."""
    return Taking(order.pool, order.tenant, order.beneficiary_tenant)


def explain(order: Evict | Expel) -> str:
    """Return why a pod goes, and what would have prevented it, for its owner."""
    if isinstance(order, Expel):
        return order.why
    if order.cause is Cause.PRIORITY:
        return (
            "makes room for work of the same user that has a higher priority, as the Policy allows "
            "(withinQueue: LowerPriority); a higher priority of its own would have prevented it"
        )
    theirs, ours = (f"{share:.3g}" for share in order.compared)
    return (
        f"makes room for work of tenant {order.beneficiary_tenant} in pool {order.pool}: "
        f"{order.cause.explanation}. Once done, tenant {order.tenant} borrows a weighted share of "
        f"{theirs} of the cluster, tenant {order.beneficiary_tenant} one of {ours}. It would have "
        f"stayed within a guarantee of tenant {order.tenant} in that pool; with "
        f'fairgate.io/preemptible: "false" work starts only within that, and is never evicted'
    )


def _put_off(order: Evict) -> str:
    return (
        f"room is to be made for it in pool {order.pool}, but work of tenant {order.tenant} cannot "
        f"be evicted now: a disruption budget, or the API server, forbids it; sought elsewhere, or "
        f"again in {SPARED_MS // 1000} s"
    )
