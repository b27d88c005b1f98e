"""The controller around a real engine, with fakes for every port."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from app.controller.adopt_evict import AdoptEvictExecutor
from app.controller.engine_loop import EngineLoop
from app.controller.event_queue import EventQueue
from app.controller.leader import Leader
from app.controller.pod_costs import PodCosts
from app.controller.reclaim_executor import EvictionRateLimiter, Reclaims
from app.controller.release_executor import Releases
from app.controller.status_publisher import Publisher
from app.controller.store_writer import StoreWriter
from app.controller.takeover import Takeover
from app.core import events as ev
from app.core.effects import EmitEvent
from app.core.engine import Engine
from app.core.engine_options import EngineOptions
from app.core.errors import ClusterError
from app.core.explain.backlog_stats import BacklogStats
from app.core.explain.views import ClusterView
from app.core.model import (
    Millis,
    Node,
    NodeName,
    Pod,
    PoolName,
    ReleaseOutcome,
    Resource,
    TenantName,
)
from app.core.quantities import PODS, ManagedResources
from app.ports.cluster import StoredCondition, StoredStatus
from app.ports.liveness import Liveness, Steps
from tests.fakes.fake_checkpoint_store import FakeKeeper
from tests.fakes.fake_claim_protector import FakeClaims
from tests.fakes.fake_evictor import FakeCorrector, FakeInstallation
from tests.fakes.fake_pods import FakeReleaser, StoredPod
from tests.fakes.fake_recorder import FakeRecorder
from tests.fakes.fake_store import Contents, FakeStore, Memory
from tests.fakes.fake_watch_sync import FakeEpochs, FakeSight

GPU = Resource("nvidia.com/gpu")
NODE = NodeName("n")


@dataclass
class FakeLead:
    """`ports.leadership.Leadership` that a test grants and revokes."""

    free: asyncio.Event = field(default_factory=asyncio.Event)
    over: asyncio.Event = field(default_factory=asyncio.Event)
    transitions: int = 4
    declined: int = 0
    taken: int = 0

    async def acquire(self, fit: Callable[[], Awaitable[bool]] | None = None) -> int:
        await self.free.wait()
        while fit is not None and not await fit():
            self.declined += 1
            await asyncio.sleep(0.01)
        self.taken += 1
        self.over.clear()
        return self.transitions

    def seconds_left(self) -> float:
        return 0.0 if self.over.is_set() else 60.0

    async def wait_until_lost(self) -> None:
        await self.over.wait()

    async def release_lease(self) -> None:
        self.over.set()


@dataclass
class FakeMeters:
    """`ports.metrics.LeaderMetrics` that stores its values."""

    epochs: list[int | None] = field(default_factory=list)
    answers: list[ReleaseOutcome] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)
    views: list[ClusterView] = field(default_factory=list)
    drifts: list[float] = field(default_factory=list)
    pressures: list[Mapping[TenantName, BacklogStats]] = field(default_factory=list)
    evictions: list[tuple[TenantName, str, Mapping[Resource, float]]] = field(default_factory=list)
    refusals: list[TenantName] = field(default_factory=list)
    loops: list[TenantName] = field(default_factory=list)
    useless: list[dict[tuple[TenantName, str], int]] = field(default_factory=list)
    strays: int = 0
    overridden: list[TenantName] = field(default_factory=list)
    nodes_refusing: list[tuple[str, str]] = field(default_factory=list)

    def set_leading_epoch(self, epoch: int | None) -> None:
        self.epochs.append(epoch)

    def set_shares(self, view: ClusterView) -> None:
        self.views.append(view)

    def set_backlog(
        self,
        view: ClusterView,
        pressure: Mapping[TenantName, BacklogStats],
        fragmentation: Mapping[PoolName, float],
    ) -> None:
        self.pressures.append(pressure)

    def count_eviction(
        self, tenant: TenantName, cause: str, lost: Mapping[Resource, float]
    ) -> None:
        self.evictions.append((tenant, cause, lost))

    def count_refused_eviction(self, tenant: TenantName) -> None:
        self.refusals.append(tenant)

    def count_overridden_budget(self, tenant: TenantName) -> None:
        self.overridden.append(tenant)

    def count_reclaim_on_cooldown(self, tenant: TenantName) -> None:
        self.loops.append(tenant)

    def set_stale_pods(self, count: Mapping[tuple[TenantName, str], int]) -> None:
        self.useless.append(dict(count))

    def set_drift(self, ratio: float) -> None:
        self.drifts.append(ratio)

    def count_release(
        self,
        tenant: TenantName,
        pool: PoolName,
        answer: ReleaseOutcome,
        seconds: float,
        waited: float | None = None,
    ) -> None:
        self.answers.append(answer)

    def count_bypass(self) -> None:
        self.strays += 1

    def count_node_refusal(self, pool: PoolName, reason: str) -> None:
        self.nodes_refusing.append((pool, reason))

    def count_store_failure(self, operation: str) -> None:
        self.failures.append(operation)


@dataclass
class EmittedEvents:
    """`ports.cluster.EventEmitter` that stores its events."""

    notices: list[EmitEvent] = field(default_factory=list)

    def emit(self, notice: EmitEvent) -> None:
        self.notices.append(notice)


@dataclass
class Written:
    """`ports.cluster.StatusWriter` that stores its writes."""

    statuses: dict[tuple[str, str], dict[str, object]] = field(default_factory=dict)
    stored: dict[tuple[str, str, str], StoredCondition] = field(default_factory=dict)
    """By kind, name and type: the conditions before the first write."""
    writes: int = 0
    refusal: ClusterError | None = None
    """Raised once."""
    broken: dict[tuple[str, str], ClusterError] = field(default_factory=dict)
    """Raised at each write of this object."""
    lost: ClusterError | None = None
    """Raised once, after the write."""

    async def read_status(self, kind: str) -> StoredStatus:
        conditions = {(name, of): each for (k, name, of), each in self.stored.items() if k == kind}
        return StoredStatus(conditions, self._keys(kind))

    def _keys(self, kind: str) -> dict[tuple[str, str], frozenset[str]]:
        return {
            (name, field): frozenset(value)
            for (k, name), status in self.statuses.items()
            for field, value in status.items()
            if k == kind and isinstance(value, dict)
        }

    async def write_status(self, kind: str, name: str, status: dict[str, object]) -> None:
        if self.refusal is not None:
            refusal, self.refusal = self.refusal, None
            raise refusal
        if (kind, name) in self.broken:
            raise self.broken[kind, name]
        self.statuses[kind, name] = merge(self.statuses.get((kind, name), {}), status)
        self.writes += 1
        if self.lost is not None:
            lost, self.lost = self.lost, None
            raise lost


def merge(stored: dict[str, object], patch: dict[str, object]) -> dict[str, object]:
    """Return the result of a JSON merge patch (RFC 7386)."""
    merged = dict(stored)
    for key, value in patch.items():
        if isinstance(value, dict):
            before = stored.get(key)
            value = merge(before if isinstance(before, dict) else {}, value)
        if value is None:
            merged.pop(key, None)
        else:
            merged[key] = value
    return merged


class Listening(EventQueue):
    """An `EventQueue` that counts its waits and stores the last time-out."""

    patience = 0.0
    waits = 0

    async def take_batch(self, seconds: float, not_before: float = 0.0) -> list[ev.NewsEvent]:
        self.patience = seconds
        self.waits += 1
        return await super().take_batch(seconds, not_before)


class Rig:
    """The complete controller on fakes."""

    def __init__(self, memory: Memory | None = None) -> None:
        self.memory = memory or Memory()
        self.store = FakeStore(self.memory)
        self.engine = Engine(ManagedResources([GPU]), EngineOptions(evicts_bypassed=True))
        self.corrector, self.installation = FakeCorrector(), FakeInstallation(Millis(30_000))
        self.keeper = FakeKeeper()
        self.inbox, self.lead, self.meters = Listening(), FakeLead(), FakeMeters()
        self.told, self.written = EmittedEvents(), Written()
        self.sight, self.anchor = FakeSight(), FakeEpochs()
        self.parts: dict[str, asyncio.Task[None]] = {}
        self.releaser = FakeReleaser(lambda: self.lead.seconds_left() > 0)
        self.now = Millis(60_000)
        clock: Callable[[], Millis] = lambda: self.now  # noqa: E731
        heard = asyncio.Event()
        self.copier = StoreWriter(
            self.store, self.engine, self.inbox, self.meters, clock, self.depose
        )
        self.releases = Releases(
            self.releaser, self.copier, self.lead, self.inbox, self.meters, clock, 4, self.depose
        )
        self.recorder = FakeRecorder()
        self.slow: list[str] = []
        opening = Takeover(
            self.engine, self.inbox, self.store, self.releaser, self.installation, self.sight,
            self.keeper, self.anchor, clock, heard,
        )  # fmt: skip
        self.leader = Leader(
            opening, self.lead, self.inbox, self.copier, self.releases, self.anchor, self.meters,
            clock,
        )  # fmt: skip
        self.corrections = AdoptEvictExecutor(
            self.corrector, FakeClaims(), self.corrector, self.corrector, self.lead, self.inbox,
            self.meters, clock,
        )  # fmt: skip
        self.reclaims = Reclaims(
            self.corrector,
            self.lead,
            self.inbox,
            self.meters,
            clock,
            self.engine.is_eviction_needed,
            EvictionRateLimiter(100_000),
            self.engine.queries.released_view,
            pauses=(0.0,),
        )
        self.loop = EngineLoop(
            self.engine, self.inbox, self.copier, self.releases, self.corrections, self.reclaims,
            self.told, self.recorder, clock, heard, Steps(Liveness(), self.slow.append),
            PodCosts(),
        )  # fmt: skip
        self.publisher = Publisher(
            self.engine, self.written, self.meters, lambda: self.leader.is_leading, clock
        )

    def depose(self) -> None:
        self.leader.end_term()

    async def hear(self, *events: ev.NewsEvent) -> None:
        for event in events:
            await self.inbox.put(event)

    async def open(self, gpus: int) -> None:
        node = Node(NODE, {}, {GPU: gpus, PODS: 1000}, True)
        await self.hear(ev.NodeObserved(Millis(0), node))
        await self.hear(*(ev.SourceFresh(Millis(0), source) for source in ev.WatchedSource))

    async def create(self, pod: Pod) -> None:
        self.releaser.pods[pod.namespace, pod.name] = StoredPod(pod.uid, pod.release_annotation)
        await self.hear(ev.PodObserved(Millis(0), pod))

    def released(self) -> int:
        return sum(not pod.held for pod in self.releaser.pods.values())

    def stamps(self) -> dict[str, str]:
        """Return the release annotation of every pod, by name."""
        return {name: pod.stamp for (_, name), pod in self.releaser.pods.items()}

    def is_copy(self) -> bool:
        return self.memory.contents == Contents.of(self.engine.store_writes())

    def is_settled(self) -> bool:
        """Return whether the store equals the engine, and no release is under way."""
        contents = self.memory.contents
        return self.is_copy() and contents is not None and not contents.intents()


@asynccontextmanager
async def running(rig: Rig, gpus: int = 2) -> AsyncIterator[Rig]:
    parts = {
        "loop": rig.loop.run,
        "copier": rig.copier.write_changes,
        "leader": rig.leader.run,
        "publisher": rig.publisher.publish_status,
    }
    rig.parts = {name: asyncio.create_task(part()) for name, part in parts.items()}
    tasks = list(rig.parts.values())
    try:
        await rig.open(gpus)
        yield rig
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await rig.releases.stop()
        await rig.corrections.stop()
        await rig.reclaims.stop()


async def until(true: Callable[[], bool]) -> None:
    async with asyncio.timeout(20):
        while not true():
            await asyncio.sleep(0.005)
