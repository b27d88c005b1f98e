"""The role api: REST, for reading."""

from __future__ import annotations

import time

from app.core.events import Source
from app.kube.review import Reviews
from app.store.reader import RedisReader
from app.web.api import api_app
from app.web.view import View
from app.wiring.certificate import certificate_of, tls_listener
from app.wiring.process import Process, redis_of, watch


async def api(process: Process) -> None:
    """Put together what the REST API needs."""
    settings = process.settings
    view = View([Source.TENANTS, Source.POOLS])
    watch(process, view, [Source.TENANTS, Source.POOLS])
    reader = RedisReader(redis_of(process), settings.cluster)
    process.checks["tenants and pools known"] = lambda: view.ready
    authority = Reviews(process.client, time.monotonic)
    app = api_app(view, authority, reader, process.checks)
    await certificate_of(process)
    process.listeners.append(tls_listener(process, "api", app, settings.api_listen))
