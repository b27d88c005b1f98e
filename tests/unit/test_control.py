"""The shell around the engine: what it does with effects, and when the store or the lead goes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from dataclasses import replace as changed

import pytest

from app.control.copier import MOST_DUE, Copier
from app.control.corrections import Corrections
from app.control.inbox import Inbox
from app.control.leader import Leader
from app.control.loop import TICK_SECONDS, Loop
from app.control.opening import Opening
from app.control.publisher import Publisher
from app.control.reclaims import Allowance, Reclaims
from app.control.releases import Releases
from app.core import events as ev
from app.core.audit import Deed
from app.core.effects import Dequeue, Notice, Tell
from app.core.engine import Engine
from app.core.errors import ClusterError, ClusterRefused
from app.core.model import (
    DEFAULT_POOL,
    HELD,
    Answer,
    Millis,
    Node,
    NodeName,
    Pod,
    PoolName,
    Quota,
    Resource,
    Tenant,
    TenantName,
    Uid,
    UserName,
)
from app.core.resources import PODS, ManagedResources
from app.core.telling.pressure import Pressure
from app.core.telling.views import View
from app.sim.world import held_pod
from tests.fakes.corrections import FakeCorrector, FakeInstallation, FreePod
from tests.fakes.keeper import FakeKeeper
from tests.fakes.pods import FakeReleaser, StoredPod
from tests.fakes.recorder import FakeRecorder
from tests.fakes.sight import FakeEpochs, FakeSight
from tests.fakes.store import Contents, FakeStore, Memory

GPU = Resource("nvidia.com/gpu")
NODE = NodeName("n")


@dataclass
class FakeLead:
    """`ports.Leadership` that a test hands out and takes away."""

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

    def left(self) -> float:
        return 0.0 if self.over.is_set() else 60.0

    async def lost(self) -> None:
        await self.over.wait()

    async def give_up(self) -> None:
        self.over.set()


@dataclass
class FakeMeters:
    """`ports.Meters` that remembers."""

    epochs: list[int | None] = field(default_factory=list)
    answers: list[Answer] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)
    views: list[View] = field(default_factory=list)
    drifts: list[float] = field(default_factory=list)
    pressures: list[Mapping[TenantName, Pressure]] = field(default_factory=list)
    evictions: list[tuple[TenantName, str, Mapping[Resource, float]]] = field(default_factory=list)
    refusals: list[TenantName] = field(default_factory=list)
    loops: list[TenantName] = field(default_factory=list)
    useless: list[dict[tuple[TenantName, str], int]] = field(default_factory=list)
    strays: int = 0

    def leading(self, epoch: int | None) -> None:
        self.epochs.append(epoch)

    def shares(self, view: View) -> None:
        self.views.append(view)

    def pressing(
        self,
        view: View,
        pressure: Mapping[TenantName, Pressure],
        fragmentation: Mapping[PoolName, float],
    ) -> None:
        self.pressures.append(pressure)

    def evicted(self, tenant: TenantName, cause: str, lost: Mapping[Resource, float]) -> None:
        self.evictions.append((tenant, cause, lost))

    def eviction_refused(self, tenant: TenantName) -> None:
        self.refusals.append(tenant)

    def loop_refused(self, tenant: TenantName) -> None:
        self.loops.append(tenant)

    def zombies(self, count: Mapping[tuple[TenantName, str], int]) -> None:
        self.useless.append(dict(count))

    def drifted(self, ratio: float) -> None:
        self.drifts.append(ratio)

    def released(
        self,
        tenant: TenantName,
        pool: PoolName,
        answer: Answer,
        seconds: float,
        waited: float | None = None,
    ) -> None:
        self.answers.append(answer)

    def bypassed(self) -> None:
        self.strays += 1

    def store_failed(self, operation: str) -> None:
        self.failures.append(operation)


@dataclass
class Told:
    """`ports.Announcer` that remembers."""

    notices: list[Tell] = field(default_factory=list)

    def tell(self, notice: Tell) -> None:
        self.notices.append(notice)


@dataclass
class Written:
    """`ports.StatusWriter` that remembers."""

    statuses: dict[tuple[str, str], dict[str, object]] = field(default_factory=dict)
    writes: int = 0
    refusal: ClusterError | None = None
    """Raised once."""

    async def write_status(self, kind: str, name: str, status: dict[str, object]) -> None:
        if self.refusal is not None:
            refusal, self.refusal = self.refusal, None
            raise refusal
        self.statuses[kind, name] = status
        self.writes += 1


class Listening(Inbox):
    """The inbox, which remembers how often, and how long last, it was waited at."""

    patience = 0.0
    waits = 0

    async def take(self, seconds: float) -> list[ev.NewsEvent]:
        self.patience = seconds
        self.waits += 1
        return await super().take(seconds)


class Rig:
    """All of control, on fakes."""

    def __init__(self, memory: Memory | None = None) -> None:
        self.memory = memory or Memory()
        self.store = FakeStore(self.memory)
        self.engine = Engine(ManagedResources([GPU]), evicts_bypassed=True)
        self.corrector, self.installation = FakeCorrector(), FakeInstallation(Millis(30_000))
        self.keeper = FakeKeeper()
        self.inbox, self.lead, self.meters = Listening(), FakeLead(), FakeMeters()
        self.told, self.written = Told(), Written()
        self.sight, self.anchor = FakeSight(), FakeEpochs()
        self.parts: dict[str, asyncio.Task[None]] = {}
        self.releaser = FakeReleaser(lambda: self.lead.left() > 0)
        self.now = Millis(60_000)
        clock: Callable[[], Millis] = lambda: self.now  # noqa: E731
        heard = asyncio.Event()
        self.copier = Copier(self.store, self.engine, self.inbox, self.meters, clock, self.depose)
        self.releases = Releases(
            self.releaser, self.copier, self.lead, self.inbox, self.meters, clock, 4, self.depose
        )
        self.recorder = FakeRecorder()
        opening = Opening(
            self.engine, self.inbox, self.store, self.releaser, self.installation, self.sight,
            self.keeper, self.anchor, clock, heard,
        )  # fmt: skip
        self.leader = Leader(
            opening, self.lead, self.inbox, self.copier, self.releases, self.anchor, self.meters,
            clock,
        )  # fmt: skip
        self.corrections = Corrections(
            self.corrector, self.corrector, self.lead, self.inbox, self.meters, clock
        )
        self.reclaims = Reclaims(
            self.corrector, self.lead, self.inbox, self.meters, clock, self.engine.wants_gone,
            Allowance(100_000), self.engine.outlook.released, pauses=(0.0,),
        )  # fmt: skip
        self.loop = Loop(
            self.engine, self.inbox, self.copier, self.releases, self.corrections, self.reclaims,
            self.told, self.recorder, clock, heard,
        )  # fmt: skip
        self.publisher = Publisher(
            self.engine, self.written, self.meters, lambda: self.leader.leads, clock
        )

    def depose(self) -> None:
        self.leader.depose()

    async def hear(self, *events: ev.NewsEvent) -> None:
        for event in events:
            await self.inbox.put(event)

    async def open(self, gpus: int) -> None:
        node = Node(NODE, {}, {GPU: gpus, PODS: 1000}, True)
        await self.hear(ev.NodeObserved(Millis(0), node))
        await self.hear(*(ev.SourceFresh(Millis(0), source) for source in ev.Source))

    async def create(self, pod: Pod) -> None:
        self.releaser.pods[pod.namespace, pod.name] = StoredPod(pod.uid, pod.release)
        await self.hear(ev.PodObserved(Millis(0), pod))

    def released(self) -> int:
        return sum(not pod.held for pod in self.releaser.pods.values())

    def is_copy(self) -> bool:
        return self.memory.contents == Contents.of(self.engine.writes())


@asynccontextmanager
async def running(rig: Rig, gpus: int = 2) -> AsyncIterator[Rig]:
    parts = {
        "loop": rig.loop,
        "copier": rig.copier,
        "leader": rig.leader,
        "publisher": rig.publisher,
    }
    rig.parts = {name: asyncio.create_task(part.run()) for name, part in parts.items()}
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


async def test_a_leader_releases_what_fits_and_keeps_the_store_a_copy() -> None:
    async with running(Rig()) as rig:
        for i in range(3):
            await rig.create(held_pod(f"p{i}", "a"))
        rig.lead.free.set()
        await until(lambda: rig.released() == 2 and rig.is_copy())
        assert rig.memory.contents is not None
        assert len(rig.memory.contents.held) == 1
        assert rig.memory.contents.intents() == ()
        assert rig.meters.answers == [Answer.RELEASED] * 2


async def test_a_standby_releases_nothing() -> None:
    async with running(Rig()) as rig:
        await rig.create(held_pod("p", "a"))
        await until(lambda: bool(list(rig.engine.held())))
        assert rig.released() == 0
        assert rig.memory.contents is None


async def test_the_epoch_is_above_everything_that_was_ever_seen() -> None:
    async with running(Rig(Memory(floor=7))) as rig:
        old = changed(held_pod("old", "a"), gates=(), release="9.3")
        await rig.create(old)
        rig.lead.free.set()
        await until(lambda: rig.meters.epochs == [10])


async def test_a_new_leader_fences_what_the_last_one_left_open() -> None:
    first = Rig()
    pod = held_pod("p", "a")
    async with running(first) as rig:
        rig.releaser.late = []
        await rig.create(pod)
        rig.lead.free.set()
        await until(lambda: len(rig.releaser.late or []) == 1)
    (late,) = first.releaser.late or []
    second = Rig(first.memory)
    second.releaser.pods = first.releaser.pods
    async with running(second, gpus=0) as rig:
        await rig.create(pod)
        rig.lead.transitions = 5
        rig.lead.free.set()
        await until(lambda: rig.leader.leads)
        assert first.releaser.apply(late) is False
        assert rig.released() == 0


async def test_flushed_redis_costs_a_pause_only() -> None:
    async with running(Rig()) as rig:
        rig.lead.free.set()
        await rig.create(held_pod("p0", "a"))
        await until(lambda: rig.released() == 1)
        rig.memory.flush()
        for i in range(1, 3):
            await rig.create(held_pod(f"p{i}", "a"))
        await until(lambda: rig.released() == 2 and rig.is_copy())
        assert rig.meters.failures


async def test_a_store_that_falls_too_far_behind_is_written_anew() -> None:
    async with running(Rig()) as rig:
        rig.lead.free.set()
        await until(lambda: rig.leader.leads and rig.is_copy())
        for _ in range(MOST_DUE + 1):
            rig.copier.copy(Dequeue(Uid("x")))
        await until(lambda: rig.meters.failures == ["write"])
        await rig.create(held_pod("p", "a"))
        await until(lambda: rig.released() == 1 and rig.is_copy())


async def test_runs_that_end_while_redis_is_away_are_written_when_it_is_back() -> None:
    async with running(Rig()) as rig:
        rig.lead.free.set()
        for name in ("p0", "p1"):
            await rig.create(held_pod(name, "a"))
        await until(lambda: len(rig.memory.runs.open) == 2)
        rig.memory.down = True
        await until(lambda: bool(rig.meters.failures))
        rig.now = Millis(90_000)
        await rig.hear(ev.PodGone(rig.now, held_pod("p0", "a").uid))
        await until(lambda: len(list(rig.engine.outlook.running())) == 1)
        rig.memory.down = False
        await until(lambda: len(rig.memory.runs.ended) == 1)
        (run,) = rig.memory.runs.ended.values()
        assert (run.pod, run.begin, run.end, run.assumed) == ("p0", 60_000, 90_000, False)
        assert [each.pod for each in rig.memory.runs.running()] == ["p1"]


async def test_runs_that_redis_lost_again_are_written_again() -> None:
    async with running(Rig()) as rig:
        rig.lead.free.set()
        for name in ("p0", "p1"):
            await rig.create(held_pod(name, "a"))
        await until(lambda: len(rig.memory.runs.open) == 2)
        await rig.hear(ev.PodGone(rig.now, held_pod("p0", "a").uid))
        await until(lambda: len(rig.memory.runs.ended) == 1)
        before = rig.memory.runs
        rig.memory.flush()
        await until(lambda: rig.memory.runs == before)


async def test_a_new_leader_goes_on_with_the_runs_of_the_last() -> None:
    first = Rig()
    pods = [held_pod(name, "a") for name in ("p0", "p1")]
    async with running(first) as rig:
        for pod in pods:
            await rig.create(pod)
        rig.lead.free.set()
        await until(lambda: len(rig.memory.runs.open) == 2)
    second = Rig(first.memory)
    second.now = Millis(200_000)
    seen = changed(pods[0], gates=(), release="1.1", started=Millis(170_000))
    async with running(second) as rig:
        await rig.create(seen)
        rig.lead.transitions = 5
        rig.lead.free.set()
        await until(lambda: rig.leader.leads and len(rig.memory.runs.ended) == 1)
        (run,) = rig.memory.runs.running()
        assert (run.pod, run.begin) == ("p0", 60_000)
        (ended,) = rig.memory.runs.ended.values()
        assert (ended.pod, ended.begin, ended.end, ended.assumed) == ("p1", 60_000, 200_000, True)


async def test_a_status_that_was_refused_is_published_later() -> None:
    async with running(Rig()) as rig:
        rig.written.refusal = ClusterRefused("busy", 429, 1.0)
        await rig.hear(ev.TenantObserved(Millis(0), Tenant(TenantName("t"), Millis(0))))
        rig.lead.free.set()
        await until(lambda: rig.written.refusal is None)
        assert not rig.written.statuses
        await until(lambda: ("tenants", "t") in rig.written.statuses)


async def test_nothing_is_released_while_redis_is_away() -> None:
    async with running(Rig()) as rig:
        rig.lead.free.set()
        await until(lambda: rig.leader.leads)
        rig.memory.down = True
        await until(lambda: bool(rig.meters.failures))
        await rig.create(held_pod("p", "a"))
        await until(lambda: bool(list(rig.engine.held())))
        assert rig.released() == 0
        rig.memory.down = False
        await until(lambda: rig.released() == 1)


async def test_a_swallowed_reply_counts_once_and_is_found_out() -> None:
    async with running(Rig()) as rig:
        rig.releaser.deaf = True
        rig.lead.free.set()
        for i in range(4):
            await rig.create(held_pod(f"p{i}", "a"))
        await until(lambda: rig.meters.answers == [Answer.RELEASED] * 2)
        assert rig.released() == 2


async def test_a_leader_that_finds_a_newer_epoch_steps_down() -> None:
    async with running(Rig()) as rig:
        rig.lead.free.set()
        await until(lambda: rig.leader.leads and rig.memory.contents is not None)
        rig.lead.free.clear()
        await FakeStore(rig.memory).rebuild(99, [])
        await until(lambda: rig.lead.over.is_set() and not rig.leader.leads)


async def test_a_leader_that_leaves_does_not_take_the_lease_again() -> None:
    async with running(Rig()) as rig:
        rig.lead.free.set()
        await until(lambda: rig.leader.leads)
        rig.leader.leave()
        await rig.releases.drain(1)
        await rig.lead.give_up()
        await until(rig.parts["leader"].done)
        assert not rig.leader.leads


async def test_a_standby_that_leaves_never_leads() -> None:
    async with running(Rig()) as rig:
        await until(lambda: rig.engine.ready)
        rig.leader.leave()
        await until(rig.parts["leader"].done)
        rig.lead.free.set()
        assert not rig.leader.leads


async def test_no_patch_leaves_after_the_lease_is_over() -> None:
    async with running(Rig()) as rig:
        rig.lead.free.set()
        await until(lambda: rig.leader.leads and rig.memory.contents is not None)
        rig.lead.free.clear()
        rig.lead.over.set()
        await rig.create(held_pod("p", "a"))
        await until(lambda: not rig.leader.leads)
        assert rig.released() == 0


async def test_status_is_published_for_tenants_that_exist() -> None:
    async with running(Rig()) as rig:
        tenant = Tenant(TenantName("t"), Millis(0), namespaces=("a",), generation=3)
        await rig.hear(ev.TenantObserved(Millis(0), tenant))
        rig.lead.free.set()
        for i in range(3):
            await rig.create(held_pod(f"p{i}", "a", user=UserName("u")))
        await until(lambda: bool(rig.written.statuses))
        await until(lambda: rig.written.statuses["tenants", "t"]["pending"] == 1)
        status = rig.written.statuses["tenants", "t"]
        assert status["share"] == "1.000"
        assert status["used"] == {"nvidia.com/gpu": "2"}
        assert status["observedGeneration"] == 3
        assert set(rig.written.statuses) == {("tenants", "t")}


def guaranteed(name: str, namespace: str, guarantee: int) -> ev.TenantObserved:
    quotas = {DEFAULT_POOL: Quota({GPU: guarantee})}
    tenant = Tenant(TenantName(name), Millis(0), namespaces=(namespace,), quotas=quotas)
    return ev.TenantObserved(Millis(0), tenant)


async def test_status_tells_what_is_borrowed_and_what_is_remembered() -> None:
    async with running(Rig(), gpus=4) as rig:
        await rig.hear(guaranteed("t", "a", 1))
        rig.lead.free.set()
        for i in range(3):
            await rig.create(held_pod(f"p{i}", "a"))
        await until(lambda: rig.released() == 3)
        rig.now = Millis(60_000 + 4 * 3_600_000)  # one half-life
        history = lambda: rig.written.statuses.get(("tenants", "t"), {}).get("history")  # noqa: E731
        await until(lambda: history() == "0.25")
        status = rig.written.statuses["tenants", "t"]
        assert (status["used"], status["borrowed"]) == ({GPU: "3"}, {GPU: "2"})


async def test_a_status_that_says_the_same_is_not_written_again() -> None:
    async with running(Rig(), gpus=4) as rig:
        await rig.hear(guaranteed("t", "a", 0))
        rig.lead.free.set()
        await rig.create(held_pod("p", "a"))
        await until(lambda: rig.written.statuses.get(("tenants", "t"), {}).get("share") == "0.250")
        writes, seen = rig.written.writes, len(rig.meters.views)
        rig.now = Millis(
            rig.now + 60_000
        )  # the memory of what is borrowed grows, by less than 0.01
        await until(lambda: len(rig.meters.views) > seen + 2)
        assert rig.written.writes == writes


async def test_what_others_borrow_is_taken_back_and_their_owner_is_told() -> None:
    async with running(Rig()) as rig:
        await rig.hear(guaranteed("owner", "a", 1))
        rig.lead.free.set()
        for i in range(2):
            await rig.create(held_pod(f"b{i}", "b"))
        await until(lambda: rig.released() == 2)
        for i in range(2):
            rig.corrector.pods["b", f"b{i}"] = FreePod(f"b/b{i}", budget=[0])
            stored = changed(held_pod(f"b{i}", "b"), gates=(), release=f"5.{i + 1}", node=NODE)
            await rig.hear(ev.PodObserved(rig.now, stored))
        rig.now = Millis(rig.now + 3_600_000)  # long past minRuntime
        await rig.create(held_pod("p", "a"))
        await until(lambda: len(rig.meters.refusals) == 2)  # the one, and then the other
        rig.corrector.pods["b", "b0"].budget = None
        rig.now = Millis(rig.now + 60_000)
        await until(lambda: ("b", "b0") not in rig.corrector.pods)
        told = lambda: [t for t in rig.told.notices if t.notice is Notice.RECLAIMED]  # noqa: E731
        await until(lambda: bool(told()))
        assert rig.releaser.pods["a", "p"].held  # it is on its way out, and counts
        await rig.hear(ev.PodGone(rig.now, Uid("b/b0")))
        await until(lambda: not rig.releaser.pods["a", "p"].held)
        assert [t.ref.name for t in told()] == ["b0"]
        assert ("b", "b1") in rig.corrector.pods
        assert rig.meters.evictions[0][1] == "guarantee"


async def test_the_loop_sleeps_no_longer_than_until_something_is_due() -> None:
    async with running(Rig()) as rig:
        rig.lead.free.set()
        await until(lambda: rig.leader.leads and rig.memory.contents is not None)
        await rig.create(held_pod("p", "a"))
        rig.releaser.pods["a", "p"].stamp = "edited"  # so its release is refused: it rests
        await until(lambda: rig.meters.answers == [Answer.HELD])
        rig.now = Millis(rig.now + 900)
        await until(lambda: rig.inbox.patience == 0.1)
        rig.releaser.pods["a", "p"].stamp = HELD
        rig.now = Millis(rig.now + 100)
        await until(lambda: rig.released() == 1 and rig.inbox.patience == TICK_SECONDS)


def running_pod(name: str, since: int) -> Pod:
    return changed(held_pod(name, "a", since=since), gates=(), release="", node=NODE)


async def test_who_was_there_before_us_is_adopted_until_that_is_seen() -> None:
    async with running(Rig()) as rig:
        old = running_pod("old", 29_000)
        rig.corrector.pods["a", "old"] = FreePod(old.uid)
        rig.corrector.silent = True
        await rig.hear(ev.PodObserved(rig.now, old))
        rig.lead.free.set()
        await until(lambda: len(rig.corrector.asked) == 1)
        rig.corrector.silent = False
        rig.now = Millis(rig.now + 5_000)
        await until(lambda: rig.corrector.pods["a", "old"].stamp == "adopted")
        assert rig.corrector.pods["a", "old"].labels["fairgate.io/tenant"] == "ns.a"
        await rig.hear(ev.PodObserved(rig.now, changed(old, release="adopted")))
        await until(rig.is_copy)
        rig.now = Millis(rig.now + 1_000_000)
        before = rig.inbox.waits
        await until(lambda: rig.inbox.waits > before + 1)
        assert len(rig.corrector.asked) == 2


async def test_who_got_round_the_gate_is_counted_logged_told_and_evicted(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with running(Rig()) as rig:
        rig.lead.free.set()
        await until(lambda: rig.leader.leads)
        new = running_pod("new", 31_000)
        rig.corrector.pods["a", "new"] = FreePod(new.uid, budget=[0])
        await rig.hear(ev.PodObserved(rig.now, new))
        await until(lambda: rig.meters.strays == 1 and len(rig.corrector.asked) == 1)
        assert [t.notice for t in rig.told.notices] == [Notice.REFUSED]
        [record] = [r for r in caplog.records if r.levelname == "ERROR"]
        assert (record.__dict__["pod"], record.__dict__["node"]) == ("new", NODE)
        rig.corrector.pods["a", "new"].budget = None
        rig.now = Millis(rig.now + 5_000)
        await until(lambda: not rig.corrector.pods)
        await until(lambda: len(rig.recorder.told(Deed.RECLAIMED)) == 1)
        assert rig.meters.strays == 1


async def test_nothing_is_corrected_after_the_lease_is_over() -> None:
    async with running(Rig()) as rig:
        rig.lead.free.set()
        await until(lambda: rig.leader.leads)
        rig.lead.free.clear()
        rig.lead.left = lambda: 0.0  # type: ignore[method-assign]
        await rig.hear(ev.PodObserved(rig.now, running_pod("new", 31_000)))
        await until(lambda: rig.meters.strays == 1)
        before = rig.inbox.waits
        await until(lambda: rig.inbox.waits > before + 1)
        assert not rig.corrector.asked


async def test_the_first_leader_says_since_when_we_are_here() -> None:
    rig = Rig()
    rig.installation.kept = None
    async with running(rig):
        rig.lead.free.set()
        await until(lambda: rig.leader.leads)
        assert rig.installation.kept == 60_000
