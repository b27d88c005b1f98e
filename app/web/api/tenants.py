"""Tenants and their users, as they are configured and as they stand."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Depends, Query

from app.core.effects import PodRef
from app.core.model import UNMAPPED_PREFIX, PoolName, Quota, Tenant, TenantName
from app.ports import Identity, QueueReader
from app.web.api.ground import LONGEST_PAGE, Ground
from app.web.api.shown import Shown
from app.web.api.texts import decimal, quantities
from app.web.problems import Refused


class UserShown(Shown):
    """A user and what they are owed next to the tenant's other users."""

    name: str
    weight: str


class QuotaShown(Shown):
    """What a tenant may always have of a pool, and what it may never exceed there."""

    pool: str
    guarantee: dict[str, str]
    limit: dict[str, str]


class TenantShown(Shown):
    """A Tenant resource, and how many of its pods wait."""

    name: str
    parent: str | None
    weight: str
    namespaces: list[str]
    users: list[UserShown]
    quotas: list[QuotaShown]
    pools: list[str]
    max_pending: int | None
    paused: bool
    pending: int


class WaitingShown(Shown):
    """A held pod; `position` counts from 1 in its user's queue."""

    namespace: str
    name: str
    uid: str
    user: str
    position: int


class Tenants(Shown):
    """Tenants, by name."""

    items: list[TenantShown]


class Queue(Shown):
    """What a tenant waits for: user by user, each in their own order. `pending` counts all."""

    tenant: str
    pending: int
    items: list[WaitingShown]


def tenant_routes(ground: Ground) -> APIRouter:
    """Return the routes under /tenants that read."""
    routes = APIRouter()
    access, view, queues = ground.access, ground.view, ground.queues
    # FastAPI reads annotations by evaluating them, which finds no local names: hence no alias.
    caller = Depends(access.caller)

    @routes.get("/tenants", summary="Every tenant")
    async def tenants(identity: Identity = caller) -> Tenants:
        await access.need(identity, "list", "tenants")
        ground.need_sight()
        known = sorted(view.tenancy.tenants.values(), key=lambda tenant: tenant.name)
        return Tenants(items=[_tenant(each, view.pending.get(each.name, 0)) for each in known])

    @routes.get("/tenants/{tenant}/queue", summary="Who waits, and in which place")
    async def queue(
        tenant: str,
        user: Annotated[str | None, Query(description="Only what this user submitted.")] = None,
        limit: Annotated[int, Query(ge=1, le=LONGEST_PAGE)] = 100,
        identity: Identity = caller,
    ) -> Queue:
        await access.need(identity, "get", "tenants", "queue", tenant)
        ground.need_sight()
        if tenant not in view.tenancy.tenants and not tenant.startswith(UNMAPPED_PREFIX):
            raise Refused(404, f"There is no tenant {tenant}; GET /v1/tenants lists them.")
        return await _queue(queues, TenantName(tenant), user, limit)

    return routes


async def _queue(queues: QueueReader, tenant: TenantName, user: str | None, limit: int) -> Queue:
    lengths = [
        each
        for each in await queues.counts()
        if each.tenant == tenant and user in (None, str(each.user))
    ]
    items: list[WaitingShown] = []
    for each in lengths:
        if len(items) >= limit:
            break
        waiting = await queues.queue(tenant, each.user, limit - len(items))
        items += [_waiting(ref, each.user, i) for i, ref in enumerate(waiting, start=1)]
    return Queue(tenant=tenant, pending=sum(each.pods for each in lengths), items=items)


def _waiting(ref: PodRef, user: str, position: int) -> WaitingShown:
    return WaitingShown(
        namespace=ref.namespace, name=ref.name, uid=ref.uid, user=user, position=position
    )


def _tenant(tenant: Tenant, pending: int) -> TenantShown:
    users = sorted(tenant.user_weights.items())
    return TenantShown(
        name=tenant.name,
        parent=tenant.parent,
        weight=decimal(tenant.weight),
        namespaces=list(tenant.namespaces),
        users=[UserShown(name=name, weight=decimal(weight)) for name, weight in users],
        quotas=[_quota(pool, quota) for pool, quota in sorted(tenant.quotas.items())],
        pools=list(tenant.pools),
        max_pending=tenant.max_pending,
        paused=tenant.paused,
        pending=pending,
    )


def _quota(pool: PoolName, quota: Quota) -> QuotaShown:
    return QuotaShown(
        pool=pool, guarantee=quantities(quota.guarantee), limit=quantities(quota.limit)
    )
