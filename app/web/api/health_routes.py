"""Routes of health and metrics in the REST API, with their description in its OpenAPI document.

The handlers are in `web.health`, which the listener of health and metrics uses without FastAPI.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fastapi import APIRouter, Depends, Response
from fastapi.security import HTTPBearer

from app.ports.liveness import Liveness
from app.web.api.auth import Access
from app.web.health import METRICS, Checks, ops_handlers

BEARER = Depends(
    HTTPBearer(
        auto_error=False,
        description="A token of audience `fairgate`, as `kubectl create token` makes.",
    )
)
"""Describes the token of a route, which `Access` reads."""

SUMMARIES = {
    "/livez": "Does the process make progress?",
    "/readyz": "Can it do its work?",
    METRICS: "Prometheus metrics",
}
ANSWERS: Mapping[str, Mapping[int, str]] = {
    "/livez": {200: "It does", 503: "A part has stalled: one line per part"},
    "/readyz": {200: "It can", 503: "Not yet, or not any more: a line for each thing missing"},
    METRICS: {
        200: "The metrics",
        401: "No valid token",
        403: "No right to get the path /metrics",
        429: "Too many refused requests came from this address",
        503: "The API server cannot be asked about the caller",
    },
}


def health_routes(checks: Checks, liveness: Liveness, access: Access) -> APIRouter:
    """Return the routes of `/livez`, `/readyz` and `/metrics`."""
    routes = APIRouter(tags=["health"])
    for path, handler in ops_handlers(checks, liveness, access).items():
        routes.add_api_route(
            path,
            handler,
            summary=SUMMARIES[path],
            response_class=Response,
            responses=_texts(ANSWERS[path]),
            dependencies=[BEARER] if path == METRICS else [],
        )
    return routes


def _texts(answers: Mapping[int, str]) -> dict[int | str, dict[str, Any]]:
    """Describe answers with plain text, for OpenAPI."""
    content = {"text/plain": {"schema": {"type": "string"}}}
    return {status: {"description": each, "content": content} for status, each in answers.items()}
