"""Requests slow down if a server is slow or sends Retry-After, and the backlog is bounded."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

import pytest

from app.controller.adopt_evict import CONCURRENCY, AdoptEvictExecutor
from app.controller.event_queue import EventQueue
from app.core import events as ev
from app.core.effects import Adopt, EvictPod, PodRef
from app.core.errors import ClusterError, ClusterRefused, ClusterUnavailable
from app.core.explain.views import ReleasedView
from app.core.fairshare.usage_totals import UsageTotals
from app.core.model import DEFAULT_POOL, Millis, Resource, TenantName, Uid, UserName
from app.core.retry import LONGEST_SECONDS, ServerBackoff
from tests.fakes.fake_claim_protector import FakeClaims
from tests.fakes.fake_evictor import FakeCorrector, FreePod
from tests.support.controller_rig import FakeLead, FakeMeters

GPU = Resource("nvidia.com/gpu")


@pytest.mark.parametrize(
    ("errors", "seconds"),
    [
        ([ClusterUnavailable("")] * 4, [1, 2, 4, 8]),
        ([ClusterRefused("", 429, 7.0)] * 4, [7, 7, 7, 8]),
        ([ClusterRefused("", 429, 10_000.0)], [LONGEST_SECONDS]),
        ([ClusterUnavailable("")] * 2000, [1, 2, 4, 8, 16] + [LONGEST_SECONDS] * 1995),
    ],
)
def test_delay_doubles_with_each_failure_and_respects_retry_after(
    errors: list[ClusterError], seconds: list[float]
) -> None:
    backoff = ServerBackoff()
    assert [backoff.next_delay(error) for error in errors] == seconds
    backoff.reset()
    assert backoff.next_delay(ClusterUnavailable("")) == 1


@dataclass
class SlowPort:
    """`ports.cluster.Adopter` and `ports.cluster.Evictor` that delay requests until released."""

    open: asyncio.Event = field(default_factory=asyncio.Event)
    begun: list[Uid] = field(default_factory=list)

    async def adopt(self, order: Adopt) -> None:
        self.begun.append(order.ref.uid)
        await self.open.wait()

    async def evict(self, ref: PodRef) -> bool:
        raise AssertionError(ref)


async def test_slow_server_gets_a_few_requests_at_a_time_and_each_once() -> None:
    port = SlowPort()
    clock = lambda: Millis(0)  # noqa: E731
    corrections = AdoptEvictExecutor(
        port, FakeClaims(), port, FakeCorrector(), FakeLead(), EventQueue(), FakeMeters(), clock
    )
    orders = [Adopt(PodRef(Uid(f"{i}"), "space", f"p{i}"), {}) for i in range(500)]
    for order in [*orders, *orders]:
        corrections.start_order(order)
    async with asyncio.timeout(20):
        while len(port.begun) < CONCURRENCY:
            await asyncio.sleep(0)
        assert len(asyncio.all_tasks()) == 1 + CONCURRENCY
        port.open.set()
        while len(port.begun) < len(orders):
            await asyncio.sleep(0)
    assert port.begun == [order.ref.uid for order in orders]
    corrections.start_order(orders[0])  # it is asked again
    async with asyncio.timeout(20):
        while len(port.begun) == len(orders):
            await asyncio.sleep(0)
    await corrections.stop()


class PartlyDown(SlowPort):
    """A port that has no answer for one namespace."""

    async def adopt(self, order: Adopt) -> None:
        self.begun.append(order.ref.uid)

    async def evict(self, ref: PodRef) -> bool:
        raise ClusterUnavailable("no answer")


async def test_failures_in_one_namespace_delay_no_other() -> None:
    port = PartlyDown()
    corrections = AdoptEvictExecutor(
        port,
        FakeClaims(),
        port,
        FakeCorrector(),
        FakeLead(),
        EventQueue(),
        FakeMeters(),
        lambda: Millis(7),
    )
    for i in range(500):
        corrections.start_order(EvictPod(PodRef(Uid(f"{i}"), "down", f"p{i}"), "no node took it"))
    corrections.start_order(Adopt(PodRef(Uid("mine"), "up", "p"), {}))
    async with asyncio.timeout(20):
        while not port.begun:
            await asyncio.sleep(0)
    await corrections.stop()


async def test_an_overloaded_server_gets_few_requests_although_namespaces_take_turns() -> None:
    port, corrector = PartlyDown(), FakeCorrector()
    corrections = AdoptEvictExecutor(
        port,
        FakeClaims(),
        corrector,
        FakeCorrector(),
        FakeLead(),
        EventQueue(),
        FakeMeters(),
        lambda: Millis(7),
    )
    corrector.silent = True
    for i in range(500):
        corrections.start_order(EvictPod(PodRef(Uid(f"{i}"), f"n{i}", "p"), "no node took it"))
    async with asyncio.timeout(20):
        while len(corrector.asked) < CONCURRENCY:
            await asyncio.sleep(0)
    for _ in range(100):
        await asyncio.sleep(0)
    assert len(corrector.asked) <= 2 * CONCURRENCY
    await corrections.stop()


async def test_all_workers_go_on_after_a_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ServerBackoff, "next_delay", lambda self, error: 0.0)
    port, corrector = SlowPort(), FakeCorrector()
    corrector.silent = True
    corrections = AdoptEvictExecutor(
        port,
        FakeClaims(),
        corrector,
        corrector,
        FakeLead(),
        EventQueue(),
        FakeMeters(),
        lambda: Millis(7),
    )
    for i in range(CONCURRENCY):
        corrections.start_order(EvictPod(PodRef(Uid(f"{i}"), "n", f"p{i}"), "no node took it"))
    for i in range(50):
        corrections.start_order(Adopt(PodRef(Uid(f"a{i}"), "n", f"a{i}"), {}))
    async with asyncio.timeout(20):
        while len(port.begun) < CONCURRENCY:
            await asyncio.sleep(0)
    port.open.set()
    await corrections.stop()


async def test_eviction_is_counted_with_the_usage_of_its_pod() -> None:
    corrector, meters = FakeCorrector(), FakeMeters()
    corrector.pods["space", "p"] = FreePod("uid")
    corrector.pods["space", "guarded"] = FreePod("other", budget=[0])
    team = TenantName("a")

    def released(uid: Uid) -> ReleasedView:
        ref = PodRef(uid, "space", "p")
        user, when = UserName("u"), Millis(0)
        used = {GPU: 2}
        return ReleasedView(ref, team, "", user, 0, when, used, Millis(10_000), None, None, False)

    clock = lambda: Millis(40_000)  # noqa: E731
    corrections = AdoptEvictExecutor(
        corrector,
        FakeClaims(),
        corrector,
        corrector,
        FakeLead(),
        EventQueue(),
        meters,
        clock,
        released,
    )
    corrections.start_order(EvictPod(PodRef(Uid("other"), "space", "guarded"), "no node took it"))
    corrections.start_order(EvictPod(PodRef(Uid("uid"), "space", "p"), "no node took it"))
    async with asyncio.timeout(20):
        while not meters.evictions:
            await asyncio.sleep(0)
    await corrections.stop()
    assert meters.evictions == [(team, "unbound", {GPU: 60.0})]


async def test_pod_is_not_evicted_if_the_eviction_is_no_longer_needed() -> None:
    corrector, meters = FakeCorrector(), FakeMeters()
    corrector.pods = {("space", name): FreePod(name) for name in ("busy", "idle")}
    corrections = AdoptEvictExecutor(
        corrector,
        FakeClaims(),
        corrector,
        corrector,
        FakeLead(),
        inbox := EventQueue(),
        meters,
        lambda: Millis(7),
        is_still_needed=lambda uid: uid != "busy",
    )
    for name in ("busy", "idle"):
        corrections.start_order(EvictPod(PodRef(Uid(name), "space", name), "it is idle", "idle"))
    assert await inbox.take_batch(20) == [ev.EvictionAccepted(Millis(7), Uid("idle"))]
    await corrections.stop()
    assert set(corrector.pods) == {("space", "busy")}


def test_totals_of_idle_users_are_merged_without_loss() -> None:
    ledger, team = UsageTotals(), TenantName("a")
    users = [UserName(f"u{i}") for i in range(5)]
    for user in users:
        ledger.add_usage(Millis(0), (team, user, DEFAULT_POOL), {GPU: 1})
    for user in users[:4]:
        ledger.add_usage(Millis(1000), (team, user, DEFAULT_POOL), {GPU: 1}, -1)
    ledger.merge_idle_users(Millis(2000), team, set(users[1:]))
    spent = {owner[1]: amounts[GPU] for owner, amounts in ledger.all_totals(Millis(3000))}
    assert spent == {"u0": 1000, "": 3000, "u4": 3000}
