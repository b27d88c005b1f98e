"""The room a cluster has before anything is released, counted by the engine's own pools.

Nothing is decided here: work in place sits where those pools would put it, and the engine only
hears that it runs.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable
from dataclasses import replace

from app.core.model import Amounts, Node, NodeName, Pool, PoolName, Resource, Tenant
from app.core.places.pools import Pools
from app.core.resources import ManagedResources, largest
from app.sim.work import Work

Seat = tuple[PoolName, tuple[NodeName, ...]]
"""A pool, and a node of it for each pod."""


def settled(nodes: Iterable[Node], pools: Iterable[Pool]) -> Pools:
    """Return the pools as the engine sees them, each with its nodes."""
    room = Pools(ManagedResources(()))
    for pool in pools:
        room.put_pool(pool)
    for node in nodes:
        room.put_node(node)
    room.settle()
    return room


class Opening:
    """The room there is before anything is released, given away piece by piece."""

    def __init__(
        self, nodes: Iterable[Node], pools: Iterable[Pool], tenants: Iterable[Tenant]
    ) -> None:
        self._allowed = {tenant.name: tenant.pools for tenant in tenants if tenant.pools}
        self._room = settled(nodes, pools)

    def seat(self, work: Work) -> Seat | None:
        """Give a workload nodes of the first pool, by name, that has room; None if none has."""
        seat = self._find(work)
        if seat is not None:
            pool, nodes = seat
            for node in nodes:
                self._room.floors[pool].take(node, work.demand)
        return seat

    def holds(self, work: Work) -> bool:
        """Tell whether some pool has room for a workload. Gives nothing away."""
        return self._find(work) is not None

    def most(self, work: Work) -> int:
        """Return how many pods of a workload there is room for, of those it has."""
        fewer = range(1, work.pods + 1)
        return bisect_left(fewer, True, key=lambda n: not self.holds(replace(work, pods=n)))

    def largest(self, work: Work) -> Amounts:
        """Return the most of each resource that any one node has free for a workload."""
        most: dict[Resource, int] = {}
        for pool in self._pools(work):
            for node in self._room.open_nodes(pool):
                most = largest(most, self._room.floors[pool].free(node))
        return most

    def _find(self, work: Work) -> Seat | None:
        for pool in self._pools(work):
            plan = self._room.floors[pool].find(((work.demand, work.pods),))
            if plan is not None:
                return pool, tuple(node for node in plan.nodes if node is not None)
        return None

    def _pools(self, work: Work) -> list[PoolName]:
        allowed = self._allowed.get(work.tenant, ())
        return [
            name
            for name in sorted(self._room.pools)
            if (not work.pools or name in work.pools) and (not allowed or name in allowed)
        ]
