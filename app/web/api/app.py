"""Assembles the REST app: routes, health checks, error answers and middleware."""

from __future__ import annotations

import time

from fastapi import APIRouter, Depends, FastAPI

from app.ports.liveness import Liveness
from app.web.api import problems
from app.web.api.audit import audit_routes
from app.web.api.dashboard import page_routes
from app.web.api.fair_shares import FairShares
from app.web.api.me import me_routes
from app.web.api.middleware import Aged, Bounded
from app.web.api.nodes import node_routes
from app.web.api.openapi_models import operation_id
from app.web.api.pools import pool_routes
from app.web.api.query_check import Documented
from app.web.api.queues import queue_routes
from app.web.api.quotas import quota_routes
from app.web.api.releases import release_routes
from app.web.api.response_headers import DescribedApp
from app.web.api.route_context import RouteContext
from app.web.api.schemas import DECIMAL
from app.web.api.search import search_routes
from app.web.api.server_version import version_routes
from app.web.api.simulations import simulation_routes
from app.web.api.stream import StreamTiming, stream_routes
from app.web.api.tenants import tenant_routes
from app.web.api.trials import trial_routes
from app.web.api.usage import usage_routes
from app.web.api.visible_state import VisibleStates
from app.web.api.workloads import workload_routes
from app.web.api.writes import write_routes
from app.web.health import SERVES, Checks, ops_routes

PROBLEMS = (400, 401, 403, 404, 408, 409, 412, 413, 415, 422, 429, 503)
"""Error statuses that every route may return."""


def api_app(
    context: RouteContext, checks: Checks, liveness: Liveness, rhythm: StreamTiming | None = None
) -> FastAPI:
    """Return the app with `/v1`, the health routes and `/openapi.json`."""
    app = DescribedApp(
        title="Fairgate",
        summary="Queues, shares and usage of a GPU cluster.",
        version="v1",
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
        generate_unique_id_function=operation_id,
    )
    documented = Documented(app)
    told = {DECIMAL: "must be a decimal number of 0 or more, such as 2 or 0.5"}
    problems.install(app, documented.methods, told)
    app.add_middleware(Bounded)
    app.add_middleware(Aged, age=context.age, below="/v1/")
    v1 = APIRouter(
        prefix="/v1",
        tags=["v1"],
        responses=problems.documented(*PROBLEMS),
        # The order matters: authenticate before checking query parameters.
        dependencies=[Depends(context.access.caller), Depends(documented.need_known)],
    )
    shares = FairShares(context, time.monotonic)
    visible = VisibleStates(context, time.monotonic)
    for routes in (
        tenant_routes(context, shares),
        queue_routes(context),
        pool_routes(context),
        node_routes(context, visible),
        quota_routes(context),
        usage_routes(context),
        release_routes(context),
        workload_routes(context),
        audit_routes(context),
        simulation_routes(context),
        trial_routes(context),
        me_routes(context, shares),
        search_routes(context, visible),
        stream_routes(context, visible, time.monotonic, lambda: not _drains(checks), rhythm),
        write_routes(context),
        version_routes(context),
    ):
        v1.include_router(routes)
    app.include_router(v1)
    app.include_router(ops_routes(checks, liveness, context.access))
    app.router.routes.extend(page_routes())
    return app


def _drains(checks: Checks) -> bool:
    # Looked up on each call, because the check is added after this app is created.
    serves = checks.get(SERVES)
    return serves is not None and not serves()
