"""Tenants and their users, as they are configured and as they stand."""

from __future__ import annotations

from fractions import Fraction

from fastapi import APIRouter, Depends, Response

from app.core.model import Millis, Pool, Tenant, TenantName
from app.core.telling.views import TenantView, UserView
from app.ports import Identity
from app.web.api import examples
from app.web.api.ground import Ground
from app.web.api.paging import Limit, More, part
from app.web.api.paths import TenantPath
from app.web.api.shown import Page, QuotaSpec, TenantShown, UserShown, UserWeight
from app.web.api.texts import decimal, in_pools, parts_of_one, quantities

NOTHING = TenantView(
    parent=None,
    weight=Fraction(1),
    share=Fraction(0),
    used={},
    borrowed={},
    history=0.0,
    pending=0,
    generation=0,
    disputed=(),
    orphan=False,
    paused=False,
    exists=False,
)
"""A tenant that has nothing, and no Tenant resource."""


def tenant_routes(ground: Ground) -> APIRouter:
    """Return the routes under /tenants that read, queues aside."""
    routes = APIRouter()
    access = ground.access
    # FastAPI reads annotations by evaluating them, which finds no local names: hence no alias.
    caller = Depends(access.caller)

    @routes.get("/tenants", summary="Every tenant, by name", responses=examples.TENANTS)
    async def tenants(
        limit: Limit = 100, more: More = None, identity: Identity = caller
    ) -> Page[TenantShown]:
        await access.need(identity, "list", "tenants")
        ground.need_sight()
        known = {**ground.view.tenancy.tenants, **ground.outlook.view().tenants}
        names, rest = part(sorted(known), limit, more, lambda name: (str(name),))
        return Page[TenantShown](items=[tenant_shown(ground, each) for each in names], more=rest)

    @routes.get(
        "/tenants/{tenant}",
        summary="One tenant: what is configured, and how it stands",
        responses=examples.TENANT,
    )
    async def one(
        tenant: TenantPath, response: Response, identity: Identity = caller
    ) -> TenantShown:
        await access.need(identity, "get", "tenants", name=tenant)
        name = ground.need_tenant(tenant)
        tag(response, ground.view.tenancy.tenants.get(name))
        return tenant_shown(ground, name)

    @routes.get(
        "/tenants/{tenant}/users",
        summary="A tenant's users: weights, use and pending",
        responses=examples.USERS,
    )
    async def users(
        tenant: TenantPath, limit: Limit = 100, more: More = None, identity: Identity = caller
    ) -> Page[UserShown]:
        await access.need(identity, "get", "tenants", "queue", tenant)
        people = ground.outlook.people(ground.need_tenant(tenant))
        those, rest = part(people, limit, more, lambda each: (str(each.name),))
        return Page[UserShown](items=[user_shown(each) for each in those], more=rest)

    return routes


def tag(response: Response, found: Tenant | Pool | None) -> None:
    """Tell the edition of a resource, for If-Match."""
    if found is not None:
        response.headers["ETag"] = f'"{found.uid}-{found.generation}"'


def tenant_shown(ground: Ground, name: TenantName) -> TenantShown:
    """Return a tenant as the API shows it."""
    tenant = ground.view.tenancy.tenants.get(name)
    spec = tenant or Tenant(name, Millis(0), parent=ground.view.tenancy.parent_of(name))
    stands = ground.outlook.view().tenants.get(name, NOTHING)
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
        share=parts_of_one(stands.share),
        weighted_share=weighted(stands),
        used=in_pools(stands.used),
        borrowed=in_pools(stands.borrowed),
        pending=stands.pending,
    )


def weighted(stands: TenantView) -> str:
    """Return the share over the weight; over weight 0, of which nothing is owed, the share."""
    return parts_of_one(stands.share / (stands.weight or 1))


def user_shown(user: UserView) -> UserShown:
    """Return a user as the API shows it."""
    return UserShown(
        name=user.name,
        weight=decimal(user.weight),
        used=in_pools(user.used),
        pending=user.pending,
    )
