"""Pools and their nodes, as they are configured and as they stand."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Depends, Response

from app.core.asks import terms
from app.core.model import Pool, PoolName
from app.core.telling.views import NodeView, PoolView
from app.ports import Identity
from app.web.api import examples
from app.web.api.ground import Ground
from app.web.api.paging import Limit, More, part
from app.web.api.paths import PoolPath
from app.web.api.shown import NodeShown, Page, PoolShown, PoolWhole, Toleration
from app.web.api.tenants import tag
from app.web.api.texts import decimals, quantities, size
from app.web.problems import Refused


def pool_routes(ground: Ground) -> APIRouter:
    """Return the routes under /pools that read."""
    routes = APIRouter()
    access = ground.access
    caller = Depends(access.caller)

    @routes.get("/pools", summary="Every pool, by name", responses=examples.POOLS)
    async def pools(
        limit: Limit = 100, more: More = None, identity: Identity = caller
    ) -> Page[PoolShown]:
        await access.need(identity, "list", "pools")
        ground.need_sight()
        stands = ground.outlook.view().pools
        names, rest = part(sorted(stands), limit, more, lambda name: (str(name),))
        return Page[PoolShown](items=[pool_shown(ground, each) for each in names], more=rest)

    @routes.get("/pools/{pool}", summary="One pool, and each of its nodes", responses=examples.POOL)
    async def one(pool: PoolPath, response: Response, identity: Identity = caller) -> PoolWhole:
        await access.need(identity, "get", "pools", name=pool)
        ground.need_sight()
        name = PoolName(pool)
        if name not in ground.outlook.view().pools:
            raise Refused(404, f"There is no pool {pool}; GET /v1/pools lists them.")
        tag(response, ground.view.pools.get(name))
        return pool_whole(ground, name)

    return routes


def pool_shown(ground: Ground, name: PoolName) -> PoolShown:
    """Return a pool as the API shows it."""
    return PoolShown(**_fields(ground, name))


def pool_whole(ground: Ground, name: PoolName) -> PoolWhole:
    """Return a pool and its nodes as the API shows them."""
    members = [_node(each) for each in ground.outlook.nodes(name)]
    return PoolWhole(**_fields(ground, name), members=members)


def _fields(ground: Ground, name: PoolName) -> dict[str, Any]:
    stands = ground.outlook.view().pools[name]
    pool = ground.view.pools.get(name, Pool(name))
    return {
        "name": name,
        "exists": stands.exists,
        "node_selector": dict(pool.selector),
        "weights": decimals(pool.weights),
        "overcommit": decimals(pool.overcommit),
        "placement": pool.placement.value,
        "tolerations": [_toleration(each) for each in pool.tolerations],
        "topology": list(pool.topology),
        "paused": pool.paused,
        "gpu_memory": None if pool.gpu_memory is None else size(pool.gpu_memory),
        "max_capacity": quantities(pool.max_capacity),
        "capacity": quantities(stands.capacity),
        "used": quantities({r: stands.used.get(r, 0) for r in {**stands.capacity, **stands.used}}),
        "free": quantities(_free(stands)),
        "nodes": ground.outlook.ready_nodes(name),
    }


def _toleration(told: terms.Toleration) -> Toleration:
    return Toleration(
        key=told.key or None,
        operator=told.operator,
        value=told.value or None,
        effect=told.effect or None,
        toleration_seconds=told.seconds,
    )


def _free(stands: PoolView) -> dict[Any, int]:
    return {r: max(0, v - stands.used.get(r, 0)) for r, v in stands.capacity.items()}


def _node(node: NodeView) -> NodeShown:
    return NodeShown(
        name=node.name,
        ready=node.ready,
        capacity=quantities(node.capacity),
        used=quantities({r: node.used.get(r, 0) for r in {**node.capacity, **node.used}}),
    )
