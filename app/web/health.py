"""Health and metrics for the kubelet and Prometheus.

`/livez` answers from a thread of its own, also while the event loop of the process is blocked.
`/readyz` and `/metrics` read state of the process, so they run in its event loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping
from typing import Any, TypeVar

from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4, generate_latest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from app.core.errors import ClusterError
from app.ports.liveness import Liveness
from app.web.api.auth import Access
from app.web.api.refused import Refused
from app.web.metrics import REGISTRY

HealthAnswer = TypeVar("HealthAnswer")

Checks = Mapping[str, Callable[[], bool]]
"""Conditions of readiness, by name. Each request evaluates them again."""

OpsHandler = Callable[[Request], Awaitable[Response]]

NOT_DRAINING = "not draining"
"""The check that fails after a process received the signal to stop."""


METRICS = "/metrics"


def ops_app(checks: Checks, liveness: Liveness, access: Access | None) -> Starlette:
    """Return an app with `/livez`, `/readyz` and `/metrics`.

    Call it from the event loop of the process. Any event loop may serve the app.
    """
    handlers = ops_handlers(checks, liveness, access)
    return Starlette(routes=[Route(path, handler) for path, handler in handlers.items()])


def ops_handlers(
    checks: Checks, liveness: Liveness, access: Access | None
) -> dict[str, OpsHandler]:
    """Return the handlers of `/livez`, `/readyz` and `/metrics`, by path.

    `access` decides about `/metrics`, which names tenants; None: it is public.
    """
    home = _loop()

    async def livez(_: Request) -> Response:
        return _text_response(
            f"not alive: {part} finished no step for {age:.0f} s"
            for part, age in liveness.stalled_parts().items()
        )

    async def readyz(_: Request) -> Response:
        async def missing() -> list[str]:
            return [f"not ready: {name}" for name, is_ready in checks.items() if not is_ready()]

        return _text_response(await _run_in_loop(home, missing))

    # The event loop of the process runs a scrape, so it never sees a partial change.
    async def metrics(request: Request) -> Response:
        async def latest() -> Response:
            refused = None if access is None else await _access_error(access, request)
            return refused or Response(
                generate_latest(REGISTRY), media_type=CONTENT_TYPE_PLAIN_0_0_4
            )

        return await _run_in_loop(home, latest)

    return {"/livez": livez, "/readyz": readyz, METRICS: metrics}


def leader_route(fault: Callable[[], str]) -> Route:
    """Return `/healthz/leader`, which fails while no pod is released.

    It is apart from `/readyz`: a standby is ready while no replica leads, or no rollout would end.
    """

    async def leader(_: Request) -> Response:
        found = fault()
        return _text_response([found] if found else [])

    return Route("/healthz/leader", leader)


def _text_response(faults: Iterable[str]) -> Response:
    text = "".join(f"{fault}\n" for fault in faults)
    return Response(text or "ok\n", status_code=503 if text else 200, media_type="text/plain")


def _loop() -> asyncio.AbstractEventLoop | None:
    """Return the running event loop; None if there is no such loop."""
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None


async def _run_in_loop(
    home: asyncio.AbstractEventLoop | None, call: Callable[[], Coroutine[Any, Any, HealthAnswer]]
) -> HealthAnswer:
    """Run `call` in the event loop `home`, or in the running loop if `home` is None."""
    if home is None or home is asyncio.get_running_loop():
        return await call()
    return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(call(), home))


async def _access_error(access: Access, request: Request) -> Response | None:
    """Return the answer to a caller without the right to the metrics; None if it has the right."""
    try:
        await access.require_path(request, METRICS)
    except Refused as error:
        return Response(
            f"{error.detail}\n", error.status, headers=error.headers, media_type="text/plain"
        )
    except ClusterError as error:
        why = f"The API server cannot authenticate you: {error}\n"
        return Response(why, 503, media_type="text/plain")
    return None
