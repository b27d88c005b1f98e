"""The hallway: the one place where adapters are built and handed to each other.

Builds what the roles of this process need, runs it until a signal, and takes it down again.
"""

from __future__ import annotations

import asyncio
import logging
import signal
import time
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

import uvloop
from fastapi import FastAPI

from app import logs
from app.control.copier import Copier
from app.control.corrections import Corrections
from app.control.inbox import Inbox
from app.control.leader import Leader
from app.control.loop import Loop
from app.control.publisher import Publisher
from app.control.releases import Releases
from app.core.claims import IMPLICIT
from app.core.engine import Engine
from app.core.errors import ClusterUnavailable, StoreUnavailable
from app.core.events import NEEDED, Source
from app.core.model import Millis, Resource
from app.core.resources import ManagedResources
from app.kube import canary
from app.kube.alarm import Alarm
from app.kube.announce import PodAnnouncer
from app.kube.bundle import Bundle
from app.kube.client import Client
from app.kube.corrections import PodAdopter, PodEvictor
from app.kube.installation import KeptInstallation
from app.kube.keeper import Keeper
from app.kube.lease import LeaseLeadership
from app.kube.release import PodReleaser
from app.kube.review import Reviews
from app.kube.sources import watches
from app.kube.status import ResourceStatus
from app.kube.twins import Twins
from app.ports import EventSink
from app.settings import HostPort, Settings
from app.store.connection import Server
from app.store.reader import RedisReader
from app.store.writer import RedisStore
from app.tls.client_ca import ClientCa
from app.tls.renewal import Renewal, first
from app.tls.renewal import Source as CertificateSource
from app.tls.serving import Brought, Kept
from app.web.admission import Enforced, admission_app
from app.web.api import api_app
from app.web.metrics import CERTIFICATE_EXPIRY, Enforcing, Leading
from app.web.ops import ops_app
from app.web.serve import Listener, Servers, allow_connections, renew, require_client, tls_context
from app.web.view import View

RETRY_SECONDS = 1.0

log = logging.getLogger("fairgate")


