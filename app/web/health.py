"""Health and metrics for the kubelet and Prometheus.

`/livez` answers from a thread of its own, also while the event loop of the process is blocked.
`/readyz` and `/metrics` read state of the process, so they run in its event loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterable, Mapping
from typing import Any, TypeVar

from fastapi import APIRouter, FastAPI, Request, Response
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4, generate_latest

from app.core.errors import ClusterError
from app.ports.liveness import Liveness
from app.web.api.auth import Access, Bearer
from app.web.api.problems import Refused
from app.web.metrics import REGISTRY

HealthAnswer = TypeVar("HealthAnswer")

Checks = Mapping[str, Callable[[], bool]]
"""Conditions of readiness, by name. Each request evaluates them again."""

SERVES = "not draining"
"""The check that fails after a process received the signal to stop."""


METRICS = "/metrics"


def ops_app(checks: Checks, liveness: Liveness, access: Access | None) -> FastAPI:
    """Return an app with `/livez`, `/readyz` and `/metrics`.

    Call it from the event loop of the process. Any event loop may serve the app.
    """
    app = FastAPI(title="Fairgate", docs_url=None, redoc_url=None, openapi_url=None)
    app.include_router(ops_routes(checks, liveness, access))
    return app


def ops_routes(checks: Checks, liveness: Liveness, access: Access | None) -> APIRouter:
    """Return the routes of `/livez`, `/readyz` and `/metrics`, to add to another app.

    `access` decides about `/metrics`, which names tenants; None: it is public.
    """
    routes = APIRouter(tags=["health"])
    home = _loop()

    @routes.get(
        "/livez",
        summary="Does the process make progress?",
        response_class=Response,
        responses=_texts({200: "It does", 503: "A part has stalled: one line per part"}),
    )
    async def livez() -> Response:
        return _lines(
            f"not alive: {part} finished no step for {age:.0f} s"
            for part, age in liveness.stalled().items()
        )

    @routes.get(
        "/readyz",
        summary="Can it do its work?",
        response_class=Response,
        responses=_texts(
            {200: "It can", 503: "Not yet, or not any more: a line for each thing missing"}
        ),
    )
    async def readyz() -> Response:
        async def missing() -> list[str]:
            return [f"not ready: {name}" for name, is_ready in checks.items() if not is_ready()]

        return _lines(await _within(home, missing))

    # The event loop of the process runs a scrape, so it never sees a partial change.
    @routes.get(
        "/metrics",
        summary="Prometheus metrics",
        response_class=Response,
        responses=_texts(
            {
                200: "The metrics",
                401: "No valid token",
                403: "No right to get the path /metrics",
                429: "Too many refused requests came from this address",
                503: "The API server cannot be asked about the caller",
            }
        ),
    )
    async def metrics(request: Request, bearer: Bearer) -> Response:
        async def latest() -> Response:
            refused = None if access is None else await _refusal(access, request, bearer)
            return refused or Response(
                generate_latest(REGISTRY), media_type=CONTENT_TYPE_PLAIN_0_0_4
            )

        return await _within(home, latest)

    return routes


def leader_routes(fault: Callable[[], str]) -> APIRouter:
    """Return `/healthz/leader`, which fails while no pod is released.

    It is apart from `/readyz`: a standby is ready while no replica leads, or no rollout would end.
    """
    routes = APIRouter(tags=["health"])

    @routes.get(
        "/healthz/leader",
        summary="Are pods released?",
        response_class=Response,
        responses=_texts({200: "They are", 503: "No leader for 30 s, or Redis is unreachable"}),
    )
    async def leader() -> Response:
        found = fault()
        return _lines([found] if found else [])

    return routes


def _texts(answers: Mapping[int, str]) -> dict[int | str, dict[str, Any]]:
    """Describe answers with plain text, for OpenAPI."""
    content = {"text/plain": {"schema": {"type": "string"}}}
    return {status: {"description": each, "content": content} for status, each in answers.items()}


def _lines(faults: Iterable[str]) -> Response:
    text = "".join(f"{fault}\n" for fault in faults)
    return Response(text or "ok\n", status_code=503 if text else 200, media_type="text/plain")


def _loop() -> asyncio.AbstractEventLoop | None:
    """Return the running event loop; None if there is no such loop."""
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None


async def _within(
    home: asyncio.AbstractEventLoop | None, call: Callable[[], Coroutine[Any, Any, HealthAnswer]]
) -> HealthAnswer:
    """Run `call` in the event loop `home`, or in the running loop if `home` is None."""
    if home is None or home is asyncio.get_running_loop():
        return await call()
    return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(call(), home))


async def _refusal(access: Access, request: Request, bearer: Bearer) -> Response | None:
    """Return the answer to a caller without the right to the metrics; None if it has the right."""
    try:
        await access.need_path(request, bearer, METRICS)
    except Refused as error:
        return Response(
            f"{error.detail}\n", error.status, headers=error.headers, media_type="text/plain"
        )
    except ClusterError as error:
        why = f"The API server cannot authenticate you: {error}\n"
        return Response(why, 503, media_type="text/plain")
    return None
