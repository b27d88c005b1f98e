"""Routes /pools: configuration and current state of pools and their nodes."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Depends, Response

from app.core.explain.views import NodeView, PoolView
from app.core.model import Pool, PoolName
from app.core.podspec import constraints
from app.ports.auth import Identity
from app.web.api import examples
from app.web.api.formatting import decimals, format_bytes, quantities
from app.web.api.pagination import Limit, More, slice_page
from app.web.api.refused import Refused
from app.web.api.route_context import PoolPath, RouteContext
from app.web.api.schemas import (
    NodeShown,
    PageModel,
    PoolShown,
    PoolWhole,
    TolerationModel,
)
from app.web.api.tenants import set_etag


def add_pool_routes(routes: APIRouter, context: RouteContext) -> None:
    """Add the routes under /pools that read."""
    access = context.access
    caller = Depends(access.authenticate_request)

    @routes.get("/pools", summary="Every pool, by name", responses=examples.POOLS)
    async def pools(
        limit: Limit = 100, more: More = None, identity: Identity = caller
    ) -> PageModel[PoolShown]:
        await access.require(identity, "list", "pools")
        context.require_synced_state()
        stands = context.queries.view().pools
        names, rest = slice_page(sorted(stands), limit, more, lambda name: (str(name),))
        return PageModel[PoolShown](items=[pool_model(context, each) for each in names], more=rest)

    @routes.get("/pools/{pool}", summary="One pool, and each of its nodes", responses=examples.POOL)
    async def one(pool: PoolPath, response: Response, identity: Identity = caller) -> PoolWhole:
        await access.require(identity, "get", "pools", name=pool)
        context.require_synced_state()
        name = PoolName(pool)
        if name not in context.queries.view().pools:
            raise Refused(404, f"There is no pool {pool}; kubectl fairgate pools lists them.")
        set_etag(response, context.view.pools.get(name))
        return pool_with_nodes_model(context, name)


def pool_model(context: RouteContext, name: PoolName) -> PoolShown:
    """Return the response model of a pool."""
    return PoolShown(**_fields(context, name))


def pool_with_nodes_model(context: RouteContext, name: PoolName) -> PoolWhole:
    """Return the response model of a pool with its nodes."""
    members = [_node(each) for each in context.queries.nodes(name)]
    return PoolWhole(**_fields(context, name), members=members)


def _fields(context: RouteContext, name: PoolName) -> dict[str, Any]:
    stands = context.queries.view().pools[name]
    pool = context.view.pools.get(name, Pool(name))
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
        "gpu_memory": None if pool.gpu_memory is None else format_bytes(pool.gpu_memory),
        "max_capacity": quantities(pool.max_capacity),
        "capacity": quantities(stands.capacity),
        "used": quantities({r: stands.used.get(r, 0) for r in {**stands.capacity, **stands.used}}),
        "free": quantities(_free(stands)),
        "nodes": context.queries.ready_nodes(name),
    }


def _toleration(toleration: constraints.Toleration) -> TolerationModel:
    return TolerationModel(
        key=toleration.key or None,
        operator=toleration.operator,
        value=toleration.value or None,
        effect=toleration.effect or None,
        toleration_seconds=toleration.seconds,
    )


def _free(stands: PoolView) -> dict[Any, int]:
    return {r: max(0, v - stands.used.get(r, 0)) for r, v in stands.capacity.items()}


def _node(node: NodeView) -> NodeShown:
    return NodeShown(
        name=node.name,
        ready=node.ready,
        cordoned=node.cordoned,
        domain=node.domain,
        capacity=quantities(node.capacity),
        used=quantities({r: node.used.get(r, 0) for r in {**node.capacity, **node.used}}),
    )
