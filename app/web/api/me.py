"""Route /me: the caller's own workloads, use and fair share. It needs no right."""

from __future__ import annotations

from itertools import chain, islice

from fastapi import APIRouter, Depends

from app.core.explain.entitlements import ClusterShare, Entitlement
from app.core.explain.views import HeldView, ReleasedView, UserView
from app.core.model import TenantName, UserName
from app.ports.auth import Identity
from app.web.api.fair_shares import FairShares
from app.web.api.formatting import decimal, quantities_by_pool
from app.web.api.queues import held_workload
from app.web.api.route_context import RouteContext
from app.web.api.schemas import Me, OwnTenant, OwnWorkload
from app.web.api.workloads import released_workload

MOST_WORKLOADS = 200
"""Most held workloads in the answer. Each one costs the evaluation of its wait reason."""

MOST_RELEASED = 1000

NO_USER_SHARE = ClusterShare(0.0, 0.0)


def add_me_routes(routes: APIRouter, context: RouteContext, shares: FairShares) -> None:
    """Add the route /me."""
    caller = Depends(context.access.authenticate_request)

    @routes.get("/me", summary="The caller's own workloads, use and fair share")
    async def me(identity: Identity = caller) -> Me:
        context.require_synced_state()
        user = UserName(identity.name)
        tenants = context.queries.tenants_of_user(user)
        queues = (context.queries.waiting_workloads(name, user) for name in tenants)
        held = list(islice(chain.from_iterable(queues), MOST_WORKLOADS))
        released = context.queries.released_pods_of(user)
        shown = released[:MOST_RELEASED]
        views = (context.queries.released_view(uid) for uid in shown)
        own = [_tenant(name, mine, shares.shares_of(name)) for name, mine in tenants.items()]
        pending = sum(each.pending for each in own)
        return Me(
            name=user,
            tenants=own,
            workloads=[
                _own_workload(view, context) for view in (*held, *views) if view is not None
            ],
            left_out=max(0, pending - sum(view.pods for view in held)) + len(released) - len(shown),
        )


def _own_workload(view: HeldView | ReleasedView, context: RouteContext) -> OwnWorkload:
    if isinstance(view, HeldView):
        return OwnWorkload(**held_workload(view, context), tenant=view.tenant, state="held")
    return OwnWorkload(**released_workload(view))


def _tenant(name: TenantName, mine: UserView, owed: Entitlement) -> OwnTenant:
    part = owed.users.get(mine.name, NO_USER_SHARE)
    return OwnTenant(
        tenant=name,
        weight=decimal(mine.weight),
        used=round(part.used_share, 4),
        fair_share=round(part.fair_share, 4),
        tenant_used=round(owed.used_share, 4),
        tenant_fair_share=round(owed.fair_share, 4),
        amounts=quantities_by_pool(mine.used),
        pending=mine.pending,
    )
