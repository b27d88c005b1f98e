"""What released pods use of the pools, and where a workload would fit now.

Every pod that uses a pool has a stay: on the node that runs it, or on the one it is expected on
until the scheduler binds it. Which nodes belong to a pool is not decided here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from app.core.backlog import Shape
from app.core.model import Amounts, Millis, NodeName, Pin, PoolName, Resource
from app.core.nodes import Nodes
from app.core.plans import Plan
from app.core.pools import Pools, add_to
from app.core.sites import Slot


@dataclass(frozen=True, slots=True, eq=False)
class Withheld:
    """Room of a pool that must be left free on nodes. Compared by identity."""

    rooms: Mapping[NodeName, Amounts]


NOTHING = Withheld({})


@dataclass(slots=True, eq=False)
class Stay:
    """What one pod takes: of a pool, and of a node of it if one is known. `ends` if declared.

    `only`: the nodes that it may be on.
    """

    pool: PoolName
    demand: Amounts
    node: NodeName | None
    bound: bool
    ends: Millis | None
    only: Pin = None
    slot: Slot | None = None

    def overstayed(self, now: Millis) -> bool:
        """Tell whether it is there longer than was declared."""
        return self.ends is not None and self.ends < now


class Placement:
    """The stays of all released pods, and the room they leave."""

    def __init__(self, pools: Pools) -> None:
        self.used: dict[PoolName, dict[Resource, int]] = {}
        self.stays: dict[NodeName, dict[Stay, None]] = {}
        self._pools = pools
        self._adrift: dict[PoolName, dict[Resource, int]] = {}
        self._plans: dict[tuple[Shape, PoolName, Withheld], Plan | None] = {}
        self._seen = (0, 0)

    def enter(
        self,
        pool: PoolName,
        demand: Amounts,
        *,
        node: NodeName | None,
        bound: bool,
        ends: Millis | None = None,
        only: Pin = None,
    ) -> Stay:
        """Take room for a pod on the node that runs it (`bound`) or on the one it will go to.

        Without a node the best one is assumed; if none has room, the pool alone is charged, but
        for a pod that may be on one node `only`: it waits for room there, and nowhere else.
        """
        floor = self._pools.floors.get(pool)
        if node is None and floor is not None:
            node = _expected(floor, demand, only)
        stay = Stay(pool, demand, node, bound, ends, only)
        self.resume(stay)
        if bound and node is not None:
            self._send_on(pool, node)
        return stay

    def reconsider(self, node: NodeName) -> None:
        """A node is gone, or has less room: expect elsewhere whom it cannot take any more."""
        home = self._pools.home_of(node)
        for stay in list(self.stays.get(node, ())):
            if not stay.bound and stay.pool != home and not _settled(stay):
                self._expect_anew(stay)
        if home is not None:
            self._send_on(home, node)

    def _send_on(self, pool: PoolName, node: NodeName) -> None:
        """Expect elsewhere those for whom a node has no room any more, the last come first."""
        floor = self._pools.floors.get(pool)
        while floor is not None and any(left < 0 for left in floor.free(node).values()):
            expected = [
                s for s in self.stays[node] if not s.bound and s.pool == pool and not _settled(s)
            ]
            if not expected:
                return
            self._expect_anew(expected[-1])

    def _expect_anew(self, stay: Stay) -> None:
        self.leave(stay)
        floor = self._pools.floors.get(stay.pool)
        stay.node = _expected(floor, stay.demand, stay.only) if floor is not None else None
        self.resume(stay)

    def resume(self, stay: Stay) -> None:
        """Take a stay up again that was left."""
        add_to(self.used.setdefault(stay.pool, {}), stay.demand, 1)
        self._plans.clear()
        if stay.node is None:
            add_to(self._adrift.setdefault(stay.pool, {}), stay.demand, 1)
            return
        self.stays.setdefault(stay.node, {})[stay] = None
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
            return
        del self.stays[stay.node][stay]
        floor = self._pools.floors.get(stay.pool)
        if stay.slot is not None and floor is not None:
            floor.give(stay.slot)
        if stay.bound:
            self._pools.carry(stay.node, stay.demand, -1)

    def forget(self) -> None:
        """Start counting anew. Every stay is void."""
        for stays in self.stays.values():
            for stay in stays:
                floor = self._pools.floors.get(stay.pool)
                if floor is not None and stay.slot is not None:
                    floor.give(stay.slot)
        self.used.clear()
        self._adrift.clear()
        self.stays.clear()
        self._plans.clear()
        self._pools.forget_carried()

    @property
    def laid_out(self) -> tuple[int, int]:
        """Changes whenever pools or what their nodes offer changed."""
        return (self._pools.version, self._pools.resized)

    def fitting(self, shape: Shape) -> tuple[PoolName, ...]:
        """Return the pools where a workload fits now, the best packed first."""
        plans = ((pool, self.plan(shape, pool)) for pool in shape.pools)
        ranked = sorted((plan.cost, pool) for pool, plan in plans if plan is not None)
        return tuple(pool for _, pool in ranked)

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

    def open_nodes(self, pool: PoolName, only: Pin = None) -> list[NodeName]:
        """Return the ready nodes of a pool, or those of them that a pod may go to, by name."""
        return self._pools.open_nodes(pool, only)

    def free_on(self, pool: PoolName, node: NodeName) -> Amounts:
        """Return what is free on a node of a pool."""
        return self._pools.floors[pool].free(node)

    def free(self, pool: PoolName) -> dict[Resource, int]:
        """Return what is left of a pool as a whole."""
        used = self.used.get(pool, {})
        return {r: v - used.get(r, 0) for r, v in self._pools.capacity(pool).items()}

    def _find(self, shape: Shape, pool: PoolName, withheld: Withheld) -> Plan | None:
        floor = self._pools.floors.get(pool)
        if floor is None:
            return None
        if any(self._adrift.get(pool, {}).values()):
            # Released pods that no node has room for will want it as soon as there is some.
            free = self.free(pool)
            if any(v > free.get(r, 0) for r, v in shape.total.items()):
                return None
        return floor.find(shape.parts, withheld.rooms, shape.pins)


def _expected(floor: Nodes, demand: Amounts, only: Pin) -> NodeName | None:
    """Return the node that a released pod will go to; None: nobody can know."""
    plan = floor.find(((demand, 1),), pins=() if only is None else (only,))
    if plan is not None:
        return plan.nodes[0]
    return only[0] if only is not None and len(only) == 1 and floor.free(only[0]) else None


def _settled(stay: Stay) -> bool:
    """Tell whether a pod can be expected on no other node."""
    return stay.only is not None and len(stay.only) == 1
