"""The parts of one process that its roles share: settings, listeners, tasks, checks and clock."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from typing import Any

from app.config.settings import Settings
from app.controller.audit_reports import AuditReportSender
from app.core.events import WatchedSource
from app.core.model import Millis
from app.kube import enforcement_probes
from app.kube.client import Client
from app.kube.informer.sources import RunningWatches, new_reflectors
from app.ports.cluster import EventSink
from app.ports.liveness import Liveness, Steps
from app.ports.store import Store
from app.store.audit_reports import RedisReports
from app.store.connection import Server
from app.store.leader_store import RedisStore
from app.tls.certificate_watcher import Renewal
from app.web.metrics import SLOW_STEPS, WATCH_INTERRUPTIONS, WATCH_LAG
from app.web.server.server import Listener


def steady_clock(
    wall: Callable[[], int] = time.time_ns,
    elapsed: Callable[[], int] = lambda: time.clock_gettime_ns(
        getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
    ),
) -> Callable[[], Millis]:
    """Return a clock that starts at the wall clock's time and then runs evenly.

    It ignores later steps of the wall clock: a step would charge usage for time that did not pass,
    or stop all timers. Both arguments return nanoseconds.
    """
    offset = wall() - elapsed()
    return lambda: Millis((elapsed() + offset) // 1_000_000)


now = steady_clock()
"""The clock of all event times."""


@dataclass(frozen=True, slots=True)
class Adapters:
    """Adapters that fault tests replace. `patches`: the client for release patches."""

    store: Callable[[Server, str], Store] = RedisStore
    patches: Callable[[Client], Client] = lambda client: client


@dataclass(slots=True)
class RoleProcess:
    """The parts of this process. Each role adds its own."""

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
    outage_reason: Callable[[], str] | None = None
    """Returns why no pod is released; empty: pods are. None: this process is no controller."""
    watched: list[RunningWatches] = field(default_factory=list)
    liveness: Liveness = field(default_factory=Liveness)

    @property
    def steps(self) -> Steps:
        """The reporter of finished steps."""
        return Steps(self.liveness, lambda kind: SLOW_STEPS.labels(kind).inc())


def watch(process: RoleProcess, sink: EventSink, sources: list[WatchedSource]) -> RunningWatches:
    """Start watches that pass these sources to a sink; return them."""
    settings = process.settings
    heard = new_reflectors(
        process.client,
        sink,
        now,
        sources=sources,
        managed=settings.managed_resources,
        # The pod of the enforcement probes is held for ever, and must not count as workload.
        exempt=(*settings.exempt_namespaces, enforcement_probes.NAMESPACE),
        interrupted=lambda source: WATCH_INTERRUPTIONS.labels(source.value).inc(),
        steps=process.steps,
    )
    process.tasks += [each.run for each in heard]
    watched = RunningWatches(heard)
    process.watched.append(watched)
    WATCH_LAG.set_function(lambda: max(each.seconds_since_data() for each in process.watched))
    return watched


def connect_redis(process: RoleProcess) -> Server:
    """Return a connection to Redis that ends with the process."""
    url = process.settings.redis_url
    assert url is not None, "settings require it for these roles"
    server = Server.connect(url)
    process.stack.push_async_callback(server.close)
    return server


def create_report_sender(process: RoleProcess) -> AuditReportSender:
    """Return the sender of audit reports for a role that does not lead."""
    reporting = AuditReportSender(
        RedisReports(connect_redis(process), process.settings.cluster), now
    )
    process.tasks.append(reporting.deliver_reports)
    process.before_end.append(reporting.flush)
    return reporting
