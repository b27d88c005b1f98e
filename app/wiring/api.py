"""The role api: REST, from an engine of its own that watches and decides nothing."""

from __future__ import annotations

import time

from fastapi import FastAPI

from app.control.bulletins import Hearing
from app.control.inbox import Inbox
from app.control.mirror import Mirror
from app.core.engine import Engine
from app.core.events import GROUPS, NEEDED, ClusterEvent
from app.core.model import Resource
from app.core.resources import ManagedResources
from app.kube.api_service import ApiService
from app.kube.front_proxy import FrontProxy
from app.kube.resources import KubeResources
from app.kube.review import Reviews
from app.settings import HostPort
from app.sim.forecasts import Estimates
from app.sim.simulations import WhatIfs
from app.store.audit import AuditReader
from app.store.bulletins import RedisBulletins
from app.store.runs import RedisRuns
from app.tls.renewal import Renewal
from app.tls.trust import is_within
from app.web.access import Access
from app.web.aggregated import Aggregated
from app.web.api.app import api_app
from app.web.api.ground import Ground
from app.web.api.then import ToldQuotas
from app.web.front import FrontDoor
from app.web.pace import Pace
from app.web.serve import Listener
from app.web.view import View
from app.wiring.certificate import certificate_of, publish_also, tls_listener
from app.wiring.process import Process, now, redis_of, reporting_of, watch

STRANGERS = 10
"""Bad tokens a second from one address."""


async def api(process: Process) -> None:
    """Put together what the REST API needs."""
    settings = process.settings
    classes = {each.name: Resource(each.resource) for each in settings.device_classes}
    managed = ManagedResources(settings.managed_resources)
    engine = Engine(managed, evicts=False, classes=classes, records=False)
    inbox, view = Inbox(), View(())
    mirror = Mirror(engine, inbox, now)

    class Both:
        """Tells the view, then the engine."""

        async def put(self, event: ClusterEvent, /) -> None:
            await view.put(event)
            await inbox.put(event)

    both = Both()
    watch(process, both, sorted(NEEDED, key=lambda source: source.value))
    watch(process, both, sorted(GROUPS, key=lambda source: source.value))
    process.tasks.append(mirror.run)
    server = redis_of(process)
    chain = AuditReader(server, settings.cluster)
    hearing = Hearing(RedisBulletins(server, settings.cluster), mirror.hear)
    process.tasks.append(hearing.run)
    process.checks["cluster heard"] = lambda: mirror.seen_whole
    callers, strangers = (Pace(rate, time.monotonic) for rate in (settings.api_rate, STRANGERS))
    access = Access(Reviews(process.client, time.monotonic), callers, strangers)
    runs = RedisRuns(server, settings.cluster)
    estimates = Estimates(
        lambda: engine.outlook.snapshot(now()) if mirror.seen_whole else None, runs, managed
    )
    process.tasks.append(estimates.run)
    simulations = WhatIfs(lambda: engine.outlook.snapshot(now()), lambda: estimates.runs)
    process.stack.push_async_callback(simulations.close)
    ground = Ground(
        access,
        engine,
        lambda: mirror.seen_whole,
        mirror.age,
        now,
        view,
        runs,
        chain,
        KubeResources(process.client),
        reporting_of(process),
        forecasts=estimates,
        past=ToldQuotas(chain, view),
        bulletin=lambda: mirror.bulletin,
        simulations=simulations,
    )
    app = api_app(ground, process.checks)
    certificate = await certificate_of(process)
    process.listeners.append(tls_listener(process, "api", app, settings.api_listen))
    if settings.aggregated_listen is not None:
        _aggregate(process, app, settings.aggregated_listen, certificate)


def _aggregate(process: Process, app: FastAPI, at: HostPort, certificate: Renewal) -> None:
    """Serve the API server too, which asks for its own users."""
    serving = certificate.serving
    door = FrontDoor(serving.certificate, serving.key)
    certificate.attach(lambda new: door.renew(new.certificate, new.key))
    proxy, service = FrontProxy(process.client, door.trust), ApiService(process.client, is_within)
    publish_also(certificate, service.publish)
    process.tasks += [proxy.run, service.run]
    process.checks["front proxy known"] = lambda: proxy.known
    process.listeners.append(Listener("aggregated", Aggregated(app, door), at, door.tls))
