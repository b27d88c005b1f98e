"""Route /me: the caller's own workloads, use and fair share. It needs no right."""

from __future__ import annotations

from itertools import chain, islice

from fastapi import APIRouter, Depends

from app.core.explain.entitlements import Entitlement, Part
from app.core.explain.views import HeldView, ReleasedView, UserView
from app.core.model import TenantName, UserName
from app.ports.auth import Identity
from app.web.api.fair_shares import FairShares
from app.web.api.formatting import decimal, in_pools
from app.web.api.queues import waiting
from app.web.api.route_context import RouteContext
from app.web.api.schemas import Me, OwnTenant, OwnWorkload
from app.web.api.workloads import released_workload

MOST = 200
"""Most held workloads in the answer. Each one costs the evaluation of its wait reason."""

MOST_RELEASED = 1000

NO_PART = Part(0.0, 0.0)


def add_me_routes(routes: APIRouter, context: RouteContext, shares: FairShares) -> None:
    """Add the route /me."""
    caller = Depends(context.access.caller)

    @routes.get("/me", summary="The caller's own workloads, use and fair share")
    async def me(identity: Identity = caller) -> Me:
        context.need_synced_state()
        user = UserName(identity.name)
        tenants = context.queries.accounts(user)
        queues = (context.queries.queue(name, user) for name in tenants)
        held = list(islice(chain.from_iterable(queues), MOST))
        released = context.queries.released_of(user)
        shown = released[:MOST_RELEASED]
        views = (context.queries.released(uid) for uid in shown)
        own = [_tenant(name, mine, shares.of(name)) for name, mine in tenants.items()]
        pending = sum(each.pending for each in own)
        return Me(
            name=user,
            tenants=own,
            workloads=[_own(view, context) for view in (*held, *views) if view is not None],
            left_out=max(0, pending - sum(view.pods for view in held)) + len(released) - len(shown),
        )


def _own(view: HeldView | ReleasedView, context: RouteContext) -> OwnWorkload:
    if isinstance(view, HeldView):
        return OwnWorkload(**waiting(view, context), tenant=view.tenant, state="held")
    return OwnWorkload(**released_workload(view))


def _tenant(name: TenantName, mine: UserView, owed: Entitlement) -> OwnTenant:
    part = owed.users.get(mine.name, NO_PART)
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
