"""Assembles the REST app: routes, health checks, error answers and middleware."""

from __future__ import annotations

import time
from collections.abc import Callable, Coroutine
from typing import Any

from fastapi import APIRouter, Depends, FastAPI, Request, Response
from fastapi.routing import APIRoute

from app.ports.liveness import Liveness
from app.web.api import problems
from app.web.api.audit import add_audit_routes
from app.web.api.auth import Access
from app.web.api.body_check import require_valid_text
from app.web.api.dashboard import page_routes
from app.web.api.dashboard_state import pause_text
from app.web.api.fair_shares import FairShares
from app.web.api.health_routes import BEARER, health_routes
from app.web.api.me import add_me_routes
from app.web.api.middleware import AgeHeader, BodyLimit
from app.web.api.nodes import add_node_routes
from app.web.api.openapi_models import operation_id
from app.web.api.pools import add_pool_routes
from app.web.api.query_check import KnownParameters
from app.web.api.queues import add_queue_routes
from app.web.api.quotas import add_quota_routes
from app.web.api.releases import add_release_routes
from app.web.api.response_headers import DescribedApp
from app.web.api.route_context import RouteContext
from app.web.api.schemas import DECIMAL, USER_NAME, USER_NAME_RULE
from app.web.api.search import add_search_routes
from app.web.api.server_version import add_version_routes
from app.web.api.simulations import add_simulation_routes
from app.web.api.stream import StreamTiming, add_stream_routes
from app.web.api.tenants import add_tenant_routes
from app.web.api.trials import add_trial_routes
from app.web.api.usage import add_usage_routes
from app.web.api.visible_state import VisibleStates
from app.web.api.workloads import add_workload_routes
from app.web.api.writes import add_write_routes
from app.web.health import NOT_DRAINING, Checks

PROBLEMS = (400, 401, 403, 404, 408, 409, 412, 413, 415, 422, 429, 503)
"""Error statuses that every route may return."""


PATTERN_RULES = {
    DECIMAL: "must be a decimal number of 0 or more, such as 2 or 0.5",
    USER_NAME: USER_NAME_RULE,
}
"""The rule of each pattern, for the sentence that refuses a value."""


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
    documented = KnownParameters(app)
    problems.install_error_handlers(app, documented.methods, PATTERN_RULES)
    app.add_middleware(BodyLimit)
    app.add_middleware(
        AgeHeader, age=context.data_age, pause=lambda: pause_text(context), path_prefix="/v1/"
    )
    v1 = APIRouter(
        prefix="/v1",
        tags=["v1"],
        responses=problems.error_responses(*PROBLEMS),
        generate_unique_id_function=operation_id,
        route_class=_authenticated_route(context.access),
        # The order matters: authenticate before checking query parameters and the body.
        dependencies=[
            BEARER,
            Depends(context.access.authenticate_request),
            Depends(documented.require_known_query),
            Depends(require_valid_text),
        ],
    )
    shares = FairShares(context, time.monotonic)
    visible = VisibleStates(context, time.monotonic)
    add_tenant_routes(v1, context, shares)
    add_queue_routes(v1, context)
    add_pool_routes(v1, context)
    add_node_routes(v1, context, visible)
    add_quota_routes(v1, context)
    add_usage_routes(v1, context)
    add_release_routes(v1, context)
    add_workload_routes(v1, context)
    add_audit_routes(v1, context)
    add_simulation_routes(v1, context)
    add_trial_routes(v1, context)
    add_me_routes(v1, context, shares)
    add_search_routes(v1, context, visible)
    add_stream_routes(
        v1, context, visible, time.monotonic, lambda: not _is_draining(checks), rhythm
    )
    add_write_routes(v1, context)
    add_version_routes(v1, context)
    # `include_router` would build every route two more times.
    app.router.routes.extend(v1.routes)
    app.include_router(health_routes(checks, liveness, context.access))
    app.router.routes.extend(page_routes())
    return app


def _authenticated_route(access: Access) -> type[APIRoute]:
    """Return the class of the routes: they authenticate the caller before they parse the body."""

    class AuthenticatedRoute(APIRoute):
        def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
            answer = super().get_route_handler()

            async def authenticate_and_answer(request: Request) -> Response:
                await access.authenticate_before_parsing(request)
                return await answer(request)

            return authenticate_and_answer

    return AuthenticatedRoute


def _is_draining(checks: Checks) -> bool:
    # Looked up on each call, because the check is added after this app is created.
    serves = checks.get(NOT_DRAINING)
    return serves is not None and not serves()
