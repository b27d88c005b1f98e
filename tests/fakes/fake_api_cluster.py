"""An in-memory cluster with tenants, users, pools and pods, and the real REST app on top.

The real server runs in a thread with its own event loop. Only Redis and the client for tokens and
rights are fakes.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from email.utils import formatdate
from fractions import Fraction
from typing import Any

from fastapi import FastAPI
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from app.config.setting_parsers import HostPort
from app.core import events as ev
from app.core.audit.codec import entry_line
from app.core.audit_entry import AuditRecord, EntryType, Fact, seal
from app.core.engine import Engine
from app.core.engine_options import EngineOptions
from app.core.explain.views import LeaderStateMessage
from app.core.fairshare.usage_record import UsageRecord
from app.core.model import (
    Millis,
    Node,
    NodeName,
    Phase,
    Pod,
    Pool,
    PoolName,
    Quota,
    Resource,
    Tenant,
    TenantName,
    Uid,
    UserName,
)
from app.core.quantities import PODS, ManagedResources
from app.ports.api import EnforcementResult
from app.ports.forecasts import Simulations
from app.sim.cluster.virtual_cluster import held_pod
from app.web.api.route_context import RouteContext
from app.web.api.stream import StreamTiming
from app.web.health import NOT_DRAINING
from app.web.server.server import Listener, Servers
from app.web.webhook.cache import WebhookCache
from tests.fakes.fake_audit_stream import FakeTrail, Stream
from tests.fakes.fake_authorizer import Rights
from tests.fakes.fake_pod_events import FakePodEvents
from tests.fakes.fake_queues import FakeQueues
from tests.fakes.fake_tenants_and_pools import FakeResources
from tests.fakes.fake_usage_records import FakeRuns
from tests.support.rest_app import context, described_app

GPU = Resource("nvidia.com/gpu")
LOOPBACK = HostPort("127.0.0.1", 0)
NOW = Millis(1_790_000_000_000)

ALICE = "alice@example.com"

EVERYTHING = {
    ("get", "stream"),
    ("list", "tenants"),
    ("list", "pools"),
    ("get", "tenants/queue"),
    ("get", "tenants/usage"),
}


def running(name: str, namespace: str, user: str, pool: str, node: str, devices: int = 1) -> Pod:
    """Return a pod that was released and runs."""
    pod = held_pod(name, namespace, devices, user=user)
    return replace(
        pod,
        gates=(),
        release_annotation="1.1",
        node=NodeName(node),
        pool=PoolName(pool),
        phase=Phase.RUNNING,
        started_at=NOW,
    )


@dataclass
class ApiCluster:
    """The objects of the cluster, and the rights of the callers."""

    rights: Rights = field(
        default_factory=lambda: Rights(set(EVERYTHING), name="alice@example.com")
    )
    leader_message: LeaderStateMessage | None = None
    past: FakeRuns = field(default_factory=FakeRuns)
    stream: Stream = field(default_factory=Stream)
    now: Millis = NOW
    stays: bool = True
    reachable: bool = True
    leader_state_read: bool = True
    age: int = 0
    enforcement: EnforcementResult | None = None
    resources: FakeResources = field(default_factory=FakeResources)
    events: FakePodEvents = field(default_factory=FakePodEvents)
    simulations: Simulations | None = None

    def __post_init__(self) -> None:
        self.engine = Engine(ManagedResources([GPU]), EngineOptions(emits_audit_records=False))
        self.view = WebhookCache((ev.WatchedSource.TENANTS, ev.WatchedSource.POOLS))

    async def open(self) -> None:
        """Report every list as synchronized."""
        await self.deliver(*(ev.SourceFresh(self.now, source) for source in ev.WatchedSource))

    async def deliver(self, *events: ev.ClusterEvent) -> None:
        """Deliver an event to the replica."""
        for event in events:
            await self.view.put(event)
            self.engine.handle(event)
        self.engine.handle(ev.Pass(self.now))

    def app(self, rhythm: StreamTiming | None = None) -> FastAPI:
        """Return the REST app."""
        return described_app(self.context(), {NOT_DRAINING: lambda: self.stays}, rhythm)

    def context(self) -> RouteContext:
        """Return the context of the routes."""
        return replace(
            context(self.rights),
            engine=self.engine,
            is_synced=lambda: self.view.is_ready,
            now=lambda: self.now,
            view=self.view,
            queues=FakeQueues(self.engine),
            leader_message=lambda: self.leader_message,
            leader_state_read=lambda: self.leader_state_read,
            store_reachable=lambda: self.reachable,
            data_age=lambda: self.age,
            enforcement=lambda: self.enforcement,
            usage_records=self.past,
            audit_reader=FakeTrail(self.stream),
            resources=self.resources,
            events=self.events,
            simulations=self.simulations,
        )


def tenant(
    name: str,
    weight: int | str = 1,
    *,
    parent: str | None = None,
    users: dict[str, int] | None = None,
    quotas: dict[str, Quota] | None = None,
) -> ev.TenantObserved:
    """Return the event of a tenant with one namespace of the same name."""
    return ev.TenantObserved(
        NOW,
        Tenant(
            TenantName(name),
            NOW,
            Fraction(weight),
            parent=TenantName(parent) if parent else None,
            namespaces=(name,),
            user_weights={UserName(u): Fraction(w) for u, w in (users or {}).items()},
            quotas={PoolName(p): q for p, q in (quotas or {}).items()},
        ),
    )


def pool(name: str, nodes: int, devices: int = 8, worth: int = 1) -> list[ev.ClusterEvent]:
    """Return the events of a pool and its nodes."""
    made: list[ev.ClusterEvent] = [
        ev.PoolObserved(NOW, Pool(PoolName(name), {"kind": name}, {GPU: Fraction(worth)}))
    ]
    for number in range(nodes):
        node = NodeName(f"{name}-{number:02}")
        made.append(
            ev.NodeObserved(NOW, Node(node, {"kind": name}, {GPU: devices, PODS: 110}, True))
        )
    return made


def held(name: str, namespace: str, user: str, devices: int = 1) -> ev.PodObserved:
    """Return the event of a waiting pod."""
    return ev.PodObserved(NOW, held_pod(name, namespace, devices, user=user, since=NOW))


def runs(name: str, namespace: str, user: str, node: str, devices: int = 1) -> ev.PodObserved:
    """Return the event of a running pod."""
    where = node.rsplit("-", 1)[0]
    return ev.PodObserved(NOW, running(name, namespace, user, where, node, devices))


def busy() -> list[ev.ClusterEvent]:
    """Return the events of a cluster with running and waiting pods of several tenants."""
    news: list[ev.ClusterEvent] = [*pool("h100", 8, worth=4), *pool("t4", 4, devices=4)]
    news += [
        tenant("research", 3, quotas={"h100": Quota({GPU: 16}, {GPU: 56})}),
        tenant("vision", 2, parent="research", users={"alice@example.com": 3}),
        tenant("language", 1, parent="research"),
        tenant("robotics", 1, quotas={"h100": Quota({GPU: 8}, {GPU: 24})}),
        tenant("teaching", 1),
    ]
    work: list[tuple[str, str, str, int]] = [
        ("vision", "alice@example.com", "h100-00", 8),
        ("vision", "alice@example.com", "h100-01", 8),
        ("vision", "bob@example.com", "h100-02", 6),
        ("language", "carol@example.com", "h100-03", 8),
        ("language", "carol@example.com", "h100-04", 4),
        ("robotics", "dave@example.com", "h100-05", 8),
        ("robotics", "erin@example.com", "h100-06", 8),
        ("robotics", "erin@example.com", "h100-07", 4),
        ("teaching", "frank@example.com", "t4-00", 4),
        ("teaching", "grace@example.com", "t4-01", 3),
        ("notebooks", "heidi@example.com", "t4-02", 2),
    ]
    for index, (namespace, user, node, devices) in enumerate(work):
        news.append(runs(f"run-{index}", namespace, user, node, devices))
    waiting: Sequence[tuple[str, str, int, int]] = [
        ("vision", "alice@example.com", 12, 4),
        ("vision", "bob@example.com", 5, 8),
        ("language", "carol@example.com", 31, 8),
        ("robotics", "erin@example.com", 7, 8),
        ("teaching", "frank@example.com", 40, 8),
    ]
    for namespace, user, count, devices in waiting:
        news += [held(f"wait-{n}", namespace, user, devices) for n in range(count)]
    return news


def ran(tenant: str, devices: int, since: int, until: int, pool: str = "h100") -> UsageRecord:
    """Return a usage record that began `since` and ended `until` minutes ago."""
    uid = Uid(f"{tenant}-{pool}-{since}-{until}")
    name, user = TenantName(tenant), UserName("u")
    begin, end = Millis(NOW - since * 60_000), Millis(NOW - until * 60_000)
    return UsageRecord(
        uid, tenant, uid, uid, name, user, PoolName(pool), {GPU: devices}, begin, end=end
    )


def record_releases(
    stream: Stream, tenant: str, devices: int, waits: Sequence[int], minutes: int = 30
) -> None:
    """Append audit entries about releases some minutes ago, one for each wait in seconds."""
    at = Millis(NOW - minutes * 60_000)
    for waited in waits:
        facts: dict[str, Fact] = {
            "tenant": tenant,
            "namespace": tenant,
            "pod": f"job-{len(stream.rows) + 1}",
            "amounts": {str(GPU): str(devices)},
        }
        record = AuditRecord(at, EntryType.RELEASED, facts | {"waited": waited})
        entry = seal(stream.last(), 1, record)
        stream.rows.append((entry.number, entry_line(entry)))


class Served:
    """An `ApiCluster` behind a real server. `do` changes it in the server's own loop."""

    def __init__(self, cluster: ApiCluster, loop: asyncio.AbstractEventLoop, url: str) -> None:
        self.cluster = cluster
        self.url = url
        self._loop = loop

    def deliver(self, *events: ev.ClusterEvent) -> None:
        """Deliver an event to the replica."""
        self.do(self.cluster.deliver(*events))

    def do(self, entry_type: Coroutine[Any, Any, None]) -> None:
        """Run a function in the server's own loop."""
        asyncio.run_coroutine_threadsafe(entry_type, self._loop).result(30)


