"""The REST API over an engine in memory: what a role api puts together, without a cluster."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

from starlette.types import ASGIApp

from app.core import events as ev
from app.core.engine import Engine
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
from app.core.resources import PODS, ManagedResources
from app.ports import Authority
from app.web.access import Access
from app.web.api.app import api_app
from app.web.api.ground import Ground
from app.web.api.then import ToldQuotas
from app.web.ops import Checks
from app.web.view import View
from tests.fakes.asgi import Reply, call
from tests.fakes.reports import FakeReporter
from tests.fakes.resources import FakeResources
from tests.fakes.rights import Rights
from tests.fakes.runs import FakeRuns
from tests.fakes.trail import FakeTrail, Stream

GPU = Resource("nvidia.com/gpu")
NOW = Millis(1_700_000_000_000)


def ground(authority: Authority) -> Ground:
    """Return what routes share, on fakes: an empty cluster, seen whole."""
    return Ground(
        access=Access(authority),
        engine=Engine(ManagedResources((GPU,)), evicts=False, records=False),
        seen_whole=lambda: True,
        age=lambda: 0,
        now=lambda: NOW,
        view=View(()),
        runs=FakeRuns(),
        chain=FakeTrail(),
        resources=FakeResources(),
        reporter=FakeReporter(),
    )


class Both:
    """An engine that follows, and the view beside it; `app` answers from both."""

    def __init__(self) -> None:
        self.rights = Rights()
        self.resources, self.reporter = FakeResources(), FakeReporter()
        self.engine = Engine(ManagedResources((GPU,)), evicts=False, records=False)
        self.view = View((ev.Source.TENANTS, ev.Source.POOLS))
        self.runs, self.stream = FakeRuns(), Stream()
        chain = FakeTrail(self.stream)
        self.ground = replace(
            ground(self.rights),
            engine=self.engine,
            seen_whole=lambda: self.engine.ready,
            age=lambda: 412,
            view=self.view,
            runs=self.runs,
            chain=chain,
            resources=self.resources,
            reporter=self.reporter,
            past=ToldQuotas(chain, self.view),
        )
        self.checks: Checks = {"redis": lambda: True}
        self._made: tuple[Ground, Checks, ASGIApp] | None = None

    @property
    def app(self) -> ASGIApp:
        if self._made is None or self._made[:2] != (self.ground, self.checks):
            self._made = self.ground, self.checks, api_app(self.ground, self.checks)
        return self._made[2]

    async def hear(self, *events: ev.ClusterEvent) -> None:
        """Hear of these, and take them in."""
        for event in events:
            await self.view.put(event)
            self.engine.handle(event)
        self.engine.handle(ev.Pass(NOW))

    async def open(self) -> None:
        """Hear that all lists were seen whole."""
        await self.hear(*(ev.SourceFresh(NOW, source) for source in ev.Source))

    async def see(self, *pods: Pod) -> None:
        """Hear of pods."""
        await self.hear(*(ev.PodObserved(NOW, pod) for pod in pods))

    async def get(self, path: str, token: str = "alices") -> Reply:
        """Ask, as whoever has this token."""
        return await call(self.app, "GET", path, b"", {"authorization": f"Bearer {token}"})


def node(name: str, gpus: int, **labels: str) -> ev.NodeObserved:
    """Return the sighting of a node."""
    room = {GPU: gpus, PODS: 110}
    return ev.NodeObserved(NOW, Node(NodeName(name), labels, room, True))


def pool(name: str, **labels: str) -> ev.PoolObserved:
    """Return the sighting of a pool."""
    return ev.PoolObserved(NOW, Pool(PoolName(name), labels, uid=f"u-{name}", generation=1))


def tenant(
    name: str,
    weight: int = 1,
    parent: str | None = None,
    users: dict[str, Fraction] | None = None,
    quotas: dict[str, Quota] | None = None,
    **more: object,
) -> ev.TenantObserved:
    """Return the sighting of a tenant that has the namespace of its name."""
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
    """Return the detail of a problem, after checking its form."""
    assert reply.headers["content-type"] == "application/problem+json"
    assert reply.json.keys() == {"type", "title", "status", "detail"}
    assert reply.json["status"] == reply.status
    detail: str = reply.json["detail"]
    return detail
