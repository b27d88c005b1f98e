"""Pods that hold capacity without using it: detection, events and evictions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from app.controller.event_queue import EventQueue
from app.controller.stale_pod_scan import DEVICE_CHECK_MS, MIN_HELD_MS, SETTLED_MS, StalePodScanner
from app.core import events as ev
from app.core.audit_entry import AuditRecord, EntryType
from app.core.effects import Effect, EmitEvent, EventReason, EvictPod
from app.core.engine import Engine
from app.core.engine_options import EngineOptions
from app.core.lifecycle.stale_pods import PAUSE_MS, SURE_MS, StaleReason
from app.core.model import Millis, Node, NodeName, Phase, Pod, Resource, TenantName
from app.core.policy import Mode, Policy
from app.core.quantities import PODS, ManagedResources
from app.sim.cluster.virtual_cluster import held_pod
from tests.fakes.fake_owner_lookup import FakeDeviceUse, FakeOwners
from tests.support.controller_rig import FakeMeters

GPU = Resource("nvidia.com/gpu")
HOUR = 3_600_000


class Yard:
    """A leader that may reclaim pods for these reasons, and the scanner that finds stale pods."""

    def __init__(self, *reclaims: StaleReason) -> None:
        self.now = 10 * HOUR
        self.engine = Engine(ManagedResources([GPU]), EngineOptions(evicted_stale_reasons=reclaims))
        self.owners, self.use, self.meters = FakeOwners(), FakeDeviceUse(), FakeMeters()
        self.inbox = EventQueue()
        self.patrol = StalePodScanner(
            self.engine,
            self.owners,
            self.use,
            self.inbox,
            self.meters,
            lambda: True,
            lambda: self.at,
            window=Millis(HOUR),
        )
        self.hear(ev.NodeObserved(self.at, Node(NodeName("n"), {}, {GPU: 2, PODS: 110}, True)))
        self.hear(*(ev.SourceFresh(self.at, source) for source in ev.WatchedSource))
        self.hear(ev.LeadershipGained(self.at, 7), ev.StoreReady(self.at))

    @property
    def at(self) -> Millis:
        return Millis(self.now)

    def hear(self, *events: ev.Event) -> list[Effect]:
        found: list[Effect] = []
        for event in (*events, ev.Pass(self.at)):
            found += self.engine.handle(event)
        return found

    async def look(self, *, after: int = 0) -> list[Effect]:
        """Scan once; return the engine's effects for the findings."""
        self.now += after
        await self.patrol.check()
        found: Sequence[ev.NewsEvent] = await self.inbox.take_batch(0)
        return self.hear(*found)

    def held(self, name: str, owner: str = "job", since: int | None = None) -> Pod:
        since = self.now - MIN_HELD_MS if since is None else since
        pod = replace(held_pod(name, "a", 9, since=since), owner=owner)
        self.hear(ev.PodObserved(self.at, pod))
        return pod

    def runs(self, name: str, *, ran: int = HOUR + SETTLED_MS, **more: object) -> Pod:
        pod = replace(
            held_pod(name, "a", since=1),
            gates=(),
            release_annotation="5.1",
            node=NodeName("n"),
            phase=Phase.RUNNING,
            started_at=Millis(self.now - ran),
            **more,  # type: ignore[arg-type]
        )
        self.hear(ev.PodObserved(self.at, pod))
        return pod

    def shown(self) -> dict[tuple[TenantName, str], int]:
        return self.meters.useless[-1]


def told(effects: list[Effect]) -> list[str]:
    notices = [e for e in effects if isinstance(e, EmitEvent) and e.reason is EventReason.USELESS]
    return [f"{each.ref.name}: {each.message}" for each in notices]


def expelled(effects: list[Effect]) -> list[tuple[str, str]]:
    return [(e.ref.name, e.cause) for e in effects if isinstance(e, EvictPod)]


