"""The hallway: the one place where adapters are built and handed to each other.

Runs what the roles of this process put together until a signal, and takes it down again. What each
role needs is in the module of its name.
"""

from __future__ import annotations

import asyncio
import logging
import signal
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import AsyncExitStack
from typing import Any

import uvloop

from app import logs
from app.core.errors import ClusterUnavailable, StoreUnavailable
from app.kube.client import Client
from app.settings import Settings
from app.web.ops import SERVES, ops_app
from app.web.serve import Listener, Servers, allow_connections
from app.wiring.api import api
from app.wiring.controller import controller
from app.wiring.process import Adapters, Process
from app.wiring.webhook import webhook

RETRY_SECONDS = 1.0

ROLES: dict[str, Callable[[Process], Awaitable[None]]] = {
    "webhook": webhook,
    "controller": controller,
    "api": api,
}

log = logging.getLogger("fairgate")


def serve(settings: Settings, adapters: Adapters | None = None) -> None:
    """Run one process until SIGTERM or SIGINT. Raises FairgateError."""
    logs.set_up(settings.log_level)
    allow_connections()
    uvloop.run(_serve(settings, adapters or Adapters()))


async def _serve(settings: Settings, adapters: Adapters) -> None:
    stop = asyncio.Event()
    for sign in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(sign, stop.set)
    async with AsyncExitStack() as stack:
        client = await Client.connect(
            settings.kubeconfig, pool_size=settings.release_concurrency + 32
        )
        stack.push_async_callback(client.close)
        process = Process(settings, client, stack, adapters)
        if await _set_up(process, stop):
            await _run(process, stop)


async def _set_up(process: Process, stop: asyncio.Event) -> bool:
    """Build what the roles need; False if told to stop before that was done."""

    async def build() -> None:
        for role in process.settings.roles:
            await ROLES[role](process)

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


async def _run(process: Process, stop: asyncio.Event) -> None:
    settings, checks = process.settings, process.checks
    process.listeners.append(Listener("ops", ops_app(checks), settings.ops_listen))
    servers = Servers(process.listeners)
    checks[SERVES] = lambda: not servers.draining
    background = [asyncio.create_task(_until_ended(task(), stop)) for task in process.tasks]
    serving_all = _until_ended(servers.run(stop, settings.drain_seconds), stop)
    served = asyncio.create_task(serving_all)
    try:
        await asyncio.wait(
            {served, asyncio.ensure_future(servers.started.wait())},
            return_when=asyncio.FIRST_COMPLETED,
        )
        for step in process.after_start:
            background.append(asyncio.create_task(_until_ended(_insist(step), stop)))
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


async def _until_ended(task: Coroutine[Any, Any, None], stop: asyncio.Event) -> None:
    """Run a task of the process; if it fails, the process ends."""
    try:
        await task
    except Exception:
        log.exception("a part of the process failed; the process ends")
        stop.set()
        raise


async def _insist(step: Callable[[], Awaitable[object]]) -> None:
    """Do something once, as soon as those it needs answer."""
    while True:
        try:
            await step()
        except (ClusterUnavailable, StoreUnavailable) as error:
            facts = {"why": str(error)}
            log.warning("the API server or Redis cannot be reached yet", extra=facts)
            await asyncio.sleep(RETRY_SECONDS)
        else:
            return
