"""Capacity kept free for a workload that was next for long enough and still does not fit.

A reservation holds back room from whoever comes after its owner in the order; one that was paid
for by evictions holds it back from everybody. It decides nothing about who is next.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass, field

from app.core.asks.shape import Shape
from app.core.fair.backlog import Turn
from app.core.fair.branch import Leaf
from app.core.model import Amounts, Millis, NodeName, PoolName, Resource, TenantName, Uid
from app.core.places.beyond import TO_COME, Rooms
from app.core.places.growth import Account
from app.core.places.placement import NOTHING, Placement, Withheld
from app.core.places.pools import add_to
from app.core.places.reach import within
from app.core.places.spaced import Chance, choose, said_by_part
from app.core.places.spacing import Trial
from app.core.resources import fits, is_device

NEVER_MS = Millis(2**62)

START = Millis(0)

NOBODY: Rooms = {}

MOST_KEPT = 500
"""Nodes that a release names, so that the scheduler leaves them alone."""

FIRM = 48
"""Times `reserveAfter` that a reservation stands before it yields to nobody: four hours, usually.
Sooner, it cost others more on real logs than it gained; it is there so that nothing starves."""

FEW = 64
"""Combinations of reservations remembered."""


@dataclass(slots=True, eq=False)
class Reservation:
    """Room on nodes for one workload. `strict`: others' work was evicted for it, or it
    `completes` a gang of which some run already.

    `victims` are the pods that are being evicted for it, of the tenants `taken_from`; `since` is
    when it began to stand.
    """

    owner: Turn
    leaf: Leaf
    shape: Shape
    pool: PoolName
    rooms: dict[NodeName, Amounts]
    laid_out: tuple[int, int]
    strict: bool = False
    completes: bool = False
    victims: set[Uid] = field(default_factory=set)
    since: Millis = START
    taken_from: frozenset[TenantName] = frozenset()


class Reservations:
    """Who was next and did not fit, since when; and the reservations that follow from that."""

    def __init__(self, placement: Placement) -> None:
        self.clocks: dict[Uid, Millis] = {}
        self.standing: dict[PoolName, Reservation] = {}
        self.strict: dict[PoolName, Reservation] = {}
        self.firm: dict[PoolName, Reservation] = {}
        self._possible: dict[tuple[Shape, PoolName, bool], tuple[tuple[int, int], bool]] = {}
        self._placement = placement
        self._plans: dict[Uid, Reservation] = {}
        self._stood: dict[PoolName, Reservation] = {}
        self._withheld: dict[tuple[Reservation, ...], Withheld] = {}

    def note(self, uid: Uid, now: Millis) -> None:
        """A workload is next and does not fit. Its clock keeps running until `drop`."""
        self.clocks.setdefault(uid, now)

    def drop(self, uid: Uid) -> None:
        """A workload was released, or is gone."""
        self.clocks.pop(uid, None)
        self._plans.pop(uid, None)
        for held in (self.standing, self.strict, self.firm):
            for pool in [p for p, r in held.items() if r.owner.uid == uid]:
                del held[pool]

    def rebind(self) -> None:
        """The tree is new: clocks stay, what was paid for stays, the rest is decided anew."""
        self.standing.clear()
        self.firm.clear()
        self._plans.clear()
        self._possible.clear()
        self._withheld.clear()

    def keep_strict(self, is_due: Callable[[Reservation], bool]) -> None:
        """Let go of what was paid for, for an owner that does not wait for it any more."""
        for pool, reservation in list(self.strict.items()):
            if not is_due(reservation):
                del self.strict[pool]

    def due(self, now: Millis, after: Millis) -> Iterator[Uid]:
        """Return those whose clocks have run long enough, the oldest first."""
        for uid, since in self.clocks.items():
            if now - since < after:
                return
            yield uid

    def reserve(self, owner: Turn, leaf: Leaf, shape: Shape, pool: PoolName) -> bool:
        """Hold back room in a pool that has no reservation; False if it could never fit there.

        The nodes once chosen for a workload stay the same while they offer the same, and what is
        to come while nothing speaks against that.
        """
        seen = self._placement.seen(shape)
        grows = self._placement.beyond.is_sure(pool, leaf.account)
        plan = self._plans.get(owner.uid)
        known = plan is not None and (plan.laid_out, plan.pool) == (seen, pool)
        if plan is not None and TO_COME in plan.rooms and not grows:
            known = False
        if plan is None or not known or plan.leaf is not leaf or plan.shape is not shape:
            if self._possible.get((shape, pool, grows)) == (seen, False):
                return False
            paid = self.strict.get(pool)
            rooms = self._soonest(shape, pool, grows, paid.rooms if paid else NOBODY)
            if rooms is None:
                if paid is None:
                    self._possible[shape, pool, grows] = seen, False
                return False
            plan = Reservation(owner, leaf, shape, pool, rooms, seen)
            self._plans[owner.uid] = plan
        self.standing[pool] = plan
        return True

    def complete(
        self, owner: Turn, leaf: Leaf, shape: Shape, allowed: Iterable[PoolName], mates: Rooms
    ) -> None:
        """Hold back room from everybody for the rest of a gang, in a pool that could hold it.

        `allowed`: where it may start; `mates`: what those of it that run hold, and are to keep.
        """
        seen = self._placement.laid_out
        for pool in allowed:
            grows = self._placement.beyond.is_sure(pool, leaf.account)
            known = self.strict.get(pool)
            if known is not None and (not known.completes or known.owner.uid != owner.uid):
                continue
            doubtful = known is not None and TO_COME in known.rooms and not grows
            if known is None or doubtful or known.laid_out != seen or known.shape is not shape:
                rooms = self._soonest(shape, pool, grows, mates)
                if rooms is None:
                    self.strict.pop(pool, None)
                    continue
                self.strict[pool] = Reservation(
                    owner, leaf, shape, pool, rooms, seen, strict=True, completes=True
                )
            return

    def harden(self, now: Millis, after: Millis, uses_least: Callable[[Reservation], bool]) -> None:
        """Let reservations that have stood too long in vain be withheld from everybody.

        Those who come to stand before an owner may refill what it waits for as fast as it
        empties; then only this lets it start. The claim is of those who use least: anybody else
        has to wait for them. Call it at the end of a pass; in the middle of one they change hands.
        """
        for pool, reservation in self.standing.items():
            if self._stood.get(pool) is not reservation:
                reservation.since = now
            if now - reservation.since >= FIRM * after and uses_least(reservation):
                self.firm[pool] = reservation
            else:
                self.firm.pop(pool, None)
        self._stood = dict(self.standing)

    def soften(self) -> None:
        """Let go of hardened reservations that stand no more, or on other nodes."""
        for pool, reservation in list(self.firm.items()):
            standing = self.standing.get(pool)
            if standing is None or standing.owner.uid != reservation.owner.uid:
                del self.firm[pool]
            else:
                self.firm[pool] = standing

    def owners(self) -> Iterator[Reservation]:
        """Return every reservation that is withheld from anybody."""
        yield from self.strict.values()
        yield from self.standing.values()

    def could_hold(self, shape: Shape, pool: PoolName, account: Account | None = None) -> bool:
        """Tell whether a pool could hold a workload if nothing else ran there.

        Pods that it must keep a distance from stay where they are. Nodes to come count for work of
        a user, if they may come for it.
        """
        seen = self._placement.seen(shape)
        grows = account is not None and self._placement.beyond.is_sure(pool, account)
        known = self._possible.get((shape, pool, grows))
        if known is None or known[0] != seen:
            known = seen, self._soonest(shape, pool, grows) is not None
            self._possible[shape, pool, grows] = known
        return known[1]

    def paid_for(self, uid: Uid) -> bool:
        """Tell whether others are, or were, evicted for a workload that waits."""
        return self.payment(uid) is not None

    def payment(self, uid: Uid) -> Reservation | None:
        """Return the reservation for which others were evicted, if a workload has one."""
        return next((r for r in self.strict.values() if r.owner.uid == uid), None)

    def evicting(self, uid: Uid) -> Reservation | None:
        """Return the reservation for which a pod is being evicted, if any."""
        return next((r for r in self.strict.values() if uid in r.victims), None)

    def kept(self, pool: PoolName, uid: Uid) -> list[NodeName]:
        """Return the nodes of a pool where room is kept for another workload; none if too many."""
        found = (held.get(pool) for held in (self.standing, self.strict, self.firm))
        nodes = {n for r in found if r is not None and r.owner.uid != uid for n in r.rooms}
        return sorted(nodes) if len(nodes) <= MOST_KEPT else []

    def withheld(self, against: Iterable[Reservation]) -> Withheld:
        """Return the room that some reservations of one pool hold back together."""
        key = tuple(against)
        if not key:
            return NOTHING
        if key not in self._withheld:
            if len(self._withheld) > FEW:
                self._withheld.clear()
            rooms: dict[NodeName, dict[Resource, int]] = {}
            for reservation in key:
                for node, amounts in reservation.rooms.items():
                    add_to(rooms.setdefault(node, {}), amounts, 1)
            self._withheld[key] = Withheld(rooms)
        return self._withheld[key]

    def starts(self, reservation: Reservation) -> Millis | None:
        """Return when its room is free by what was declared; None: nobody can know."""
        pool, latest = reservation.pool, Millis(0)
        for node, wanted in reservation.rooms.items():
            at = self._free_by(pool, node, wanted)
            if at is None:
                return None
            latest = max(latest, at)
        return latest

    def _soonest(
        self, shape: Shape, pool: PoolName, grows: bool, beside: Rooms = NOBODY
    ) -> dict[NodeName, Amounts] | None:
        """Choose the nodes that can be free soonest: by declared ends, then by what is in use.

        Room that is needed `beside` stays as it is. What must stay in one domain gets room in one.
        What the nodes could never carry is to come, where the pool `grows`.
        """
        grounds = self._placement.grounds(shape, pool)
        if grounds is None:
            grows = grows and self._placement.beyond.could_hold(shape, pool)
            return self._soonest_among(shape, pool, beside, None, grows)
        found = [self._soonest_among(shape, pool, beside, among) for among in grounds]
        chances = [rooms for rooms in found if rooms is not None]
        return min(chances, key=lambda rooms: self._prospect(pool, rooms), default=None)

    def _prospect(self, pool: PoolName, rooms: Rooms) -> tuple[Millis, int]:
        """Return when so much room is free, and how much of it is still in use."""
        times = [self._free_by(pool, node, amounts) for node, amounts in rooms.items()]
        latest = max([NEVER_MS if at is None else at for at in times], default=Millis(0))
        return latest, sum(self._lack(pool, node, amounts) for node, amounts in rooms.items())

    def _soonest_among(
        self,
        shape: Shape,
        pool: PoolName,
        beside: Rooms,
        among: Collection[NodeName] | None,
        grows: bool = False,
    ) -> dict[NodeName, Amounts] | None:
        """As `_soonest`, on these nodes alone; None: on any."""
        rooms = {node: dict(amounts) for node, amounts in beside.items()}
        pins = self._placement.pins(shape, pool) or (None,) * len(shape.parts)
        trial = Trial(self._placement.company, pool)
        for number in sorted(range(len(pins)), key=lambda number: pins[number] is None):
            demand, count = shape.parts[number]
            chances: list[Chance] = []
            pin = pins[number] if among is None else within(pins[number], among)
            for node in self._placement.open_nodes(pool, pin):
                chances += self._chances(pool, node, demand, count, rooms.get(node, {}))
            there = min(count, len(chances)) if grows else count
            nodes = choose(sorted(chances), there, *said_by_part(shape, number), trial)
            if nodes is None:
                return None
            for node in (*nodes, *[TO_COME] * (count - there)):
                add_to(rooms.setdefault(node, {}), demand, 1)
        if not self._placement.beyond.could_bring(pool, rooms.get(TO_COME, {})):
            return None
        for node, amounts in beside.items():
            add_to(rooms[node], amounts, -1)
        return {node: amounts for node, amounts in rooms.items() if any(amounts.values())}

    def _chances(
        self, pool: PoolName, node: NodeName, demand: Amounts, count: int, rest: Amounts
    ) -> Iterator[Chance]:
        """Return when a node could have room for each of up to so many pods, beside the rest."""
        taken = dict(rest)
        for _ in range(count):
            add_to(taken, demand, 1)
            if not self._could_carry(pool, node, taken):
                return
            by = self._free_by(pool, node, taken)
            yield NEVER_MS if by is None else by, self._lack(pool, node, taken), node

    def _could_carry(self, pool: PoolName, node: NodeName, wanted: Amounts) -> bool:
        room = dict(self._placement.free_on(pool, node))
        for stay in self._placement.stays.get(node, ()):
            add_to(room, stay.demand, 1)
        return fits(wanted, room)

    def _free_by(self, pool: PoolName, node: NodeName, wanted: Amounts) -> Millis | None:
        """Return when a node has so much room, if what runs there keeps what it declared."""
        room = dict(self._placement.free_on(pool, node))
        if fits(wanted, room):
            return Millis(0)
        stays = self._placement.stays.get(node, ())
        for ends, stay in sorted(
            ((stay.ends, stay) for stay in stays if stay.ends is not None), key=lambda pair: pair[0]
        ):
            add_to(room, stay.demand, 1)
            if fits(wanted, room):
                return ends
        return None

    def _lack(self, pool: PoolName, node: NodeName, wanted: Amounts) -> int:
        """Return how many units of what is asked are still in use there."""
        free = self._placement.free_on(pool, node)
        return sum(max(0, v - free.get(r, 0)) for r, v in wanted.items() if is_device(r))
