"""What a kubelet and Prometheus ask: is it alive, is it ready, what does it count."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from fastapi import APIRouter, FastAPI, Response
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4, generate_latest

from app.web.metrics import REGISTRY

Checks = Mapping[str, Callable[[], bool]]
"""What must be true before this process is ready, by name. Read anew on every request."""

SERVES = "not draining"
"""The check that fails once a process was told to stop."""


def ops_app(checks: Checks) -> FastAPI:
    """Return an app with `/livez`, `/readyz` and `/metrics` and nothing else."""
    app = FastAPI(title="Fairgate", docs_url=None, redoc_url=None, openapi_url=None)
    app.include_router(ops_routes(checks))
    return app


def ops_routes(checks: Checks) -> APIRouter:
    """Return the same three routes, to be put next to others."""
    routes = APIRouter(tags=["health"])

    text: dict[str, Any] = {"content": {"text/plain": {"schema": {"type": "string"}}}}

    @routes.get(
        "/livez",
        summary="Is the process alive?",
        response_class=Response,
        responses={200: {**text, "description": "It is"}},
    )
    async def livez() -> Response:
        return Response("ok\n", media_type="text/plain")

    @routes.get(
        "/readyz",
        summary="Can it do its work?",
        response_class=Response,
        responses={
            200: {**text, "description": "It can"},
            503: {**text, "description": "Not yet, or not any more: a line for each thing missing"},
        },
    )
    async def readyz() -> Response:
        missing = [name for name, is_ready in checks.items() if not is_ready()]
        if not missing:
            return Response("ok\n", media_type="text/plain")
        lines = "".join(f"not ready: {name}\n" for name in missing)
        return Response(lines, status_code=503, media_type="text/plain")

    # All routes are coroutines: a scrape runs between two changes, never during one.
    @routes.get(
        "/metrics",
        summary="Prometheus metrics",
        response_class=Response,
        responses={200: {**text, "description": "The metrics"}},
    )
    async def metrics() -> Response:
        return Response(generate_latest(REGISTRY), media_type=CONTENT_TYPE_PLAIN_0_0_4)

    return routes