def now() -> Millis:
    """Return the time that events carry."""
    return Millis(time.time_ns() // 1_000_000)


def serve(settings: Settings) -> None:
    """Run one process until SIGTERM or SIGINT. Raises FairgateError."""
    logs.set_up(settings.log_level)
    allow_connections()
    uvloop.run(_serve(settings))


@dataclass(slots=True)
class _Process:
    """What the roles of this process put together."""

    settings: Settings
    client: Client
    stack: AsyncExitStack
    listeners: list[Listener] = field(default_factory=list)
    checks: dict[str, Callable[[], bool]] = field(default_factory=dict)
    tasks: list[Callable[[], Coroutine[Any, Any, None]]] = field(default_factory=list)
    after_start: list[Callable[[], Awaitable[object]]] = field(default_factory=list)
    before_end: list[Callable[[], Awaitable[object]]] = field(default_factory=list)
    certificate: Renewal | None = None


async def _serve(settings: Settings) -> None:
    stop = asyncio.Event()
    for sign in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(sign, stop.set)
    async with AsyncExitStack() as stack:
        client = await Client.connect(
            settings.kubeconfig, pool_size=settings.release_concurrency + 32
        )
        stack.push_async_callback(client.close)
        process = _Process(settings, client, stack)
        if await _set_up(process, stop):
            await _run(process, stop)


async def _set_up(process: _Process, stop: asyncio.Event) -> bool:
    """Build what the roles need; False if told to stop before that was done."""

    async def build() -> None:
        for role in process.settings.roles:
            await _ROLES[role](process)

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


async def _run(process: _Process, stop: asyncio.Event) -> None:
    settings, checks = process.settings, process.checks
    process.listeners.append(Listener("ops", ops_app(checks), settings.ops_listen))
    servers = Servers(process.listeners)
    checks["not draining"] = lambda: not servers.draining
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


async def _webhook(process: _Process) -> None:
    settings = process.settings
    needs = [Source.TENANTS, Source.POLICIES]
    view = View([*needs, Source.PRIORITIES] if settings.priority_twins else needs)
    _watch(process, view, needs)
    if settings.priority_twins:
        twins = Twins(process.client, view)
        _watch(process, twins, [Source.PRIORITIES])
        process.tasks.append(twins.run)
        process.checks["twins of PriorityClasses made"] = lambda: twins.complete
    certificate = await _certificate(process)
    # What a device class counts as is not known here: whoever asks for one by name is held.
    managed = ManagedResources((*settings.managed_resources, IMPLICIT + "*"))
    enforced = Enforced(
        managed,
        frozenset(settings.exempt_namespaces),
        settings.rules,
        settings.templates,
        frozenset([f"system:serviceaccount:{settings.namespace}:fairgate-controller"]),
    )
    app = admission_app(view, enforced, lambda: view.ready)
    process.listeners.append(_tls_listener(process, "webhook", app, settings.webhook_listen))
    process.checks["tenants known"] = lambda: view.ready
    _guard(process, certificate, view)


def _guard(process: _Process, certificate: Renewal, view: View) -> None:
    """Keep in force what makes the API server ask us, and try whether it does."""
    settings, client = process.settings, process.client
    meters, alarm = Enforcing(), Alarm(client, settings.namespace)
    latest = certificate.serving.ca

    keeper = Keeper(
        client,
        settings.namespace,
        ca=lambda: latest,
        observing=lambda: view.observing if view.ready else None,
        meters=meters,
        alarm=alarm,
        is_ours=certificate.knows,
    )

    async def publish(ca_pem: bytes) -> None:
        nonlocal latest
        latest = ca_pem
        await keeper.publish(ca_pem)

    certificate.publish = publish
    process.tasks.append(keeper.run)
    if settings.canary_seconds:
        trials = canary.Canary(
            client,
            settings.managed_resources,
            seconds=settings.canary_seconds,
            observing=lambda: view.observing,
            meters=meters,
            alarm=alarm,
        )
        process.tasks.append(trials.run)


async def _api(process: _Process) -> None:
    settings = process.settings
    view = View([Source.TENANTS, Source.POOLS])
    _watch(process, view, [Source.TENANTS, Source.POOLS])
    reader = RedisReader(_redis(process), settings.cluster)
    process.checks["tenants and pools known"] = lambda: view.ready
    authority = Reviews(process.client, time.monotonic)
    app = api_app(view, authority, reader, process.checks)
    await _certificate(process)
    process.listeners.append(_tls_listener(process, "api", app, settings.api_listen))


async def _controller(process: _Process) -> None:
    settings, client = process.settings, process.client
    server = _redis(process)
    store = RedisStore(server, settings.cluster)
    process.after_start.append(server.check)
    managed = ManagedResources(settings.managed_resources)
    classes = {each.name: Resource(each.resource) for each in settings.device_classes}
    engine, inbox, meters, heard = (
        Engine(managed, evicts=False, evicts_bypassed=settings.evict_bypassed, classes=classes),
        Inbox(),
        Leading(),
        asyncio.Event(),
    )
    leadership = LeaseLeadership(
        client, settings.namespace, settings.identity, duration=settings.lease_seconds
    )
    releaser = PodReleaser(client, may_act=leadership.is_valid)
    copier = Copier(store, engine, inbox, meters, now, lambda: leader.depose())  # noqa: PLW0108
    releases = Releases(
        releaser,
        copier,
        leadership,
        inbox,
        meters,
        now,
        settings.release_concurrency,
        lambda: leader.depose(),  # noqa: PLW0108
    )
    leader = Leader(
        engine,
        inbox,
        copier,
        releases,
        store,
        releaser,
        leadership,
        KeptInstallation(client, settings.namespace),
        meters,
        now,
        heard,
    )
    corrections = Corrections(
        PodAdopter(client), PodEvictor(client), leadership, inbox, meters, now
    )
    announcer = PodAnnouncer(client)
    publisher = Publisher(engine, ResourceStatus(client), meters, lambda: leader.leads, now)
    loop = Loop(engine, inbox, copier, releases, corrections, announcer, now, heard)
    _watch(process, inbox, sorted(NEEDED, key=lambda source: source.value))
    process.tasks += [part.run for part in (loop, copier, leader, announcer, publisher)]
    process.checks["cluster heard"] = heard.is_set

    async def hand_over() -> None:
        leader.leave()
        await releases.drain(settings.drain_seconds)
        await corrections.stop()
        await leadership.give_up()

    process.before_end.append(hand_over)


_ROLES: dict[str, Callable[[_Process], Awaitable[None]]] = {
    "webhook": _webhook,
    "controller": _controller,
    "api": _api,
}


def _watch(process: _Process, sink: EventSink, sources: list[Source]) -> None:
    settings = process.settings
    process.tasks += [
        watch.run
        for watch in watches(
            process.client,
            sink,
            now,
            sources=sources,
            managed=settings.managed_resources,
            # What is tried there waits for ever: nobody's work, and nobody's numbers.
            exempt=(*settings.exempt_namespaces, canary.NAMESPACE),
        )
    ]


def _redis(process: _Process) -> Server:
    url = process.settings.redis_url
    assert url is not None, "settings require it for these roles"
    server = Server.connect(url)
    process.stack.push_async_callback(server.close)
    return server


async def _certificate(process: _Process) -> Renewal:
    """Return the certificate of this process, got once for all of its roles.

    The webhook makes one if there is none; the others wait for it. It is followed from the start.
    """
    if process.certificate is None:
        settings = process.settings
        settle = timedelta(seconds=settings.tls_settle_seconds)
        source = _certificate_source(process, settle)
        renewal = Renewal(
            source, await first(source), settle=settle, now=_utc, clock=time.monotonic
        )
        CERTIFICATE_EXPIRY.set_function(renewal.seconds_left)
        # An API server that trusts us before we answer would find nobody.
        process.after_start.append(renewal.run)
        process.certificate = renewal
    return process.certificate


def _certificate_source(process: _Process, settle: timedelta) -> CertificateSource:
    settings = process.settings
    if settings.tls_cert_file:
        assert settings.tls_key_file is not None
        assert settings.tls_ca_file is not None
        return Brought(settings.tls_cert_file, settings.tls_key_file, settings.tls_ca_file)
    return Kept(
        Bundle(process.client),
        settings.namespace,
        names=settings.tls_names,
        days=settings.tls_days,
        settle=settle,
        now=_utc,
        writes="webhook" in settings.roles,
    )


def _tls_listener(process: _Process, name: str, app: FastAPI, at: HostPort) -> Listener:
    """Return a listener that shows the certificate, and each that follows it."""
    certificate = process.certificate
    assert certificate is not None, "got by the role before it listens"
    context = tls_context(certificate.serving.certificate, certificate.serving.key)
    certificate.attach(lambda new: renew(context, new.certificate, new.key))
    client_ca = process.settings.tls_client_ca_file
    if name == "webhook" and client_ca:
        process.tasks.append(ClientCa(client_ca, lambda ca: require_client(context, ca)).run)
    return Listener(name, app, at, context)


def _utc() -> datetime:
    return datetime.now(UTC)