async def test_held_pod_without_its_controller_is_reported_and_not_evicted() -> None:
    yard = Yard()
    pod = yard.held("p")
    yard.owners.gone[pod.uid] = "Job train"
    [message] = told(await yard.look())
    assert message.startswith("p: its controller, Job train, is gone")
    later = await yard.look(after=PAUSE_MS - 1)
    assert not told(later)
    assert not expelled(later)
    assert yard.shown() == {(TenantName("ns.a"), "ownerless"): 1}
    assert len(told(await yard.look(after=1))) == 1


async def test_ownerless_pod_is_evicted_if_enabled_and_found_twice() -> None:
    yard = Yard(StaleReason.OWNERLESS)
    pod = yard.held("p")
    yard.owners.gone[pod.uid] = "Job train"
    assert not expelled(await yard.look())
    assert not expelled(await yard.look(after=SURE_MS - 1))
    assert expelled(await yard.look(after=1)) == [("p", "ownerless")]
    assert not expelled(await yard.look(after=1000))
    effects = yard.hear(ev.EvictionAccepted(yard.at, pod.uid), ev.PodGone(yard.at, pod.uid))
    [record] = [
        e for e in effects if isinstance(e, AuditRecord) and e.entry_type is EntryType.RECLAIMED
    ]
    assert "Job train" in str(record.facts["why"])
    assert [e.reason for e in effects if isinstance(e, EmitEvent)] == [EventReason.RECLAIMED]
    await yard.look()
    assert yard.shown() == {}


async def test_pod_is_not_stale_once_its_controller_exists_again() -> None:
    yard = Yard(StaleReason.OWNERLESS)
    pod = yard.held("p")
    yard.owners.gone[pod.uid] = "Job train"
    await yard.look()
    yard.owners.gone.clear()
    await yard.look(after=SURE_MS)
    await yard.look()
    assert yard.shown() == {}


@pytest.mark.parametrize(("owner", "since"), [("", 0), ("job", 36_000_000)])
async def test_controller_of_an_unowned_or_recent_pod_is_not_looked_up(
    owner: str, since: int
) -> None:
    yard = Yard()
    yard.held("p", owner, since)
    await yard.look()
    assert not yard.owners.asked


async def test_controllers_are_looked_up_one_pod_at_a_time_in_rotation() -> None:
    yard = Yard()
    for number in range(3):
        yard.held(f"p{number}")
    for _ in range(4):
        await yard.look()
    assert yard.owners.asked == ["p0", "p1", "p2", "p0"]


async def test_pod_with_idle_devices_is_reported() -> None:
    yard = Yard()
    yard.runs("idle")
    yard.runs("busy")
    yard.use.parts = {("a", "idle"): 0.009, ("a", "busy"): 0.01}
    [message] = told(await yard.look())
    assert message.startswith("idle: it has not used its devices for 60 min (at most 0.9%")
    assert yard.use.spans == [3600]


async def test_idle_devices_are_reported_even_if_controller_lookups_fail() -> None:
    yard = Yard()
    yard.held("p")
    yard.runs("idle")
    yard.use.parts = {("a", "idle"): 0.0}
    yard.owners.silent = True
    assert len(told(await yard.look())) == 1


async def test_device_usage_is_queried_at_most_once_per_interval() -> None:
    yard = Yard()
    await yard.look()
    await yard.look(after=DEVICE_CHECK_MS - 1)
    assert len(yard.use.spans) == 1
    await yard.look(after=1)
    assert len(yard.use.spans) == 2


async def test_unmeasured_or_recently_started_pod_is_not_reported() -> None:
    yard = Yard(StaleReason.IDLE)
    yard.runs("unmeasured")
    yard.runs("young", ran=HOUR + SETTLED_MS - 1)
    yard.use.parts = {("a", "young"): 0.0}
    assert not told(await yard.look())


async def test_failure_of_prometheus_does_not_change_the_stale_pods() -> None:
    yard = Yard(StaleReason.IDLE)
    yard.runs("idle")
    yard.use.parts = {("a", "idle"): 0.0}
    await yard.look()
    yard.use.parts = None
    assert not expelled(await yard.look(after=HOUR))
    assert yard.shown() == {(TenantName("ns.a"), "idle"): 1}