def _dated(app: ASGIApp, cluster: ApiCluster) -> ASGIApp:
    """Return the app with the time of the cluster as the header Date of its answers."""

    async def answer(scope: Scope, receive: Receive, send: Send) -> None:
        async def send_dated(message: Message) -> None:
            if message["type"] == "http.response.start":
                date = formatdate(cluster.now / 1000, usegmt=True).encode()
                message = {**message, "headers": [*message.get("headers", ()), (b"date", date)]}
            await send(message)

        await app(scope, receive, send_dated)

    return answer


@contextmanager
def served(
    cluster: ApiCluster, rhythm: StreamTiming | None = None, at: HostPort = LOOPBACK
) -> Iterator[Served]:
    """Serve an `ApiCluster` until the end of the block."""
    loop, stop = asyncio.new_event_loop(), asyncio.Event()
    found: list[int] = []
    up = threading.Event()

    async def run() -> None:
        await cluster.open()
        servers = Servers([Listener("api", _dated(cluster.app(rhythm), cluster), at)])
        for server, _ in servers._servers:
            server.config.date_header = False

        async def told() -> None:
            await servers.started.wait()
            found.append(servers.ports["api"])
            up.set()

        telling = asyncio.create_task(told())
        await servers.run(stop, 0)
        await telling

    thread = threading.Thread(target=lambda: loop.run_until_complete(run()))
    thread.start()
    try:
        assert up.wait(30), "the server did not start"
        yield Served(cluster, loop, f"http://127.0.0.1:{found[0]}")
    finally:
        cluster.stays = False
        loop.call_soon_threadsafe(stop.set)
        thread.join()
        loop.close()
