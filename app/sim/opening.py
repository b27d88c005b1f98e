"""Where the work that was in place before the start is taken to run: first fit, as written.

Nothing is decided here that the engine decides: it only hears of this work when it runs already.
"""

from __future__ import annotations

from collections.abc import Iterable

from app.core.model import (
    DEFAULT_POOL,
    Amounts,
    Node,
    NodeName,
    Pool,
    PoolName,
    Resource,
    Tenant,
    TenantName,
)
from app.core.resources import fits
from app.sim.work import Work

Seat = tuple[PoolName, tuple[NodeName, ...]]
"""A pool, and a node of it for each pod."""


def offer(node: Node, pool: Pool) -> dict[Resource, int]:
    """Return what a ready node carries as a member of a pool."""
    return {r: int(v * pool.overcommit.get(r, 1)) for r, v in node.allocatable.items()}


def home(node: Node, pools: Iterable[Pool]) -> Pool | None:
    """Return the pool a node belongs to: of those that select it the first by name."""
    claims = [p for p in pools if p.selector.items() <= node.labels.items()]
    return min(claims, key=lambda pool: pool.name, default=None)


class Opening:
    """The room there is before anything is released, given away piece by piece."""

    def __init__(
        self, nodes: Iterable[Node], pools: Iterable[Pool], tenants: Iterable[Tenant]
    ) -> None:
        in_force = list(pools) or [Pool(DEFAULT_POOL)]
        self._allowed = {tenant.name: tenant.pools for tenant in tenants if tenant.pools}
        self._room: dict[PoolName, dict[NodeName, dict[Resource, int]]] = {}
        for pool in sorted(in_force, key=lambda pool: pool.name):
            self._room[pool.name] = {}
        for node in nodes:
            pool_of_node = home(node, in_force)
            if pool_of_node is not None and node.ready:
                self._room[pool_of_node.name][node.name] = offer(node, pool_of_node)

    def seat(self, work: Work) -> Seat | None:
        """Give a workload the first nodes of the first pool that have room; None if none has."""
        for pool in self._pools(work.tenant, work.pools):
            nodes = self._nodes(pool, work)
            if nodes is not None:
                return pool, nodes
        return None

    def _pools(self, tenant: TenantName, wanted: tuple[PoolName, ...]) -> list[PoolName]:
        allowed = self._allowed.get(tenant, ())
        return [
            name
            for name in self._room
            if (not wanted or name in wanted) and (not allowed or name in allowed)
        ]

    def _nodes(self, pool: PoolName, work: Work) -> tuple[NodeName, ...] | None:
        room = self._room[pool]
        chosen: list[NodeName] = []
        for name, free in room.items():
            while len(chosen) < work.pods and fits(work.demand, free):
                _take(free, work.demand, 1)
                chosen.append(name)
        if len(chosen) == work.pods:
            return tuple(chosen)
        for name in chosen:
            _take(room[name], work.demand, -1)
        return None


def _take(free: dict[Resource, int], demand: Amounts, sign: int) -> None:
    for resource, value in demand.items():
        free[resource] = free.get(resource, 0) - sign * value
