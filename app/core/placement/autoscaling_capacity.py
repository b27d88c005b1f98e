"""Capacity that a pool could still get from an autoscaler (`maxCapacity`).

Plans workloads that wait for new nodes. Allocates nothing.
"""

from __future__ import annotations

from collections.abc import Mapping

from app.core.model import Amounts, NodeName, PoolName
from app.core.placement.assignment import Assignment
from app.core.placement.autoscaling_backoff import AutoscalingAccount
from app.core.placement.node_scoring import ZERO_COST
from app.core.placement.pool_nodes import PoolNodes
from app.core.placement.pools import Pools, add_to
from app.core.podspec.equivalence_class import EquivalenceClass, Parts, Pins

AmountsByNode = Mapping[NodeName, Amounts]

FUTURE_NODE = NodeName("")
"""Key of reserved capacity on nodes that are not provisioned yet. No node has this name."""


class AutoscalingCapacity:
    """The maximum capacity of each pool, and the use of its future nodes."""

    def __init__(self, pools: Pools) -> None:
        self._pools = pools

    def declared_max_capacity(self, pool: PoolName) -> Amounts:
        """Return the maximum capacity by resource. Empty: the pool does not grow."""
        known = self._pools.pools.get(pool)
        return known.max_capacity if known is not None else {}

    def could_hold(self, shape: EquivalenceClass, pool: PoolName) -> bool:
        """Return whether a workload fits into a pool at its maximum size."""
        return self._could_fit_each_pod(shape, pool) and self.fits_at_max_size(shape, pool, {}, {})

    def could_provide(self, pool: PoolName, amounts: Amounts) -> bool:
        """Return whether the future nodes of a pool could offer these amounts."""
        most, there = self.declared_max_capacity(pool), self._pools.capacity(pool)
        grown = [(v, most[r] - there.get(r, 0)) for r, v in amounts.items() if r in most]
        return all(value <= left for value, left in grown)

    def is_scale_up_reliable(self, pool: PoolName, account: AutoscalingAccount) -> bool:
        """Return whether no backoff makes new nodes for a user doubtful."""
        growth = self._pools.autoscaling_backoff
        return not growth.is_limited_to_one(pool) and growth.barred_until(pool, account) is None

    def find_assignment(
        self,
        shape: EquivalenceClass,
        pool: PoolName,
        used: Amounts,
        adrift: Amounts,
        withheld: AmountsByNode,
        pins: Pins,
    ) -> Assignment | None:
        """Return a plan in which as few pods as possible wait for new nodes, or None.

        `used`: the amounts used by released pods. `adrift`: the part of `used` without a node.
        `withheld`: reserved capacity. `pins`: the allowed nodes of each part.
        """
        if pool in self._pools.autoscaling_backoff.closed_pools or not self._could_fit_each_pod(
            shape, pool
        ):
            return None
        if not self.fits_at_max_size(shape, pool, used, withheld):
            return None
        there = _fill_existing_nodes(
            shape.request_counts, self._pools.nodes_by_pool[pool], withheld, pins
        )
        waits = dict(adrift)
        add_to(waits, withheld.get(FUTURE_NODE, {}), 1)
        for (demand, count), nodes in zip(shape.request_counts, there, strict=True):
            add_to(waits, {r: v * (count - len(nodes)) for r, v in demand.items()}, 1)
        capacity = self._pools.capacity(pool)
        for resource, most in self.declared_max_capacity(pool).items():
            if resource in shape.total and waits[resource] > most - capacity.get(resource, 0):
                return None  # new nodes cannot make up for scattered free capacity
        chosen: list[NodeName | None] = []
        for (_, count), nodes in zip(shape.request_counts, there, strict=True):
            chosen += [*nodes, *([None] * (count - len(nodes)))]
        return Assignment(tuple(chosen), ZERO_COST)

    def fits_at_max_size(
        self, shape: EquivalenceClass, pool: PoolName, used: Amounts, withheld: AmountsByNode
    ) -> bool:
        """Return whether a workload fits next to used and reserved capacity at the maximum size."""
        taken = dict(used)
        for node, amounts in withheld.items():
            # Capacity in use there is already in `used`, and goes to the reservation when freed.
            free = amounts if node == FUTURE_NODE else self._pools.nodes_by_pool[pool].free(node)
            add_to(taken, {r: min(v, max(0, free.get(r, 0))) for r, v in amounts.items()}, 1)
        extent = self._pools.max_capacity(pool)
        return all(
            value + taken.get(r, 0) <= extent[r]
            for r, value in shape.total.items()
            if r in self.declared_max_capacity(pool)
        )

    def _could_fit_each_pod(self, shape: EquivalenceClass, pool: PoolName) -> bool:
        """Return whether a node like those of a growing pool could carry each pod."""
        most = self.declared_max_capacity(pool)
        managed = [r for r in shape.total if self._pools.is_managed(r)]
        # A future node has no known domain, peers or name. Its only known labels are those in the
        # selector of the pool.
        bound = (
            shape.layout.required_topology_label
            or shape.distance_rules
            or any(p is not None for p in shape.node_sets)
        )
        if not managed or bound or any(r not in most for r in managed):
            return False
        selector = self._pools.pools[pool].selector
        if not all(terms.matches_node("", selector) for terms in shape.node_constraints):
            return False
        return all(
            self._pools.hardware.could_fit_on_node(pool, demand)
            for demand, _ in shape.request_counts
        )


def _fill_existing_nodes(
    parts: Parts, floor: PoolNodes, withheld: AmountsByNode, pins: Pins
) -> list[tuple[NodeName | None, ...]]:
    """Return existing nodes for as many pods of each part as possible."""
    counts: list[int] = []
    plan: Assignment | None = None
    alone = sum(count for _, count in parts) == 1
    for demand, count in parts:
        taken = [i for i, n in enumerate(counts) if n]
        before = tuple((parts[i][0], counts[i]) for i in taken)
        allowed = tuple(pins[i] for i in (*taken, len(counts))) if pins else ()
        low, high = 0, 0 if alone else count
        while low < high:
            middle = (low + high + 1) // 2
            found = floor.find_assignment((*before, (demand, middle)), withheld, allowed)
            low, high, plan = (middle, high, found) if found else (low, middle - 1, plan)
        counts.append(low)
    nodes = iter(plan.nodes if plan is not None else ())
    return [tuple(next(nodes) for _ in range(count)) for count in counts]