async def test_idle_pod_is_evicted_if_enabled_unless_it_is_non_preemptible() -> None:
    yard = Yard(StaleReason.IDLE)
    yard.runs("idle")
    yard.runs("kept", preemptible=False)
    yard.use.parts = {("a", "idle"): 0.0, ("a", "kept"): 0.0}
    assert len(told(await yard.look())) == 2
    assert expelled(await yard.look(after=HOUR)) == [("idle", "idle")]


async def test_gang_is_evicted_only_if_all_its_pods_are_idle() -> None:
    yard = Yard(StaleReason.IDLE)
    for name in ("m0", "m1"):
        yard.runs(name, gang="train", gang_size=2)
    yard.use.parts = {("a", "m0"): 0.0, ("a", "m1"): 0.9}
    await yard.look()
    assert not expelled(await yard.look(after=HOUR))
    yard.use.parts["a", "m1"] = 0.0
    await yard.look(after=HOUR)
    assert set(expelled(await yard.look(after=HOUR))) == {("m0", "idle"), ("m1", "idle")}


async def test_eviction_of_a_gang_is_cancelled_if_one_pod_becomes_busy() -> None:
    yard = Yard(StaleReason.IDLE)
    pods = [yard.runs(name, gang="train", gang_size=2) for name in ("m0", "m1")]
    yard.use.parts = {("a", "m0"): 0.0, ("a", "m1"): 0.0}
    await yard.look()
    assert len(expelled(await yard.look(after=HOUR))) == 2
    assert all(yard.engine.is_eviction_needed(pod.uid) for pod in pods)
    yard.use.parts["a", "m1"] = 0.9
    await yard.look(after=DEVICE_CHECK_MS)
    assert not any(yard.engine.is_eviction_needed(pod.uid) for pod in pods)
    yard.use.parts["a", "m1"] = 0.0
    await yard.look(after=DEVICE_CHECK_MS)
    assert len(expelled(await yard.look(after=DEVICE_CHECK_MS))) == 2


async def test_busy_pod_is_evicted_if_the_eviction_of_a_gang_member_was_accepted() -> None:
    yard = Yard(StaleReason.IDLE)
    pods = [yard.runs(name, gang="train", gang_size=2) for name in ("m0", "m1")]
    yard.use.parts = {("a", "m0"): 0.0, ("a", "m1"): 0.0}
    await yard.look()
    assert len(expelled(await yard.look(after=HOUR))) == 2
    yard.hear(ev.EvictionAccepted(yard.at, pods[0].uid))  # its end has not been observed yet
    yard.use.parts["a", "m1"] = 0.9
    await yard.look(after=DEVICE_CHECK_MS)
    assert yard.engine.is_eviction_needed(pods[1].uid)


async def test_busy_pod_is_not_evicted_if_the_eviction_of_a_gang_member_was_refused() -> None:
    yard = Yard(StaleReason.IDLE)
    pods = [yard.runs(name, gang="train", gang_size=2) for name in ("m0", "m1")]
    yard.use.parts = {("a", "m0"): 0.0, ("a", "m1"): 0.0}
    await yard.look()
    assert len(expelled(await yard.look(after=HOUR))) == 2
    yard.hear(ev.EvictionRefused(yard.at, pods[0].uid))
    yard.use.parts["a", "m1"] = 0.9
    await yard.look(after=DEVICE_CHECK_MS)
    assert not any(yard.engine.is_eviction_needed(pod.uid) for pod in pods)


async def test_idle_pod_is_not_evicted_in_observe_mode() -> None:
    yard = Yard(StaleReason.IDLE)
    yard.hear(ev.PolicyObserved(yard.at, Policy(mode=Mode.OBSERVE)))
    yard.runs("idle")
    yard.use.parts = {("a", "idle"): 0.0}
    await yard.look()
    assert not expelled(await yard.look(after=HOUR))
