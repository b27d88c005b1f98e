"""Route /search: finds tenants, users, jobs, pods, namespaces and nodes by a part of their name."""

from __future__ import annotations

import asyncio
from typing import Annotated

from fastapi import APIRouter, Depends, Query

from app.core.explain.search import Search
from app.ports.auth import Identity
from app.web.api.route_context import LONGEST_NAME, RouteContext
from app.web.api.schemas import HitShown, SearchModel
from app.web.api.visible_state import VisibleStates


def add_search_routes(routes: APIRouter, context: RouteContext, visible: VisibleStates) -> None:
    """Add the route /search."""
    caller = Depends(context.access.authenticate_request)
    turn = asyncio.Semaphore(1)

    @routes.get("/search", summary="Find tenants, users, jobs, pods, namespaces and nodes")
    async def search(
        q: Annotated[
            str, Query(min_length=1, max_length=LONGEST_NAME, description="Part of a name.")
        ],
        limit: Annotated[int, Query(ge=1, le=50, description="Most objects of each kind.")] = 8,
        identity: Identity = caller,
    ) -> SearchModel:
        context.require_synced_state()
        rights = await visible.rights_of(identity)
        found = Search(
            q,
            rights.may_see_tenant,
            lambda tenant, user: user == identity.name or rights.may_see_queue(tenant),
            limit,
        )
        async with turn:
            for _ in context.queries.search(found, rights.pools):
                await asyncio.sleep(0)  # other requests go on between two portions
        return SearchModel(
            items=[
                HitShown(
                    kind=hit.kind.value,
                    name=hit.name,
                    namespace=hit.namespace,
                    tenant=hit.tenant,
                    user=hit.user,
                )
                for hit in found.hits()
            ]
        )
