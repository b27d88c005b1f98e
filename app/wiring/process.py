"""One process: what its roles put together, and what they have in common. Runs nothing."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from typing import Any

from app.control.reporting import Reporting
from app.core.events import Source
from app.core.model import Millis
from app.kube import trials
from app.kube.client import Client
from app.kube.sources import Watched, watches
from app.ports import EventSink, Store
from app.settings import Settings
from app.store.connection import Server
from app.store.reports import RedisReports
from app.store.writer import RedisStore
from app.tls.renewal import Renewal
from app.web.metrics import WATCH_LAG
from app.web.serve import Listener


def steady(
    wall: Callable[[], int] = time.time_ns,
    elapsed: Callable[[], int] = lambda: time.clock_gettime_ns(
        getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
    ),
) -> Callable[[], Millis]:
    """Return a clock that shows the wall's time as of now, and goes on evenly from there.

    Steps of the wall clock are not seen: they would charge everybody for time that did not pass,
    or stop all that is due by time. Both clocks in nanoseconds.
    """
    offset = wall() - elapsed()
    return lambda: Millis((elapsed() + offset) // 1_000_000)


now = steady()
"""The time that events carry."""


@dataclass(frozen=True, slots=True)
class Adapters:
    """Where a process meets the world, for a build that breaks it there on purpose.

    `patches`: by what a leader sends its release patches.
    """

    store: Callable[[Server, str], Store] = RedisStore
    patches: Callable[[Client], Client] = lambda client: client


@dataclass(slots=True)
class Process:
    """What the roles of this process put together."""

    settings: Settings
    client: Client
    stack: AsyncExitStack
    adapters: Adapters = field(default_factory=Adapters)
    listeners: list[Listener] = field(default_factory=list)
    checks: dict[str, Callable[[], bool]] = field(default_factory=dict)
    tasks: list[Callable[[], Coroutine[Any, Any, None]]] = field(default_factory=list)
    after_start: list[Callable[[], Awaitable[object]]] = field(default_factory=list)
    before_end: list[Callable[[], Awaitable[object]]] = field(default_factory=list)
    certificate: Renewal | None = None
    watched: list[Watched] = field(default_factory=list)


def watch(process: Process, sink: EventSink, sources: list[Source]) -> Watched:
    """Let a sink hear of these sources; return what it sees of them."""
    settings = process.settings
    heard = watches(
        process.client,
        sink,
        now,
        sources=sources,
        managed=settings.managed_resources,
        # What is tried there waits for ever: nobody's work, and nobody's numbers.
        exempt=(*settings.exempt_namespaces, trials.NAMESPACE),
    )
    process.tasks += [each.run for each in heard]
    watched = Watched(heard)
    process.watched.append(watched)
    WATCH_LAG.set_function(lambda: max(each.lag() for each in process.watched))
    return watched


def redis_of(process: Process) -> Server:
    """Return a connection to Redis that ends with the process."""
    url = process.settings.redis_url
    assert url is not None, "settings require it for these roles"
    server = Server.connect(url)
    process.stack.push_async_callback(server.close)
    return server


def reporting_of(process: Process) -> Reporting:
    """Return where a role that does not lead reports what an auditor must know."""
    reporting = Reporting(RedisReports(redis_of(process), process.settings.cluster), now)
    process.tasks.append(reporting.run)
    process.before_end.append(reporting.flush)
    return reporting
