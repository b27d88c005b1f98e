"""What released pods use of the pools, and where a workload would fit now.

Every pod that uses a pool has a stay: on the node that runs it, or on the one it is expected on
until the scheduler binds it. Which nodes belong to a pool is not decided here.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from app.core.asks.shape import Pins, Shape
from app.core.asks.terms import ANYWHERE, Spacing, Terms
from app.core.model import Amounts, Millis, NodeName, Pin, PoolName, Resource
from app.core.places.beyond import TO_COME, Beyond
from app.core.places.compact import grounds
from app.core.places.growth import Account
from app.core.places.nodes import Nodes
from app.core.places.plans import Plan
from app.core.places.pools import Pools, add_to
from app.core.places.reach import within
from app.core.places.sites import Slot
from app.core.places.spaced import plan_apart, said_by_part
from app.core.places.spacing import Company, Trial


@dataclass(frozen=True, slots=True, eq=False)
class Withheld:
    """Room of a pool that must be left free on nodes. Compared by identity."""

    rooms: Mapping[NodeName, Amounts]


NOTHING = Withheld({})


@dataclass(slots=True, eq=False)
class Stay:
    """What one pod takes: of a pool, and of a node of it if one is known. `ends` if declared.

    `only`, `terms` and `spacings` say which nodes it may be on. `leaving`: it is on its way out.
    """

    pool: PoolName
    demand: Amounts
    node: NodeName | None
    bound: bool
    ends: Millis | None
    only: Pin = None
    terms: Terms = ANYWHERE
    spacings: tuple[Spacing, ...] = ()
    leaving: bool = False
    slot: Slot | None = None

    def overstayed(self, now: Millis) -> bool:
        """Tell whether it is there longer than was declared."""
        return self.ends is not None and self.ends < now


class Placement:
    """The stays of all released pods, and the room they leave."""

    def __init__(self, pools: Pools) -> None:
        self.used: dict[PoolName, dict[Resource, int]] = {}
        self.stays: dict[NodeName, dict[Stay, None]] = {}
        self.company = Company(pools.reach)
        self.beyond = Beyond(pools)
        self._pools = pools
        self._adrift: dict[PoolName, dict[Resource, int]] = {}
        self._plans: dict[tuple[Shape, PoolName, Withheld], Plan | None] = {}
        self._pins: dict[tuple[Shape, PoolName], Pins] = {}
        self._seen = self._pinned = (0, 0)
        self._drifters: dict[PoolName, dict[Stay, None]] = {}
        self._landed: dict[PoolName, tuple[int, int]] = {}

    def enter(
        self,
        pool: PoolName,
        demand: Amounts,
        *,
        node: NodeName | None,
        bound: bool,
        ends: Millis | None = None,
        only: Pin = None,
        terms: Terms = ANYWHERE,
        spacings: tuple[Spacing, ...] = (),
        leaving: bool = False,
    ) -> Stay:
        """Take room for a pod on the node that runs it (`bound`) or on the one it will go to.

        Without a node the best one is assumed; if none has room, the pool alone is charged, but
        for a pod that may be on one node `only`: it waits for room there, and nowhere else.
        """
        stay = Stay(pool, demand, node, bound, ends, only, terms, spacings, leaving)
        if node is None:
            stay.node = node = self._expected(stay)
        self.resume(stay)
        if bound and node is not None:
            self._send_on(pool, node)
        return stay

    def lost(self, stay: Stay, node: NodeName) -> bool:
        """Tell whether a node is gone, not ready, in another pool, or keeps a pod off by a taint.

        Labels are not asked about: whoever made the pod may have narrowed what it wants of them.
        """
        known = self._pools.reach.node(node)
        if known is None or not known.ready or self._pools.home_of(node) != stay.pool:
            return True
        return not self._pools.reach.bears(stay.terms, node)

    def reconsider(self, node: NodeName) -> None:
        """A node is gone, has less room, or keeps more pods off: expect those elsewhere."""
        home = self._pools.home_of(node)
        for stay in list(self.stays.get(node, ())):
            if stay.bound or _settled(stay):
                continue
            if stay.pool != home or not self._pools.reach.admits(stay.terms, node):
                self._expect_anew(stay)
        if home is not None:
            self._send_on(home, node)

    def _send_on(self, pool: PoolName, node: NodeName) -> None:
        """Expect elsewhere those for whom a node has no room any more, the last come first."""
        floor = self._pools.floors.get(pool)
        while floor is not None:
            short = [r for r, left in floor.free(node).items() if left < 0]
            # Who takes nothing of what is short would be expected there again.
            expected = [
                s
                for s in self.stays.get(node, ())
                if not s.bound and s.pool == pool and not _settled(s)
                if any(s.demand.get(r, 0) > 0 for r in short)
            ]
            if not expected:
                return
            self._expect_anew(expected[-1])

    def _expect_anew(self, stay: Stay) -> None:
        self.leave(stay)
        stay.node = self._expected(stay)
        self.resume(stay)

    def _expected(self, stay: Stay) -> NodeName | None:
        """Return the node that a released pod will go to; None: nobody can know."""
        floor = self._pools.floors.get(stay.pool)
        if floor is None:
            return None
        pin = self._pools.reach.pin(stay.terms, stay.only, stay.pool)
        if stay.spacings:
            pin = self.company.pin(stay.spacings, stay.terms, stay.pool, pin)
        plan = floor.find(((stay.demand, 1),), pins=() if pin is None else (pin,))
        if plan is not None:
            return plan.nodes[0]
        only = stay.only
        return only[0] if only is not None and len(only) == 1 and floor.free(only[0]) else None

    def resume(self, stay: Stay) -> None:
        """Take a stay up again that was left."""
        add_to(self.used.setdefault(stay.pool, {}), stay.demand, 1)
        self._plans.clear()
        if stay.node is None:
            add_to(self._adrift.setdefault(stay.pool, {}), stay.demand, 1)
            if not stay.leaving:
                self._drifters.setdefault(stay.pool, {})[stay] = None
            return
        self.stays.setdefault(stay.node, {})[stay] = None
        if stay.spacings:
            self.company.count(stay.spacings, stay.node, 1)
        floor = self._pools.floors.get(stay.pool)
        if floor is not None:
            stay.slot = floor.take(stay.node, stay.demand)
        if stay.bound:
            self._pools.carry(stay.node, stay.demand, 1)

    def leave(self, stay: Stay) -> None:
        """Give back what a pod took."""
        add_to(self.used[stay.pool], stay.demand, -1)
        self._plans.clear()
        if stay.node is None:
            add_to(self._adrift[stay.pool], stay.demand, -1)
            self._drifters.get(stay.pool, {}).pop(stay, None)
            return
        del self.stays[stay.node][stay]
        if stay.spacings:
            self.company.count(stay.spacings, stay.node, -1)
        floor = self._pools.floors.get(stay.pool)
        if stay.slot is not None and floor is not None:
            floor.give(stay.slot)
        if stay.bound:
            self._pools.carry(stay.node, stay.demand, -1)

    def part(self, stay: Stay) -> None:
        """A pod is on its way out: it uses what it has still, but waits for no node any more."""
        stay.leaving = True
        if stay in self._drifters.get(stay.pool, {}):
            del self._drifters[stay.pool][stay]
            self._plans.clear()

    def forget(self) -> None:
        """Start counting anew. Every stay is void."""
        for stays in self.stays.values():
            for stay in stays:
                floor = self._pools.floors.get(stay.pool)
                if floor is not None and stay.slot is not None:
                    floor.give(stay.slot)
        self.used.clear()
        self._adrift.clear()
        self._drifters.clear()
        self._landed.clear()
        self.stays.clear()
        self.company.forget()
        self._plans.clear()
        self._pools.forget_carried()

    @property
    def laid_out(self) -> tuple[int, int]:
        """Changes whenever pools, what their nodes offer or may come to, or to whom, changed."""
        pools = self._pools
        return (pools.version, pools.resized + pools.reach.version + pools.growth.changes)

    def seen(self, shape: Shape) -> tuple[int, int]:
        """As `laid_out`, for one workload: also whether others of its kind came or went."""
        version, changes = self.laid_out
        return version, changes + sum(map(self.company.stamp, shape.spacings))

    def fitting(self, shape: Shape) -> tuple[PoolName, ...]:
        """Return the pools where a workload fits now, the best first."""
        plans = {pool: plan for pool in shape.pools if (plan := self.plan(shape, pool))}
        return self.ranked(shape, plans)

    def ranked(self, shape: Shape, plans: Mapping[PoolName, Plan]) -> tuple[PoolName, ...]:
        """Return the best first: the smallest devices for who says what it needs, then packed best.

        Where it would wait for nodes is not even named while any pool has them.
        """
        size = self._pools.makes.size
        there = {pool: plan for pool, plan in plans.items() if not plan.awaits} or plans
        costs = [(size(p) if shape.sized else 0, plan.cost, p) for p, plan in there.items()]
        return tuple(pool for *_, pool in sorted(costs))

    def plan(self, shape: Shape, pool: PoolName, withheld: Withheld = NOTHING) -> Plan | None:
        """Return where the pods of a workload would go in a pool, or None. Takes nothing."""
        seen = self.laid_out
        if seen != self._seen:
            self._seen = seen
            self._plans.clear()
        key = (shape, pool, withheld)
        if key not in self._plans:
            self._plans[key] = self._find(shape, pool, withheld)
        return self._plans[key]

    def plan_for(
        self, account: Account, shape: Shape, pool: PoolName, withheld: Withheld = NOTHING
    ) -> Plan | None:
        """The same for work of a user, who may have waited for new nodes in vain lately."""
        plan = self.plan(shape, pool, withheld)
        barred = plan is not None and self._pools.growth.barred(pool, account) is not None
        return None if barred and plan is not None and plan.awaits else plan

    def pins(self, shape: Shape, pool: PoolName) -> Pins:
        """Return where in a pool the pods of each part of a workload may go; (): anywhere."""
        seen = self.laid_out
        if seen != self._pinned:
            self._pinned = seen
            self._pins.clear()
        key = (shape, pool)
        found = self._pins.get(key)
        if found is None:
            only = shape.pins or (None,) * len(shape.parts)
            terms = shape.terms or (ANYWHERE,) * len(shape.parts)
            reach = self._pools.reach
            found = tuple(reach.pin(t, o, pool) for t, o in zip(terms, only, strict=True))
            found = self._pins[key] = found if any(pin is not None for pin in found) else ()
        return found

    def blocking(self, shape: Shape, pool: PoolName) -> str:
        """Return the rule about others of its kind that leaves a workload no node; "": none."""
        for number, spacings in enumerate(shape.spacings):
            terms, _ = said_by_part(shape, number)
            pin = (self.pins(shape, pool) or (None,) * len(shape.parts))[number]
            nodes = self._pools.open_nodes(pool, pin)
            for each in spacings:
                if self.company.open((each,), terms, pool).isdisjoint(nodes):
                    return str(each)
        return ""

    def open_nodes(self, pool: PoolName, only: Pin = None) -> list[NodeName]:
        """Return the ready nodes of a pool, or those of them that a pod may go to, by name."""
        return self._pools.open_nodes(pool, only)

    def grounds(self, shape: Shape, pool: PoolName) -> list[Collection[NodeName]] | None:
        """Return the nodes of each domain that a workload may be confined to; None: it is not."""
        floor = self._pools.floors.get(pool)
        return None if floor is None else grounds(floor.domains, shape.manner)

    def free_on(self, pool: PoolName, node: NodeName) -> Amounts:
        """Return what is free on a node of a pool."""
        return self._pools.floors[pool].free(node)

    def free(self, pool: PoolName) -> dict[Resource, int]:
        """Return what is left of a pool as a whole."""
        used = self.used.get(pool, {})
        return {r: v - used.get(r, 0) for r, v in self._pools.capacity(pool).items()}

    def awaiting(self, pool: PoolName) -> int:
        """Return how many released pods wait for a node of a pool that may grow."""
        return len(self._drifters.get(pool, ())) if self.beyond.most(pool) else 0

    def land(self) -> None:
        """Expect those who wait for new nodes where room has come up. Cheap if none did."""
        for pool, drifters in self._drifters.items():
            floor = self._pools.floors.get(pool)
            if floor is None or not drifters or not self.beyond.most(pool):
                continue
            stamp = (self._pools.version, floor.grown)
            if self._landed.get(pool) == stamp:
                continue
            self._landed[pool] = stamp
            grown = {name: floor.free(name) for name in floor.take_grown()}
            vain: set[tuple[object, ...]] = set()
            for stay in list(drifters):
                alike = (id(stay.demand), stay.terms, stay.only, stay.spacings)
                if alike in vain or not self._may_land(stay, grown):
                    continue
                if self._expected(stay) is None:
                    vain.add(alike)
                else:
                    self._expect_anew(stay)
                    if stay.node in grown:
                        grown[stay.node] = floor.free(stay.node)

    def _may_land(self, stay: Stay, grown: Mapping[NodeName, Amounts]) -> bool:
        """Tell, cheaply, whether any of the nodes that grew could take who waits for a new one.

        The others could not before. Where distance is kept, what ends on one node opens others.
        """
        if stay.spacings or _settled(stay):
            return True
        admits = self._pools.reach.admits
        return any(
            all(value <= free.get(r, 0) for r, value in stay.demand.items() if value > 0)
            and admits(stay.terms, name)
            for name, free in grown.items()
        )

    def _find(self, shape: Shape, pool: PoolName, withheld: Withheld) -> Plan | None:
        floor = self._pools.floors.get(pool)
        if floor is None:
            return None
        adrift, most = self._adrift.get(pool, {}), self.beyond.most(pool)
        used, rooms = self.used.get(pool, {}), withheld.rooms
        if TO_COME in rooms and not self.beyond.spares(shape, pool, used, rooms):
            return None  # a node that has come since counts for whom it is kept for
        if any(adrift.values()):
            # Released pods that no node has room for will want it as soon as there is some.
            free = self._left(pool) if most else self.free(pool)
            if any(v > free.get(r, 0) for r, v in shape.total.items() if not most or r in most):
                return None
        pins = self.pins(shape, pool)
        if shape.spacings:
            return self._apart(floor, shape, pool, pins, withheld)
        plan = floor.find(shape.parts, rooms, pins, shape.manner)
        wary = self._pools.growth.is_wary(pool)
        if plan is None and most and not (wary and self.awaiting(pool)):
            return self.beyond.find(shape, pool, used, adrift, rooms, pins)
        return plan

    def _left(self, pool: PoolName) -> dict[Resource, int]:
        """Return what is left of a pool once it has grown as far as it may."""
        used = self.used.get(pool, {})
        return {r: v - used.get(r, 0) for r, v in self._pools.extent(pool).items()}

    def _apart(
        self, floor: Nodes, shape: Shape, pool: PoolName, pins: Pins, withheld: Withheld
    ) -> Plan | None:
        """Return a plan for pods that keep a distance: in one domain, if they are confined."""
        domains = self.grounds(shape, pool)
        for among in (None,) if domains is None else domains:
            allowed = pins
            if among is not None:
                allowed = tuple(within(p, among) for p in pins or (None,) * len(shape.parts))
            trial = Trial(self.company, pool)
            plan = plan_apart(floor, shape, allowed, withheld.rooms, trial)
            if plan is not None:
                return plan
        return None


def _settled(stay: Stay) -> bool:
    """Tell whether a pod can be expected on no other node."""
    return stay.only is not None and len(stay.only) == 1
