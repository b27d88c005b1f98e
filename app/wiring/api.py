"""The role api: REST, from an engine of its own that watches and decides nothing."""

from __future__ import annotations

import time

from app.control.bulletins import Hearing
from app.control.inbox import Inbox
from app.control.mirror import Mirror
from app.core.engine import Engine
from app.core.events import NEEDED, ClusterEvent
from app.core.model import Resource
from app.core.resources import ManagedResources
from app.kube.review import Reviews
from app.store.audit import AuditReader
from app.store.bulletins import RedisBulletins
from app.store.runs import RedisRuns
from app.web.access import Access
from app.web.api.app import api_app
from app.web.api.ground import Ground
from app.web.api.then import ToldQuotas
from app.web.view import View
from app.wiring.certificate import certificate_of, tls_listener
from app.wiring.process import Process, now, redis_of, watch


async def api(process: Process) -> None:
    """Put together what the REST API needs."""
    settings = process.settings
    classes = {each.name: Resource(each.resource) for each in settings.device_classes}
    engine = Engine(
        ManagedResources(settings.managed_resources), evicts=False, classes=classes, records=False
    )
    inbox, view = Inbox(), View(())
    mirror = Mirror(engine, inbox, now)

    class Both:
        """Tells the view, then the engine."""

        async def put(self, event: ClusterEvent, /) -> None:
            await view.put(event)
            await inbox.put(event)

    watch(process, Both(), sorted(NEEDED, key=lambda source: source.value))
    process.tasks.append(mirror.run)
    server = redis_of(process)
    chain = AuditReader(server, settings.cluster)
    hearing = Hearing(RedisBulletins(server, settings.cluster), mirror.hear)
    process.tasks.append(hearing.run)
    process.checks["cluster heard"] = lambda: mirror.heard
    access = Access(Reviews(process.client, time.monotonic))
    ground = Ground(
        access,
        engine,
        lambda: mirror.heard,
        mirror.age,
        now,
        view,
        RedisRuns(server, settings.cluster),
        chain,
        past=ToldQuotas(chain, view),
        bulletin=lambda: mirror.bulletin,
    )
    app = api_app(ground, process.checks)
    await certificate_of(process)
    process.listeners.append(tls_listener(process, "api", app, settings.api_listen))
