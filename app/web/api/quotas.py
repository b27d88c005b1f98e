"""Route /quotas: guarantee, limit and use of each tenant in each pool."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from typing import Annotated

from fastapi import APIRouter, Depends, Query

from app.core.model import Millis, PoolName, Quota, Tenant, TenantName
from app.ports.api import PastQuotas, QuotaThen
from app.ports.auth import Identity
from app.web.api import examples
from app.web.api.formatting import decimal, quantities, to_datetime, to_millis
from app.web.api.pagination import Limit, More, slice_page
from app.web.api.refused import Refused
from app.web.api.route_context import RouteContext
from app.web.api.schemas import QuotaRow, Quotas
from app.web.api.tenants import ABSENT_TENANT, weighted_share

At = Annotated[
    datetime | None,
    Query(
        description="Quotas at this time, RFC 3339; the present if absent.",
        examples=["2026-01-31T12:00:00Z"],
    ),
]


def add_quota_routes(routes: APIRouter, context: RouteContext) -> None:
    """Add the routes that read quotas."""
    access = context.access
    caller = Depends(access.authenticate_request)

    @routes.get(
        "/quotas",
        summary="Guarantee, limit and use of each tenant in each pool",
        responses=examples.QUOTAS,
    )
    async def quotas(
        at: At = None, limit: Limit = 100, more: More = None, identity: Identity = caller
    ) -> Quotas:
        await access.require(identity, "get", "quotas")
        context.require_synced_state()
        when = to_millis(at) if at is not None else context.now()
        if when > context.now():
            raise Refused(400, "at: this time has not come yet; leave it out for now.")
        rows = _current_rows(context) if at is None else await _past_rows(context.past_quotas, when)
        items, rest = slice_page(rows, limit, more, lambda row: (row.tenant, row.pool), 2)
        return Quotas(at=to_datetime(when), items=items, more=rest)


def _current_rows(context: RouteContext) -> Iterator[QuotaRow]:
    tenancy, view = context.view.tenancy, context.queries.view()
    for name in sorted({*tenancy.tenants, *view.tenants}):
        tenant = tenancy.tenants.get(name, Tenant(name, Millis(0), parent=tenancy.parent_of(name)))
        used = view.tenants.get(name, ABSENT_TENANT).used
        for pool in sorted({*(tenant.pools or view.pools), *tenant.quotas, *used}):
            yield _row(context, tenant, pool)


def _row(context: RouteContext, tenant: Tenant, pool: PoolName) -> QuotaRow:
    stands = context.queries.view().tenants.get(TenantName(tenant.name), ABSENT_TENANT)
    quota = tenant.quotas.get(pool, Quota())
    return QuotaRow(
        tenant=tenant.name,
        parent=tenant.parent,
        weight=decimal(tenant.weight),
        pool=pool,
        guarantee=quantities(quota.guarantee),
        limit=quantities(quota.limit),
        used=quantities(stands.used.get(pool, {})),
        borrowed=quantities(stands.borrowed.get(pool, {})),
        pending=stands.pending,
        weighted_share=weighted_share(stands),
    )


async def _past_rows(past: PastQuotas | None, at: Millis) -> list[QuotaRow]:
    rows = await past.quotas_at(at) if past is not None else None
    if rows is None:
        raise Refused(404, "at: the quotas at that time are not recorded.")
    return [_past_row(each) for each in rows]


def _past_row(then: QuotaThen) -> QuotaRow:
    return QuotaRow(
        tenant=then.tenant,
        parent=then.parent,
        weight=then.weight,
        pool=then.pool,
        guarantee=dict(then.guarantee),
        limit=dict(then.limit),
        used=None,
        borrowed=None,
        pending=None,
        weighted_share=None,
    )
