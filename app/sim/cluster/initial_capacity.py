"""Initial capacity of a cluster, counted by the engine's own `Pools`.

Workloads that run at the start get the nodes that those pools choose. The engine only observes
that they run.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable
from dataclasses import replace

from app.core.model import Amounts, Node, NodeName, Pool, PoolName, Resource, Tenant
from app.core.placement.pools import Pools
from app.core.quantities import ManagedResources, largest
from app.sim.cluster.workload import SimulatedWorkload

Seat = tuple[PoolName, tuple[NodeName, ...]]
"""A pool, and a node for each pod."""


def settled(nodes: Iterable[Node], pools: Iterable[Pool]) -> Pools:
    """Return the pools as the engine sees them, each with its nodes."""
    room = Pools(ManagedResources(()))
    for pool in pools:
        room.put_pool(pool)
    for node in nodes:
        room.put_node(node)
    room.settle()
    return room


class InitialCapacity:
    """Free capacity before the first release, reduced by each `seat` call."""

    def __init__(
        self, nodes: Iterable[Node], pools: Iterable[Pool], tenants: Iterable[Tenant]
    ) -> None:
        self._allowed = {tenant.name: tenant.pools for tenant in tenants if tenant.pools}
        self._room = settled(nodes, pools)

    def seat(self, work: SimulatedWorkload) -> Seat | None:
        """Place a workload in the first pool by name that has capacity; None if no pool has."""
        seat = self._find(work)
        if seat is not None:
            pool, nodes = seat
            for node in nodes:
                self._room.floors[pool].allocate(node, work.demand)
        return seat

    def holds(self, work: SimulatedWorkload) -> bool:
        """Return whether some pool has capacity for a workload. Takes no capacity."""
        return self._find(work) is not None

    def most(self, work: SimulatedWorkload) -> int:
        """Return the largest number of the workload's pods that fit together."""
        fewer = range(1, work.pods + 1)
        return bisect_left(fewer, True, key=lambda n: not self.holds(replace(work, pods=n)))

    def largest(self, work: SimulatedWorkload) -> Amounts:
        """Return the largest free amount of each resource on one node that a workload may use."""
        most: dict[Resource, int] = {}
        for pool in self._pools(work):
            for node in self._room.open_nodes(pool):
                most = largest(most, self._room.floors[pool].free(node))
        return most

    def _find(self, work: SimulatedWorkload) -> Seat | None:
        for pool in self._pools(work):
            plan = self._room.floors[pool].find(((work.demand, work.pods),))
            if plan is not None:
                return pool, tuple(node for node in plan.nodes if node is not None)
        return None

    def _pools(self, work: SimulatedWorkload) -> list[PoolName]:
        allowed = self._allowed.get(work.tenant, ())
        return [
            name
            for name in sorted(self._room.pools)
            if (not work.pools or name in work.pools) and (not allowed or name in allowed)
        ]
