"""Room that a pool does not have yet: what its new nodes could carry, where it grows on demand.

Says where a workload would go if pods of it waited for new nodes. Takes nothing.
"""

from __future__ import annotations

from collections.abc import Mapping

from app.core.asks.shape import Parts, Pins, Shape
from app.core.model import Amounts, NodeName, PoolName
from app.core.places.growth import Account
from app.core.places.nodes import Nodes
from app.core.places.plans import Plan
from app.core.places.pools import Pools, add_to
from app.core.places.ranking import FREE

Rooms = Mapping[NodeName, Amounts]

TO_COME = NodeName("")
"""Stands, where room is kept, for the nodes that are to come. No node is named so."""


class Beyond:
    """What each pool may come to offer, and what its new nodes could be given."""

    def __init__(self, pools: Pools) -> None:
        self._pools = pools

    def most(self, pool: PoolName) -> Amounts:
        """Return what a pool may come to offer of the resources it grows in; empty: it does not."""
        known = self._pools.pools.get(pool)
        return known.max_capacity if known is not None else {}

    def could_hold(self, shape: Shape, pool: PoolName) -> bool:
        """Tell whether a workload fits into a pool that has grown as far as it does."""
        return self._carries(shape, pool) and self.spares(shape, pool, {}, {})

    def could_bring(self, pool: PoolName, amounts: Amounts) -> bool:
        """Tell whether the nodes to come of a pool could offer so much, were it all left."""
        most, there = self.most(pool), self._pools.capacity(pool)
        grown = [(v, most[r] - there.get(r, 0)) for r, v in amounts.items() if r in most]
        return all(value <= left for value, left in grown)

    def is_sure(self, pool: PoolName, account: Account) -> bool:
        """Tell whether nothing speaks against nodes coming for work of a user."""
        growth = self._pools.growth
        return not growth.is_wary(pool) and growth.barred(pool, account) is None

    def find(
        self,
        shape: Shape,
        pool: PoolName,
        used: Amounts,
        adrift: Amounts,
        withheld: Rooms,
        pins: Pins,
    ) -> Plan | None:
        """Return a plan in which pods wait for new nodes, as few as can be; None: there is none.

        `used` is what released pods take of the pool, `adrift` what those of them that have no
        node yet, `withheld` room to leave alone, `pins` the nodes that each part may go to.
        """
        if pool in self._pools.growth.closed or not self._carries(shape, pool):
            return None
        if not self.spares(shape, pool, used, withheld):
            return None
        there = _there(shape.parts, self._pools.floors[pool], withheld, pins)
        waits = dict(adrift)
        add_to(waits, withheld.get(TO_COME, {}), 1)
        for (demand, count), nodes in zip(shape.parts, there, strict=True):
            add_to(waits, {r: v * (count - len(nodes)) for r, v in demand.items()}, 1)
        capacity = self._pools.capacity(pool)
        for resource, most in self.most(pool).items():
            if resource in shape.total and waits[resource] > most - capacity.get(resource, 0):
                return None  # what is free on its nodes is scattered: new ones cannot make up
        chosen: list[NodeName | None] = []
        for (_, count), nodes in zip(shape.parts, there, strict=True):
            chosen += [*nodes, *([None] * (count - len(nodes)))]
        return Plan(tuple(chosen), FREE)

    def spares(self, shape: Shape, pool: PoolName, used: Amounts, withheld: Rooms) -> bool:
        """Tell whether all of a workload fits beside what is taken, however the pool grows."""
        taken = dict(used)
        for node, amounts in withheld.items():
            # What is in use there still is in `used` already, and goes to those it is kept for.
            free = amounts if node == TO_COME else self._pools.floors[pool].free(node)
            add_to(taken, {r: min(v, max(0, free.get(r, 0))) for r, v in amounts.items()}, 1)
        extent = self._pools.extent(pool)
        return all(
            value + taken.get(r, 0) <= extent[r]
            for r, value in shape.total.items()
            if r in self.most(pool)
        )

    def _carries(self, shape: Shape, pool: PoolName) -> bool:
        """Tell whether nodes like those of a pool could carry each pod, and it grows in that."""
        most = self.most(pool)
        managed = [r for r in shape.total if self._pools.manages(r)]
        # What is not there yet is in no domain, keeps no distance, and is no node of a name; of
        # its labels only those are known that the pool selects by.
        bound = shape.manner.confined or shape.spacings or any(p is not None for p in shape.pins)
        if not managed or bound or any(r not in most for r in managed):
            return False
        selector = self._pools.pools[pool].selector
        if not all(terms.suits("", selector) for terms in shape.terms):
            return False
        return all(self._pools.makes.could_carry(pool, demand) for demand, _ in shape.parts)


def _there(
    parts: Parts, floor: Nodes, withheld: Rooms, pins: Pins
) -> list[tuple[NodeName | None, ...]]:
    """Return, for each part of a workload, nodes that are there already for as many as can be."""
    counts: list[int] = []
    plan: Plan | None = None
    alone = sum(count for _, count in parts) == 1
    for demand, count in parts:
        taken = [i for i, n in enumerate(counts) if n]
        before = tuple((parts[i][0], counts[i]) for i in taken)
        allowed = tuple(pins[i] for i in (*taken, len(counts))) if pins else ()
        low, high = 0, 0 if alone else count
        while low < high:
            middle = (low + high + 1) // 2
            found = floor.find((*before, (demand, middle)), withheld, allowed)
            low, high, plan = (middle, high, found) if found else (low, middle - 1, plan)
        counts.append(low)
    nodes = iter(plan.nodes if plan is not None else ())
    return [tuple(next(nodes) for _ in range(count)) for count in counts]
