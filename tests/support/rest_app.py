"""The REST API over an in-memory engine, assembled like an api process, without a cluster."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from functools import cache
from typing import Any

from fastapi import FastAPI
from starlette.types import ASGIApp

from app.core import events as ev
from app.core.engine import Engine
from app.core.engine_options import EngineOptions
from app.core.model import (
    Millis,
    Node,
    NodeName,
    Pod,
    Pool,
    PoolName,
    Quota,
    Resource,
    Tenant,
    TenantName,
    UserName,
)
from app.core.quantities import PODS, ManagedResources
from app.ports.auth import Authorizer
from app.ports.liveness import Liveness
from app.web.api.app import api_app
from app.web.api.auth import Access
from app.web.api.quota_history import AuditedQuotas
from app.web.api.route_context import RouteContext
from app.web.api.stream import StreamTiming
from app.web.health import Checks
from app.web.webhook.cache import WebhookCache
from tests.fakes.fake_audit_stream import FakeTrail, Stream
from tests.fakes.fake_authorizer import Rights
from tests.fakes.fake_forecasts import FakeForecasts
from tests.fakes.fake_pod_events import FakePodEvents
from tests.fakes.fake_queues import FakeQueues
from tests.fakes.fake_reports import FakeReporter
from tests.fakes.fake_tenants_and_pools import FakeResources
from tests.fakes.fake_usage_records import FakeRuns
from tests.support.asgi import Reply, call

GPU = Resource("nvidia.com/gpu")
NOW = Millis(1_700_000_000_000)


def context(authority: Authorizer) -> RouteContext:
    """Return the context of the routes, on fakes: an empty and fully synchronized cluster."""
    managed = ManagedResources((GPU,))
    engine = Engine(managed, EngineOptions(evicts=False, emits_audit_records=False))
    return RouteContext(
        access=Access(authority),
        engine=engine,
        is_synced=lambda: True,
        data_age=lambda: 0,
        now=lambda: NOW,
        view=WebhookCache(()),
        usage_records=FakeRuns(),
        audit_reader=FakeTrail(),
        resources=FakeResources(),
        events=FakePodEvents(),
        reporter=FakeReporter(),
        queues=FakeQueues(engine),
        managed=managed,
        forecasts=FakeForecasts(),
    )


def described_app(
    context: RouteContext, checks: Checks, rhythm: StreamTiming | None = None
) -> FastAPI:
    """Return the REST app. All apps of a process share one OpenAPI document: do not change it."""
    app = api_app(context, checks, Liveness(), rhythm)
    app.openapi_schema = _document()
    return app


@cache
def _document() -> dict[str, Any]:
    return api_app(context(Rights()), {}, Liveness()).openapi()


class Both:
    """A following engine and its view. `app` answers from both."""

    def __init__(self) -> None:
        self.rights = Rights()
        self.resources, self.reporter = FakeResources(), FakeReporter()
        self.engine = Engine(
            ManagedResources((GPU,)), EngineOptions(evicts=False, emits_audit_records=False)
        )
        self.view = WebhookCache((ev.WatchedSource.TENANTS, ev.WatchedSource.POOLS))
        self.runs, self.stream = FakeRuns(), Stream()
        self.queues = FakeQueues(self.engine)
        chain = FakeTrail(self.stream)
        self.context = replace(
            context(self.rights),
            engine=self.engine,
            is_synced=lambda: self.engine.is_ready,
            data_age=lambda: 412,
            view=self.view,
            usage_records=self.runs,
            audit_reader=chain,
            resources=self.resources,
            reporter=self.reporter,
            queues=self.queues,
            past_quotas=AuditedQuotas(chain, self.view),
        )
        self.checks: Checks = {"redis": lambda: True}
        self._made: tuple[RouteContext, Checks, ASGIApp] | None = None

    @property
    def app(self) -> ASGIApp:
        if self._made is None or self._made[:2] != (self.context, self.checks):
            self._made = self.context, self.checks, described_app(self.context, self.checks)
        return self._made[2]

    async def hear(self, *events: ev.ClusterEvent) -> None:
        """Deliver events to the view and to the engine."""
        for event in events:
            await self.view.put(event)
            self.engine.handle(event)
        self.engine.handle(ev.Pass(NOW))

    async def open(self) -> None:
        """Report every list as synchronized."""
        await self.hear(*(ev.SourceFresh(NOW, source) for source in ev.WatchedSource))

    async def see(self, *pods: Pod) -> None:
        """Deliver pods."""
        await self.hear(*(ev.PodObserved(NOW, pod) for pod in pods))

    async def get(self, path: str, token: str = "alices") -> Reply:
        """Send a GET request with this token."""
        return await call(self.app, "GET", path, b"", {"authorization": f"Bearer {token}"})


def node(name: str, gpus: int, **labels: str) -> ev.NodeObserved:
    """Return the event of an observed node."""
    room = {GPU: gpus, PODS: 110}
    return ev.NodeObserved(NOW, Node(NodeName(name), labels, room, True))


def pool(name: str, **labels: str) -> ev.PoolObserved:
    """Return the event of an observed pool."""
    return ev.PoolObserved(NOW, Pool(PoolName(name), labels, uid=f"u-{name}", generation=1))


def tenant(
    name: str,
    weight: int = 1,
    parent: str | None = None,
    users: dict[str, Fraction] | None = None,
    quotas: dict[str, Quota] | None = None,
    **more: object,
) -> ev.TenantObserved:
    """Return the event of an observed tenant with a namespace of the same name."""
    found = Tenant(
        TenantName(name),
        Millis(0),
        Fraction(weight),
        TenantName(parent) if parent else None,
        (name,),
        {UserName(user): each for user, each in (users or {}).items()},
        quotas={PoolName(where): quota for where, quota in (quotas or {}).items()},
        uid=f"u-{name}",
        generation=3,
        **more,  # type: ignore[arg-type]
    )
    return ev.TenantObserved(NOW, found)


def problem(reply: Reply) -> str:
    """Check the format of a problem response and return its detail."""
    assert reply.headers["content-type"] == "application/problem+json"
    assert reply.json.keys() == {"type", "code", "title", "status", "detail"}
    assert reply.json["type"] == f"tag:fairgate.io,2026:problems/{reply.json['code']}"
    assert reply.json["code"] != "Unknown"
    assert reply.json["status"] == reply.status
    detail: str = reply.json["detail"]
    return detail
