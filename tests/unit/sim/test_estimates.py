"""Estimates of a replica: its data, its answers, and the cases without an estimate."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace

import pytest

from app.core.explain.snapshot import Snapshot
from app.core.fairshare.usage_record import UsageRecord
from app.core.model import Millis, Node, NodeName, Phase, Pod, Resource, TenantName, Uid, UserName
from app.core.quantities import PODS, ManagedResources
from app.sim.cluster.virtual_cluster import VirtualCluster, held_pod
from app.sim.forecast.estimates import NO_OUTCOMES, NO_START, NOT_YET, Estimates
from app.sim.forecast.worker import Worker
from tests.fakes.fake_usage_records import FakeRuns

GPU = Resource("nvidia.com/gpu")
MANAGED = ManagedResources([GPU])
MINUTE = 60_000


class Live:
    """A simulated cluster with usage records, and a replica that forecasts."""

    def __init__(self, worker: Worker, gpus: int = 4) -> None:
        node = Node(NodeName("n0"), {}, {GPU: gpus, PODS: 1000}, True)
        self.world = VirtualCluster(MANAGED, [node])
        self.runs = FakeRuns()
        self.seen = True
        self.estimates = Estimates(self.snapshot, self.runs, MANAGED, worker)
        self._counted: set[Uid] = set()

    def snapshot(self) -> Snapshot | None:
        return self.world.engine.queries.snapshot(self.world.now) if self.seen else None

    def submit(self, name: str, gpus: int = 1, minutes: int | None = 10, user: str = "ann") -> Pod:
        pod = held_pod(name, "a", gpus, user=user, since=self.world.now)
        self.world.submit(pod, self.world.now, None if minutes is None else minutes * MINUTE)
        return pod

    def run(self, minutes: int) -> None:
        """Advance the time, and store the usage records that end."""
        self.world.advance_to(Millis(self.world.now + minutes * MINUTE))
        for started in self.world.started:
            uid = started.pod.uid
            if uid not in self.world.released_pods and uid not in self._counted:
                self._counted.add(uid)
                owner = (TenantName("ns.a"), started.pod.user, started.pool)
                end = Millis(started.at + 10 * MINUTE)
                name = started.pod.name
                run = UsageRecord(uid, "a", name, name, *owner, {GPU: 1}, started.at, end=end)
                self.runs.runs.ended[run.id] = run


@pytest.fixture
async def live() -> AsyncIterator[Live]:
    worker = Worker(60)
    yield Live(worker)
    await worker.close()


async def test_estimate_is_missing_before_the_first_forecast(live: Live) -> None:
    pod = live.submit("p")
    assert live.estimates.estimate(pod.uid) is None
    assert live.estimates.missing_estimate_reason(pod.uid) == NOT_YET
    live.seen = False
    await live.estimates.renew()
    assert live.estimates.missing_estimate_reason(pod.uid) == NOT_YET


async def test_estimate_is_withheld_until_enough_earlier_ones_have_outcomes(live: Live) -> None:
    pods = [live.submit(f"p{n:03}") for n in range(60)]
    live.run(0)
    await live.estimates.renew()
    assert live.estimates.estimate(pods[-1].uid) is None
    assert live.estimates.missing_estimate_reason(pods[-1].uid) == NO_OUTCOMES
    for _ in range(9):
        live.run(10)
        await live.estimates.renew()
    found = live.estimates.estimate(pods[-1].uid)
    assert found is not None
    # Each workload runs ten minutes. Four start at a time, and the last of 60 after 140 minutes.
    assert found.at == 90 * MINUTE
    assert 2400 <= found.p50 <= found.p90 < 4500


async def test_run_times_are_learned_once(live: Live) -> None:
    for n in range(12):
        live.submit(f"p{n}")
    live.run(25)
    await live.estimates.renew()
    await live.estimates.renew()
    assert len(live.estimates.run_times) == 8


async def test_workload_that_can_never_start_gets_no_estimate(live: Live) -> None:
    live.submit("busy", 4, minutes=None)
    pod = live.submit("large", gpus=9)
    live.run(1)
    await live.estimates.renew()
    assert live.estimates.missing_estimate_reason(pod.uid) == NO_START


async def test_a_gang_that_is_not_complete_gets_no_estimate(live: Live) -> None:
    pod = replace(held_pod("one", "a"), gang="g", gang_size=2)
    live.world.submit(pod, live.world.now, MINUTE)
    live.run(1)
    await live.estimates.renew()
    assert live.estimates.missing_estimate_reason(pod.uid) == NO_START


async def test_an_estimate_ends_with_the_wait(live: Live) -> None:
    pod = live.submit("p")
    live.run(1)
    await live.estimates.renew()
    assert live.estimates.estimate(pod.uid) is None
    assert live.estimates.missing_estimate_reason(pod.uid) == NOT_YET


async def test_without_the_store_it_looks_ahead_all_the_same(live: Live) -> None:
    live.runs.fails = True
    for n in range(9):
        live.submit(f"p{n}")
    live.run(1)
    await live.estimates.renew()
    assert live.estimates.missing_estimate_reason(Uid("a/p8")) == NO_OUTCOMES


async def test_worker_timeout_is_reported_and_the_forecast_retried(live: Live) -> None:
    live.submit("busy", 4, minutes=None)
    pod = live.submit("p")
    live.run(1)
    slow = Worker(0.001)
    estimates = Estimates(live.snapshot, live.runs, MANAGED, slow)
    await estimates.renew()
    assert "took more than" in estimates.missing_estimate_reason(pod.uid)
    await slow.close()
    estimates = live.estimates
    await estimates.renew()
    assert estimates.missing_estimate_reason(pod.uid) in (NO_START, NO_OUTCOMES)


def test_a_snapshot_is_values_alone(live_world: VirtualCluster) -> None:
    taken = live_world.engine.queries.snapshot(Millis(5))
    assert taken.at == 5
    assert [pod.phase for pod in taken.running] == [Phase.RUNNING]
    assert [pod.uid for pod in taken.held] == [Uid("a/second")]
    assert {user for kept in taken.fairness_states.values() for user in kept.users} == {
        UserName("user")
    }


@pytest.fixture
def live_world() -> VirtualCluster:
    node = Node(NodeName("n0"), {}, {GPU: 1, PODS: 10}, True)
    world = VirtualCluster(MANAGED, [node])
    world.submit(held_pod("first", "a"), Millis(0), None)
    world.submit(held_pod("second", "a"), Millis(1), None)
    world.advance_to(Millis(2))
    return world
