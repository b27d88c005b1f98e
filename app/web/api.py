"""The REST API of role api: what tenants and pools there are, and who waits.

Reads only, from the view in memory and the queues in the store. Whoever asks is checked first,
so that a stranger cannot tell what exists from what does not.
"""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction
from typing import Annotated

from fastapi import APIRouter, Depends, FastAPI, Query
from pydantic import BaseModel, ConfigDict
from pydantic.alias_generators import to_camel

from app.core.effects import PodRef
from app.core.model import (
    UNMAPPED_PREFIX,
    Amounts,
    Pool,
    PoolName,
    Quota,
    Resource,
    Tenant,
    TenantName,
)
from app.core.resources import render
from app.ports import Authority, Identity, QueueReader
from app.web import problems
from app.web.access import Access
from app.web.ops import Checks, ops_routes
from app.web.problems import Problem, Refused
from app.web.view import View

LONGEST_PAGE = 500


class Shown(BaseModel):
    """Base of what the API shows: camelCase, as in Kubernetes."""

    model_config = ConfigDict(alias_generator=to_camel, populate_by_name=True)


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


class PoolShown(Shown):
    """A Pool resource."""

    name: str
    node_selector: dict[str, str]
    weights: dict[str, str]
    overcommit: dict[str, str]
    placement: str
    paused: bool


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


class Pools(Shown):
    """Pools, by name."""

    items: list[PoolShown]


class Queue(Shown):
    """What a tenant waits for: user by user, each in their own order. `pending` counts all."""

    tenant: str
    pending: int
    items: list[WaitingShown]


def api_app(view: View, authority: Authority, queues: QueueReader, checks: Checks) -> FastAPI:
    """Return the app with `/v1`, the health routes and `/openapi.json`."""
    app = FastAPI(
        title="Fairgate",
        summary="Who waits for GPUs, in which order.",
        version="v1",
        docs_url=None,
        redoc_url=None,
        responses={
            status: {"model": Problem, "content": {problems.MEDIA_TYPE: {}}}
            for status in (400, 401, 403, 404, 503)
        },
    )
    problems.install(app)
    app.include_router(_routes(view, Access(authority), queues), prefix="/v1")
    app.include_router(ops_routes(checks))
    return app


def _routes(view: View, access: Access, queues: QueueReader) -> APIRouter:
    routes = APIRouter(tags=["v1"])
    # FastAPI reads annotations by evaluating them, which finds no local names: hence no alias.
    caller = Depends(access.caller)

    @routes.get("/tenants", summary="Every tenant")
    async def tenants(identity: Identity = caller) -> Tenants:
        await access.need(identity, "list", "tenants")
        _synced(view)
        known = sorted(view.tenancy.tenants.values(), key=lambda tenant: tenant.name)
        return Tenants(items=[_tenant(each, view.pending.get(each.name, 0)) for each in known])

    @routes.get("/pools", summary="Every pool")
    async def pools(identity: Identity = caller) -> Pools:
        await access.need(identity, "list", "pools")
        _synced(view)
        known = sorted(view.pools.values(), key=lambda pool: pool.name)
        return Pools(items=[_pool(each) for each in known])

    @routes.get("/tenants/{tenant}/queue", summary="Who waits, and in which place")
    async def queue(
        tenant: str,
        user: Annotated[str | None, Query(description="Only what this user submitted.")] = None,
        limit: Annotated[int, Query(ge=1, le=LONGEST_PAGE)] = 100,
        identity: Identity = caller,
    ) -> Queue:
        await access.need(identity, "get", "tenants", "queue", tenant)
        _synced(view)
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


def _synced(view: View) -> None:
    if not view.ready:
        raise Refused(503, "Fairgate has just started and does not know the tenants yet.")


def _tenant(tenant: Tenant, pending: int) -> TenantShown:
    users = sorted(tenant.user_weights.items())
    return TenantShown(
        name=tenant.name,
        parent=tenant.parent,
        weight=_decimal(tenant.weight),
        namespaces=list(tenant.namespaces),
        users=[UserShown(name=name, weight=_decimal(weight)) for name, weight in users],
        quotas=[_quota(pool, quota) for pool, quota in sorted(tenant.quotas.items())],
        pools=list(tenant.pools),
        max_pending=tenant.max_pending,
        paused=tenant.paused,
        pending=pending,
    )


def _quota(pool: PoolName, quota: Quota) -> QuotaShown:
    return QuotaShown(
        pool=pool, guarantee=_quantities(quota.guarantee), limit=_quantities(quota.limit)
    )


def _pool(pool: Pool) -> PoolShown:
    return PoolShown(
        name=pool.name,
        node_selector=dict(pool.selector),
        weights=_decimals(pool.weights),
        overcommit=_decimals(pool.overcommit),
        placement=pool.placement.value,
        paused=pool.paused,
    )


def _quantities(amounts: Amounts) -> dict[str, str]:
    return {str(r): render(r, v) for r, v in sorted(amounts.items())}


def _decimals(values: Mapping[Resource, Fraction]) -> dict[str, str]:
    return {key: _decimal(value) for key, value in sorted(values.items())}


def _decimal(value: Fraction) -> str:
    """Return a weight as it was written; the resources allow decimals of six places at most."""
    return f"{float(value):.6f}".rstrip("0").rstrip(".")
