"""Route /me: the caller's own workloads, use and fair share. It needs no right."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain, islice

from fastapi import APIRouter, Depends

from app.core.explain.entitlements import Entitlement, Part
from app.core.explain.views import HeldView, ReleasedView
from app.core.model import TenantName, UserName
from app.ports.auth import Identity
from app.web.api.formatting import decimal, in_pools
from app.web.api.queues import waiting
from app.web.api.route_context import RouteContext
from app.web.api.schemas import Me, OwnTenant, OwnWorkload
from app.web.api.workloads import released_workload

MOST = 500
"""Most workloads in the answer."""

NO_PART = Part(0.0, 0.0)
NO_SHARE = Entitlement(0.0, 0.0, 0.0, None, {})


def me_routes(ground: RouteContext) -> APIRouter:
    """Return the route /me."""
    routes = APIRouter()
    caller = Depends(ground.access.caller)

    @routes.get("/me", summary="The caller's own workloads, use and fair share")
    async def me(identity: Identity = caller) -> Me:
        ground.need_sight()
        user = UserName(identity.name)
        tenants = ground.outlook.accounts(user)
        held = (view for name in tenants for _, view in ground.outlook.queue(name, user))
        views: Iterator[HeldView | ReleasedView] = chain(held, ground.outlook.released_of(user))
        workloads = [_own(view, ground) for view in islice(views, MOST)]
        owed = ground.outlook.owed() if tenants else {}
        return Me(
            name=user,
            tenants=[_tenant(name, user, owed.get(name, NO_SHARE), ground) for name in tenants],
            workloads=workloads,
            left_out=sum(1 for _ in views),
        )

    return routes


def _own(view: HeldView | ReleasedView, ground: RouteContext) -> OwnWorkload:
    if isinstance(view, HeldView):
        return OwnWorkload(**waiting(view, ground).model_dump(), tenant=view.tenant, state="held")
    return OwnWorkload(**released_workload(view).model_dump())


def _tenant(name: TenantName, user: UserName, owed: Entitlement, ground: RouteContext) -> OwnTenant:
    mine = next(each for each in ground.outlook.people(name) if each.name == user)
    part = owed.users.get(user, NO_PART)
    return OwnTenant(
        tenant=name,
        weight=decimal(mine.weight),
        used=round(part.used, 4),
        fair_share=round(part.owed, 4),
        tenant_used=round(owed.used, 4),
        tenant_fair_share=round(owed.owed, 4),
        amounts=in_pools(mine.used),
        pending=mine.pending,
    )
