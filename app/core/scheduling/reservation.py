"""Reservations: capacity for a workload that was next for long enough and still does not fit.

An active reservation is withheld from workloads after its owner in the order. An exclusive one is
withheld from all others, for example because of its evictions. The order itself does not change.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass, field
from weakref import WeakKeyDictionary

from app.core.fairshare.tree_node import UserNode
from app.core.fairshare.user_queue import QueueKey
from app.core.model import Amounts, Millis, NodeName, PoolName, Resource, TenantName, Uid
from app.core.placement.allocations import NOTHING, Allocations, ReservedCapacity
from app.core.placement.autoscaling_backoff import AutoscalingAccount
from app.core.placement.autoscaling_capacity import TO_COME, Rooms
from app.core.placement.node_filter import within
from app.core.placement.pod_affinity import Chance, TentativePeers, choose, said_by_part
from app.core.placement.pools import add_to
from app.core.podspec.equivalence_class import EquivalenceClass
from app.core.quantities import fits, is_device

NEVER_MS = Millis(2**62)

START = Millis(0)

NOBODY: Rooms = {}

MOST_KEPT = 500
"""Maximum number of reserved nodes that a release names, so that the scheduler avoids them."""

FIRM = 48
"""Multiple of `reserveAfter` after which a reservation is overdue, usually four hours. On real logs
a smaller value cost other workloads more than it gained. The limit prevents starvation."""

FEW = 64
"""Number of combinations of reservations to cache."""


@dataclass(slots=True, eq=False)
class Reservation:
    """Reserved capacity on nodes for one workload.

    `strict`: it is exclusive, because pods of others were evicted for it, or because it `completes`
    a gang that already runs in part. `victims` are the pods that are being evicted for it, of the
    tenants `taken_from`. `since` is when it became active.
    """

    owner: QueueKey
    leaf: UserNode
    shape: EquivalenceClass
    pool: PoolName
    rooms: dict[NodeName, Amounts]
    laid_out: tuple[int, int]
    strict: bool = False
    completes: bool = False
    victims: set[Uid] = field(default_factory=set)
    since: Millis = START
    taken_from: frozenset[TenantName] = frozenset()


class Reservations:
    """Timers of heads that were next and did not fit, and the resulting reservations."""

    def __init__(self, placement: Allocations) -> None:
        self.clocks: dict[Uid, Millis] = {}
        self.standing: dict[PoolName, Reservation] = {}
        self.strict: dict[PoolName, Reservation] = {}
        self.overdue: dict[PoolName, Reservation] = {}
        self._possible: WeakKeyDictionary[
            EquivalenceClass, dict[tuple[PoolName, bool], tuple[tuple[int, int], bool]]
        ] = WeakKeyDictionary()
        self._placement = placement
        self._plans: dict[Uid, Reservation] = {}
        self._stood: dict[PoolName, Reservation] = {}
        self._withheld: dict[tuple[Reservation, ...], ReservedCapacity] = {}

    def note(self, uid: Uid, now: Millis) -> None:
        """Start the timer of a workload that is next and does not fit. It runs until `drop`."""
        self.clocks.setdefault(uid, now)

    def drop(self, uid: Uid) -> None:
        """Remove a workload that was released or is gone."""
        self.clocks.pop(uid, None)
        self._plans.pop(uid, None)
        for held in (self.standing, self.strict, self.overdue):
            for pool in [p for p, r in held.items() if r.owner.uid == uid]:
                del held[pool]

    def rebind(self) -> None:
        """Reset for a new share tree. Timers and exclusive reservations stay."""
        self.standing.clear()
        self.overdue.clear()
        self._plans.clear()
        self._possible.clear()
        self._withheld.clear()

    def keep_strict(self, is_due: Callable[[Reservation], bool]) -> None:
        """Drop exclusive reservations of owners that no longer wait for them."""
        for pool, reservation in list(self.strict.items()):
            if not is_due(reservation):
                del self.strict[pool]

    def due(self, now: Millis, after: Millis) -> Iterator[Uid]:
        """Return the workloads with expired timers, the oldest first."""
        for uid, since in self.clocks.items():
            if now - since < after:
                return
            yield uid

    def reserve(
        self, owner: QueueKey, leaf: UserNode, shape: EquivalenceClass, pool: PoolName
    ) -> bool:
        """Reserve capacity in a pool without a reservation; False if it could never fit there.

        The chosen nodes stay the same while their layout is the same. Capacity on future nodes
        stays reserved while the pool is expected to grow.
        """
        seen = self._placement.seen(shape)
        grows = self._placement.beyond.is_sure(pool, leaf.account)
        plan = self._plans.get(owner.uid)
        known = plan is not None and (plan.laid_out, plan.pool) == (seen, pool)
        if plan is not None and TO_COME in plan.rooms and not grows:
            known = False
        if plan is None or not known or plan.leaf is not leaf or plan.shape is not shape:
            if self._possible.get(shape, {}).get((pool, grows)) == (seen, False):
                return False
            paid = self.strict.get(pool)
            rooms = self._soonest(shape, pool, grows, paid.rooms if paid else NOBODY)
            if rooms is None:
                if paid is None:
                    self._possible.setdefault(shape, {})[pool, grows] = seen, False
                return False
            plan = Reservation(owner, leaf, shape, pool, rooms, seen)
            self._plans[owner.uid] = plan
        self.standing[pool] = plan
        return True

    def complete(
        self,
        owner: QueueKey,
        leaf: UserNode,
        shape: EquivalenceClass,
        allowed: Iterable[PoolName],
        mates: Rooms,
    ) -> None:
        """Reserve capacity exclusively for the rest of a gang, in a pool that could hold it.

        `allowed`: the pools where it may start. `mates`: capacity of its running pods, which they
        keep.
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
        """Make reservations overdue that were active for too long without result.

        Workloads before an owner may refill its capacity as fast as it is freed. Then only an
        overdue reservation lets it start. The owner must use least: others have to wait for it
        anyway. Call it at the end of a cycle, because reservations change their owners within a
        cycle.
        """
        for pool, reservation in self.standing.items():
            if self._stood.get(pool) is not reservation:
                reservation.since = now
            if now - reservation.since >= FIRM * after and uses_least(reservation):
                self.overdue[pool] = reservation
            else:
                self.overdue.pop(pool, None)
        self._stood = dict(self.standing)

    def soften(self) -> None:
        """Drop overdue reservations that are no longer active, and follow those on other nodes."""
        for pool, reservation in list(self.overdue.items()):
            standing = self.standing.get(pool)
            if standing is None or standing.owner.uid != reservation.owner.uid:
                del self.overdue[pool]
            else:
                self.overdue[pool] = standing

    def owners(self) -> Iterator[Reservation]:
        """Yield every exclusive and every active reservation."""
        yield from self.strict.values()
        yield from self.standing.values()

    def could_hold(
        self, shape: EquivalenceClass, pool: PoolName, account: AutoscalingAccount | None = None
    ) -> bool:
        """Return whether a pool could hold a workload if no other workload ran there.

        Pods at a required distance stay where they are. Future nodes count if the user may get
        them.
        """
        seen = self._placement.seen(shape)
        grows = account is not None and self._placement.beyond.is_sure(pool, account)
        known = self._possible.get(shape, {}).get((pool, grows))
        if known is None or known[0] != seen:
            known = seen, self._soonest(shape, pool, grows) is not None
            self._possible.setdefault(shape, {})[pool, grows] = known
        return known[1]

    def paid_for(self, uid: Uid) -> bool:
        """Return whether a waiting workload has an exclusive reservation."""
        return self.payment(uid) is not None

    def payment(self, uid: Uid) -> Reservation | None:
        """Return the exclusive reservation of a workload, or None."""
        return next((r for r in self.strict.values() if r.owner.uid == uid), None)

    def evicting(self, uid: Uid) -> Reservation | None:
        """Return the reservation for which a pod is being evicted, or None."""
        return next((r for r in self.strict.values() if uid in r.victims), None)

    def kept(self, pool: PoolName, uid: Uid) -> list[NodeName]:
        """Return the nodes of a pool reserved for other workloads. Empty if there are too many."""
        found = (held.get(pool) for held in (self.standing, self.strict, self.overdue))
        nodes = {n for r in found if r is not None and r.owner.uid != uid for n in r.rooms}
        return sorted(nodes) if len(nodes) <= MOST_KEPT else []

    def withheld(self, against: Iterable[Reservation]) -> ReservedCapacity:
        """Return the total capacity of some reservations of one pool."""
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
            self._withheld[key] = ReservedCapacity(rooms)
        return self._withheld[key]

    def starts(self, reservation: Reservation) -> Millis | None:
        """Return when its capacity is free by declared run times; None if unknown."""
        pool, latest = reservation.pool, Millis(0)
        for node, wanted in reservation.rooms.items():
            at = self._free_by(pool, node, wanted)
            if at is None:
                return None
            latest = max(latest, at)
        return latest

    def _soonest(
        self, shape: EquivalenceClass, pool: PoolName, grows: bool, beside: Rooms = NOBODY
    ) -> dict[NodeName, Amounts] | None:
        """Choose the nodes that can be free soonest: by declared ends, then by devices in use.

        Capacity `beside` stays occupied. Pods that must stay in one domain get capacity in one
        domain. If the pool `grows`, requests beyond its nodes are reserved on future nodes.
        """
        grounds = self._placement.grounds(shape, pool)
        if grounds is None:
            grows = grows and self._placement.beyond.could_hold(shape, pool)
            return self._soonest_among(shape, pool, beside, None, grows)
        found = [self._soonest_among(shape, pool, beside, among) for among in grounds]
        chances = [rooms for rooms in found if rooms is not None]
        return min(chances, key=lambda rooms: self._prospect(pool, rooms), default=None)

    def _prospect(self, pool: PoolName, rooms: Rooms) -> tuple[Millis, int]:
        """Return when this capacity is free, and how many of its devices are still in use."""
        times = [self._free_by(pool, node, amounts) for node, amounts in rooms.items()]
        latest = max([NEVER_MS if at is None else at for at in times], default=Millis(0))
        return latest, sum(self._lack(pool, node, amounts) for node, amounts in rooms.items())

    def _soonest_among(
        self,
        shape: EquivalenceClass,
        pool: PoolName,
        beside: Rooms,
        among: Collection[NodeName] | None,
        grows: bool = False,
    ) -> dict[NodeName, Amounts] | None:
        """Do the same as `_soonest` on the nodes `among`; None means any node."""
        rooms = {node: dict(amounts) for node, amounts in beside.items()}
        pins = self._placement.pins(shape, pool) or (None,) * len(shape.parts)
        trial = TentativePeers(self._placement.company, pool)
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
        """Yield when a node could hold each of up to `count` pods beside `rest`."""
        taken = dict(rest)
        for _ in range(count):
            add_to(taken, demand, 1)
            if not self._could_carry(pool, node, taken):
                return
            by = self._free_by(pool, node, taken)
            yield NEVER_MS if by is None else by, self._lack(pool, node, taken), node

    def _could_carry(self, pool: PoolName, node: NodeName, wanted: Amounts) -> bool:
        room = dict(self._placement.free_on(pool, node))
        for allocation in self._placement.stays.get(node, ()):
            add_to(room, allocation.demand, 1)
        return fits(wanted, room)

    def _free_by(self, pool: PoolName, node: NodeName, wanted: Amounts) -> Millis | None:
        """Return when a node has this capacity by declared run times, or None."""
        room = dict(self._placement.free_on(pool, node))
        if fits(wanted, room):
            return Millis(0)
        stays = self._placement.stays.get(node, ())
        for ends, allocation in sorted(
            ((allocation.ends, allocation) for allocation in stays if allocation.ends is not None),
            key=lambda pair: pair[0],
        ):
            add_to(room, allocation.demand, 1)
            if fits(wanted, room):
                return ends
        return None

    def _lack(self, pool: PoolName, node: NodeName, wanted: Amounts) -> int:
        """Return how many of the requested devices are still in use on a node."""
        free = self._placement.free_on(pool, node)
        return sum(max(0, v - free.get(r, 0)) for r, v in wanted.items() if is_device(r))
