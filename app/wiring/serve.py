"""Builds the adapters of a process and runs its roles until a signal.

Each role has a module here that assembles its parts.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import signal
import time
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from contextlib import AsyncExitStack
from typing import Any

import uvloop

from app.config import logging as log_config
from app.config.settings import Settings
from app.core.errors import ClusterUnavailable, StoreUnavailable
from app.kube.access_review import AUDIENCE, Reviews
from app.kube.client import Client
from app.web.api.auth import Access
from app.web.health import NOT_DRAINING, leader_route, ops_app
from app.web.server.rate_limit import RateLimit
from app.web.server.server import Listener, Servers, raise_open_file_limit
from app.wiring.process import Adapters, RoleProcess

RETRY_SECONDS = 1.0
GC_THRESHOLD = 10_000
"""New objects between two collections of cycles. Most objects end without one, and each collection
visits all that do not. Python's 700 cost a replica of the API a tenth of its CPU.
"""

BAD_TOKENS = 10
"""Bad tokens accepted on /metrics per second and address: each costs the API server two reviews."""

Role = Callable[[RoleProcess], Awaitable[None]]
"""Assembles the parts of one role."""

log = logging.getLogger("fairgate")


def serve(settings: Settings, adapters: Adapters | None = None) -> None:
    """Run one process until SIGTERM or SIGINT. Raises FairgateError."""
    log_config.set_up(settings.log_level)
    raise_open_file_limit()
    roles = [_role(name) for name in settings.roles]
    gc.freeze()  # modules stay: exclude them from collection
    gc.set_threshold(GC_THRESHOLD)
    gc.enable()  # `fairgate serve` disables it while it imports
    uvloop.run(_serve(settings, roles, adapters or Adapters()))


async def _serve(settings: Settings, roles: Sequence[Role], adapters: Adapters) -> None:
    stop = asyncio.Event()
    for sign in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(sign, stop.set)
    async with AsyncExitStack() as stack:
        client = await Client.connect(
            settings.kubeconfig, pool_size=settings.release_concurrency + 32
        )
        stack.push_async_callback(client.close)
        process = RoleProcess(settings, client, stack, adapters)
        if await _set_up(process, roles, stop):
            await _run(process, stop)


def _role(name: str) -> Role:
    """Return the function that assembles a role.

    Only that role is imported: a webhook without the modules of the engine starts earlier.
    """
    match name:
        case "webhook":
            from app.wiring.webhook import webhook

            return webhook
        case "controller":
            from app.wiring.controller import controller

            return controller
        case _:
            from app.wiring.api import api

            return api


async def _set_up(process: RoleProcess, roles: Sequence[Role], stop: asyncio.Event) -> bool:
    """Assemble all roles. Return False if `stop` was set before."""

    async def build() -> None:
        for assemble in roles:
            await assemble(process)

    building = asyncio.create_task(build())
    stopped = asyncio.create_task(stop.wait())
    await asyncio.wait({building, stopped}, return_when=asyncio.FIRST_COMPLETED)
    stopped.cancel()
    if building.done():
        await building
        return True
    building.cancel()
    await asyncio.gather(building, return_exceptions=True)
    return False


async def _run(process: RoleProcess, stop: asyncio.Event) -> None:
    settings, checks = process.settings, process.checks
    ops = ops_app(checks, process.liveness, _metrics_access(process))
    if process.outage_reason is not None:
        ops.routes.append(leader_route(process.outage_reason))
    process.listeners.append(Listener("ops", ops, settings.ops_listen, own_thread=True))
    process.tasks.append(process.liveness.run_heartbeat)
    servers = Servers(process.listeners)
    checks[NOT_DRAINING] = lambda: not servers.draining
    background = [asyncio.create_task(_run_task(task(), stop)) for task in process.tasks]
    serving_all = _run_task(servers.run(stop, settings.drain_seconds), stop)
    served = asyncio.create_task(serving_all)
    try:
        await asyncio.wait(
            {served, asyncio.ensure_future(servers.started.wait())},
            return_when=asyncio.FIRST_COMPLETED,
        )
        for step in process.after_start:
            background.append(asyncio.create_task(_run_task(_retry_until_done(step), stop)))
        await stop.wait()
        for last in process.before_end:
            await last()
        await served
    finally:
        stop.set()
        for task in background:
            task.cancel()
        outcomes = await asyncio.gather(*background, served, return_exceptions=True)
    for outcome in outcomes:
        if isinstance(outcome, Exception):
            raise outcome


def _metrics_access(process: RoleProcess) -> Access | None:
    """Return the access control of `/metrics`; None: it is public."""
    if process.settings.metrics_public:
        return None
    # Prometheus usually sends its service account token, which has the API server's audience.
    authority = Reviews(process.client, time.monotonic, (AUDIENCE, ""))
    return Access(authority, address_limit=RateLimit(BAD_TOKENS, time.monotonic))


async def _run_task(task: Coroutine[Any, Any, None], stop: asyncio.Event) -> None:
    """Run a task of the process. Stop the process if the task fails."""
    try:
        await task
    except Exception:
        log.exception("a part of the process failed; the process ends")
        stop.set()
        raise


async def _retry_until_done(step: Callable[[], Awaitable[object]]) -> None:
    """Retry a step until it succeeds once. Only changes of the reason are logged."""
    logged = ""
    while True:
        try:
            await step()
        except (ClusterUnavailable, StoreUnavailable) as error:
            why = str(error)
            if why != logged:
                log.warning("the API server or Redis cannot be reached yet", extra={"why": why})
            logged = why
            await asyncio.sleep(RETRY_SECONDS)
        else:
            return
