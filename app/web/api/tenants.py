"""Routes /tenants: configuration and current state of tenants and their users."""

from __future__ import annotations

from fractions import Fraction

from fastapi import APIRouter, Depends, Response

from app.core.explain.entitlements import ClusterShare
from app.core.explain.views import TenantView, UserView
from app.core.model import Millis, Pool, PoolName, Resource, Tenant, TenantName, UserName
from app.ports.auth import Identity
from app.web.api import examples
from app.web.api.fair_shares import FairShares
from app.web.api.formatting import decimal, format_share, quantities, quantities_by_pool
from app.web.api.pagination import Limit, More, slice_page
from app.web.api.route_context import RouteContext, TenantPath
from app.web.api.schemas import (
    PageModel,
    QuotaSpec,
    TenantShown,
    UserShown,
    UserWeight,
)

ABSENT_TENANT = TenantView(
    parent=None,
    weight=Fraction(1),
    share=Fraction(0),
    used={},
    borrowed={},
    history=0.0,
    pending=0,
    generation=0,
    disputed_namespaces=(),
    parent_fault="",
    paused=False,
    exists=False,
)
"""State of a tenant without pods and without a Tenant resource."""


def add_tenant_routes(routes: APIRouter, context: RouteContext, shares: FairShares) -> None:
    """Add the routes under /tenants that read, except queues."""
    access = context.access
    # No annotated alias: FastAPI evaluates annotations without local names.
    caller = Depends(access.authenticate_request)

    @routes.get("/tenants", summary="Every tenant, by name", responses=examples.TENANTS)
    async def tenants(
        limit: Limit = 100, more: More = None, identity: Identity = caller
    ) -> PageModel[TenantShown]:
        await access.require(identity, "list", "tenants")
        context.require_synced_state()
        known = {**context.view.tenancy.tenants, **context.queries.view().tenants}
        names, rest = slice_page(sorted(known), limit, more, lambda name: (str(name),))
        return PageModel[TenantShown](
            items=[_with_fair_share(tenant_model(context, each), shares) for each in names],
            more=rest,
        )

    @routes.get(
        "/tenants/{tenant}",
        summary="One tenant: configuration and present state",
        responses=examples.TENANT,
    )
    async def one(
        tenant: TenantPath, response: Response, identity: Identity = caller
    ) -> TenantShown:
        await access.require(identity, "get", "tenants", name=tenant)
        name = context.require_tenant(tenant)
        context.require_synced_state()
        set_etag(response, context.view.tenancy.tenants.get(name))
        return _with_fair_share(tenant_model(context, name), shares)

    @routes.get(
        "/tenants/{tenant}/users",
        summary="A tenant's users: weights, use and pending",
        responses=examples.USERS,
    )
    async def users(
        tenant: TenantPath, limit: Limit = 100, more: More = None, identity: Identity = caller
    ) -> PageModel[UserShown]:
        await access.require(identity, "get", "tenants", "queue", tenant)
        people = await _people(context, context.require_tenant(tenant))
        those, rest = slice_page(people, limit, more, lambda each: (str(each.name),))
        parts = shares.shares_of(TenantName(tenant)).users if context.is_synced() else {}
        items = [_with_share(user_model(each), parts.get(each.name)) for each in those]
        return PageModel[UserShown](items=items, more=rest)


def _with_fair_share(shown: TenantShown, shares: FairShares) -> TenantShown:
    shown.fair_share = f"{shares.shares_of(TenantName(shown.name)).fair_share:.4f}"
    return shown


def _with_share(shown: UserShown, found: ClusterShare | None) -> UserShown:
    if found is not None:
        shown.share, shown.fair_share = f"{found.used_share:.4f}", f"{found.fair_share:.4f}"
    return shown


async def _people(context: RouteContext, name: TenantName) -> list[UserView]:
    """Return the users of a tenant with a weight, usage or pending pods, by name."""
    tenant = context.view.tenancy.tenants.get(name)
    weights = tenant.user_weights if tenant is not None else {}
    pending = {each.user: each.pods for each in await context.queues.read_pending_counts(name)}
    used: dict[UserName, dict[PoolName, dict[Resource, int]]] = {}
    for each in await context.queues.read_used_amounts(name):
        if each.resource in context.managed:
            amounts = used.setdefault(each.user, {}).setdefault(each.pool, {})
            amounts[each.resource] = each.amount
    return [
        UserView(user, weights.get(user, Fraction(1)), used.get(user, {}), pending.get(user, 0))
        for user in sorted({*weights, *used, *pending})
    ]


def set_etag(response: Response, found: Tenant | Pool | None) -> None:
    """Set the ETag of a resource, for If-Match."""
    if found is not None:
        response.headers["ETag"] = f'"{found.uid}-{found.generation}"'


def tenant_model(context: RouteContext, name: TenantName) -> TenantShown:
    """Return the response model of a tenant."""
    tenant = context.view.tenancy.tenants.get(name)
    spec = tenant or Tenant(name, Millis(0), parent=context.view.tenancy.parent_of(name))
    stands = context.queries.view().tenants.get(name, ABSENT_TENANT)
    return TenantShown(
        name=name,
        exists=tenant is not None,
        parent=spec.parent,
        weight=decimal(spec.weight),
        namespaces=list(spec.namespaces),
        users=[
            UserWeight(name=user, weight=decimal(weight))
            for user, weight in sorted(spec.user_weights.items())
        ],
        quotas=[
            QuotaSpec(
                pool=pool, guarantee=quantities(quota.guarantee), limit=quantities(quota.limit)
            )
            for pool, quota in sorted(spec.quotas.items())
        ],
        pools=list(spec.pools),
        max_pending=spec.max_pending,
        paused=spec.paused,
        share=format_share(stands.share),
        weighted_share=weighted_share(stands),
        used=quantities_by_pool(stands.used),
        borrowed=quantities_by_pool(stands.borrowed),
        pending=stands.pending,
    )


def weighted_share(stands: TenantView) -> str:
    """Return the share divided by the weight; for weight 0 the share itself."""
    return format_share(stands.share / (stands.weight or 1))


def user_model(user: UserView) -> UserShown:
    """Return the response model of a user."""
    return UserShown(
        name=user.name,
        weight=decimal(user.weight),
        used=quantities_by_pool(user.used),
        pending=user.pending,
    )
