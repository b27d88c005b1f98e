"""Pools, as they are configured and as they stand."""

from __future__ import annotations

from fastapi import APIRouter, Depends

from app.core.model import Pool
from app.ports import Identity
from app.web.api.ground import Ground
from app.web.api.shown import Shown
from app.web.api.texts import decimals


class PoolShown(Shown):
    """A Pool resource."""

    name: str
    node_selector: dict[str, str]
    weights: dict[str, str]
    overcommit: dict[str, str]
    placement: str
    paused: bool


class Pools(Shown):
    """Pools, by name."""

    items: list[PoolShown]


def pool_routes(ground: Ground) -> APIRouter:
    """Return the routes under /pools that read."""
    routes = APIRouter()
    access, view = ground.access, ground.view
    caller = Depends(access.caller)

    @routes.get("/pools", summary="Every pool")
    async def pools(identity: Identity = caller) -> Pools:
        await access.need(identity, "list", "pools")
        ground.need_sight()
        known = sorted(view.pools.values(), key=lambda pool: pool.name)
        return Pools(items=[_pool(each) for each in known])

    return routes


def _pool(pool: Pool) -> PoolShown:
    return PoolShown(
        name=pool.name,
        node_selector=dict(pool.selector),
        weights=decimals(pool.weights),
        overcommit=decimals(pool.overcommit),
        placement=pool.placement.value,
        paused=pool.paused,
    )
