"""Route /tenants/{tenant}/queue: every held workload, its position and its wait reason."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Depends, Query

from app.core.explain.queue_listing import Mark
from app.core.explain.views import HeldView
from app.core.fairshare.user_queue import QueueKey
from app.core.model import Millis, Uid, UserName
from app.ports.auth import Identity
from app.ports.forecasts import Estimate
from app.web.api import examples
from app.web.api.formatting import moment, quantities
from app.web.api.pagination import Limit, More, key_of, token
from app.web.api.route_context import RouteContext, TenantPath
from app.web.api.schemas import EstimateShown, QueuedWorkload, QueueModel


def queue_routes(ground: RouteContext) -> APIRouter:
    """Return the routes that read queues."""
    routes = APIRouter()
    access = ground.access
    caller = Depends(access.caller)

    @routes.get(
        "/tenants/{tenant}/queue",
        summary="The pending workloads in order, with their reasons",
        responses=examples.QUEUE,
    )
    async def queue(
        tenant: TenantPath,
        user: Annotated[
            str | None, Query(max_length=512, description="Only what this user submitted.")
        ] = None,
        limit: Limit = 100,
        more: More = None,
        identity: Identity = caller,
    ) -> QueueModel:
        await access.need(identity, "get", "tenants", "queue", tenant)
        name = ground.need_tenant(tenant)
        only = UserName(user) if user is not None else None
        items: list[QueuedWorkload] = []
        last, rest = _mark(more), None
        for mark, view in ground.outlook.queue(name, only, last):
            if len(items) == limit:
                rest = _token(last)
                break
            items.append(waiting(view, ground))
            last = mark
        pending = ground.outlook.pending(name, only)
        return QueueModel(tenant=tenant, pending=pending, items=items, more=rest)

    return routes


def waiting(view: HeldView, ground: RouteContext) -> QueuedWorkload:
    """Return the response model of a held workload."""
    return QueuedWorkload(
        namespace=view.ref.namespace,
        name=view.ref.name,
        uid=view.ref.uid,
        gang=view.gang or None,
        pods=view.pods,
        user=view.user,
        priority=view.priority,
        since=moment(view.since),
        request=quantities(view.request),
        pools=list(view.pools),
        position=view.position,
        length=view.length,
        rule=view.rule.value,
        reason=view.reason,
        estimate=estimate_shown(ground.forecasts.estimate(view.ref.uid)),
    )


def estimate_shown(estimate: Estimate | None) -> EstimateShown | None:
    """Return the response model of an estimate; None if there is no estimate."""
    if estimate is None:
        return None
    return EstimateShown(p50=estimate.p50, p90=estimate.p90, at=moment(estimate.at))


def _token(mark: Mark | None) -> str | None:
    return token(mark.user, mark.queued, *mark.turn) if mark is not None else None


def _mark(more: str | None) -> Mark | None:
    key = key_of(more, (str, bool, int, int, str))
    if key is None:
        return None
    user, queued, precedence, since, uid = key
    turn = QueueKey(int(precedence), Millis(int(since)), Uid(str(uid)))
    return Mark(UserName(str(user)), bool(queued), turn)
