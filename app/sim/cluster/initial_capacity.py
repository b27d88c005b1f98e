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
from app.core.quantities import ManagedResources, max_amounts
from app.sim.cluster.workload import SimulatedWorkload

Seat = tuple[PoolName, tuple[NodeName, ...]]
"""A pool, and a node for each pod."""


def settle_pools(nodes: Iterable[Node], pools: Iterable[Pool]) -> Pools:
    """Return the pools as the engine sees them, each with its nodes."""
    room = Pools(ManagedResources(()))
    for pool in pools:
        room.put_pool(pool)
    for node in nodes:
        room.put_node(node)
    room.rebuild_if_stale()
    return room


class InitialCapacity:
    """Free capacity before the first release, reduced by each `place` call."""

    def __init__(
        self, nodes: Iterable[Node], pools: Iterable[Pool], tenants: Iterable[Tenant]
    ) -> None:
        self._allowed = {tenant.name: tenant.pools for tenant in tenants if tenant.pools}
        self._capacity = settle_pools(nodes, pools)

    def place(self, work: SimulatedWorkload) -> Seat | None:
        """Place a workload in the first pool by name that has capacity; None if no pool has."""
        seat = self._find_nodes(work)
        if seat is not None:
            pool, nodes = seat
            for node in nodes:
                self._capacity.nodes_by_pool[pool].allocate(node, work.demand)
        return seat

    def has_capacity(self, work: SimulatedWorkload) -> bool:
        """Return whether some pool has capacity for a workload. Takes no capacity."""
        return self._find_nodes(work) is not None

    def max_pods(self, work: SimulatedWorkload) -> int:
        """Return the largest number of the workload's pods that fit together."""
        fewer = range(1, work.pods + 1)
        return bisect_left(fewer, True, key=lambda n: not self.has_capacity(replace(work, pods=n)))

    def largest_free(self, work: SimulatedWorkload) -> Amounts:
        """Return the largest free amount of each resource on one node that a workload may use."""
        most: dict[Resource, int] = {}
        for pool in self._usable_pools(work):
            for node in self._capacity.ready_nodes(pool):
                most = max_amounts(most, self._capacity.nodes_by_pool[pool].free(node))
        return most

    def _find_nodes(self, work: SimulatedWorkload) -> Seat | None:
        for pool in self._usable_pools(work):
            plan = self._capacity.nodes_by_pool[pool].find_assignment(((work.demand, work.pods),))
            if plan is not None:
                return pool, tuple(node for node in plan.nodes if node is not None)
        return None

    def _usable_pools(self, work: SimulatedWorkload) -> list[PoolName]:
        allowed = self._allowed.get(work.tenant, ())
        return [
            name
            for name in sorted(self._capacity.pools)
            if (not work.pools or name in work.pools) and (not allowed or name in allowed)
        ]
