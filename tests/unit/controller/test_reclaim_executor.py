"""A reclaim evicts all its pods or does not start, at a limited rate, while still needed."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from app.controller.event_queue import EventQueue
from app.controller.reclaim_executor import BURST_SECONDS, EvictionRateLimiter, Reclaims
from app.core import events as ev
from app.core.effects import (
    BorrowedShares,
    EvictForReclaim,
    PodRef,
    ReclaimCause,
    ReclaimOnCooldown,
)
from app.core.model import Millis, PoolName, TenantName, Uid, UserName
from tests.fakes.fake_evictor import FakeCorrector, FreePod
from tests.support.controller_rig import FakeLead, FakeMeters, until

POOL = PoolName("h100")
X = PodRef(Uid("x"), "a", "x")


class Bench:
    """A `Reclaims` on fakes."""

    def __init__(self, *, a_minute: float = 100_000, pauses: tuple[float, ...] = (0.0,)) -> None:
        self.corrector, self.lead, self.inbox = FakeCorrector(), FakeLead(), EventQueue()
        self.meters, self.unwanted = FakeMeters(), set[Uid]()
        self.reclaims = Reclaims(
            self.corrector,
            self.lead,
            self.inbox,
            self.meters,
            lambda: Millis(7),
            lambda uid: uid not in self.unwanted,
            EvictionRateLimiter(a_minute),
            pauses=pauses,
        )

    def order(self, *names: str, budget: list[int] | None = None, overrides: bool = False) -> None:
        """Order one reclaim of pods that share a budget."""
        for name in names:
            self.corrector.pods["b", name] = FreePod(name, budget=budget)
        for name in names:
            ref = PodRef(Uid(name), "b", name)
            whose = (TenantName("b"), UserName("u"), X, TenantName("a"))
            how = (
                ReclaimCause.GUARANTEE,
                POOL,
                BorrowedShares((0.5, 0.0), ("tenant b", "tenant a")),
                len(names),
                overrides,
            )
            self.reclaims.add_eviction(EvictForReclaim(ref, *whose, *how))

    async def answers(self, count: int) -> list[ev.NewsEvent]:
        found: list[ev.NewsEvent] = []
        while len(found) < count:
            found += await self.inbox.take_batch(20)
        return found

    def left(self) -> set[str]:
        return {name for _, name in self.corrector.pods}


def accepted(*names: str) -> list[ev.NewsEvent]:
    return [ev.EvictionAccepted(Millis(7), Uid(name)) for name in names]


def refused(*names: str) -> list[ev.NewsEvent]:
    return [ev.EvictionRefused(Millis(7), Uid(name)) for name in names]


async def test_joint_eviction_starts_when_its_last_order_arrives() -> None:
    bench = Bench()
    bench.order("p", "q")
    assert await bench.answers(2) == accepted("p", "q")
    assert not bench.left()


async def test_no_pod_is_evicted_if_a_budget_protects_one_of_the_pods() -> None:
    bench = Bench()
    bench.order("p", "q", "r", budget=[2])
    assert await bench.answers(3) == refused("p", "q", "r")
    assert bench.left() == {"p", "q", "r"}
    assert bench.meters.refusals == [TenantName("b")] * 3


async def test_failed_rest_of_an_eviction_is_retried_and_then_refused() -> None:
    """Another client uses up the budget between the dry run and the eviction."""
    bench = Bench()
    budget = [2]
    bench.corrector.meanwhile = lambda: budget.__setitem__(0, 1)
    bench.order("p", "q", budget=budget)
    assert await bench.answers(2) == [*accepted("p"), *refused("q")]
    assert bench.left() == {"q"}
    assert sum(ref.name == "q" for ref in bench.corrector.asked) == 3  # including the dry run


async def test_pod_that_need_not_be_evicted_any_more_stays() -> None:
    bench = Bench()
    bench.unwanted = {Uid("q")}
    bench.order("p", "q", "r")
    assert await bench.answers(2) == accepted("p", "r")
    assert bench.left() == {"q"}


async def test_replica_without_the_lease_evicts_no_pods() -> None:
    bench = Bench()
    await bench.lead.release_lease()
    bench.order("p")
    await until(lambda: not bench.reclaims.is_busy)
    assert bench.left() == {"p"}
    assert not bench.corrector.asked


@pytest.mark.parametrize("overrides", [False, True])
async def test_missing_response_of_the_api_server_counts_as_a_refusal(overrides: bool) -> None:
    bench = Bench()
    bench.corrector.silent = True
    bench.order("p", "q", overrides=overrides)
    assert await bench.answers(1) == refused("p")
    await until(lambda: not bench.reclaims.is_busy)
    assert len(bench.corrector.asked) == 1


async def test_gang_is_evicted_at_once_and_the_next_eviction_waits_longer() -> None:
    now, slept = [0.0], list[float]()

    async def sleep(seconds: float) -> None:
        slept.append(seconds)
        now[0] += seconds

    clock: Callable[[], float] = lambda: now[0]  # noqa: E731
    allowance = EvictionRateLimiter(60, clock, sleep)
    await allowance.reserve(BURST_SECONDS + 10)
    await allowance.reserve(1)
    now[0] += 100
    await allowance.reserve(1)
    assert slept == [0.0, 10.0, 0.0]


async def test_burst_of_half_a_minute_of_evictions_is_allowed_before_the_rate_limit() -> None:
    slept: list[float] = []

    async def sleep(seconds: float) -> None:
        slept.append(seconds)

    allowance = EvictionRateLimiter(60, lambda: 0.0, sleep)
    for _ in range(32):
        await allowance.reserve(1)
    assert slept == [*[0.0] * 31, 1.0]
    assert BURST_SECONDS == 30


async def test_overridden_budget_protects_no_pods() -> None:
    bench = Bench()
    bench.order("p", "q", budget=[0], overrides=True)
    assert await bench.answers(2) == accepted("p", "q")
    assert not bench.left()
    assert bench.corrector.deleted == ["p", "q"]
    assert bench.meters.overridden == [TenantName("b")] * 2


async def test_evictable_pod_is_evicted_and_not_deleted() -> None:
    bench = Bench()
    bench.order("p", overrides=True)
    assert await bench.answers(1) == accepted("p")
    assert bench.corrector.deleted == []
    assert bench.meters.overridden == []


async def test_only_a_leader_deletes() -> None:
    bench = Bench()
    await bench.lead.release_lease()
    bench.order("p", budget=[0], overrides=True)
    await until(lambda: not bench.reclaims.is_busy)
    assert bench.left() == {"p"}


async def test_eviction_refused_by_a_budget_does_not_count_for_the_rate_limit() -> None:
    """Otherwise the third eviction would wait for an hour."""
    bench = Bench(a_minute=1 / 30)
    bench.order("p", "q", budget=[1])
    assert await bench.answers(2) == refused("p", "q")
    bench.order("r")
    assert await bench.answers(1) == accepted("r")


async def test_a_refused_loop_is_counted_and_logged(caplog: pytest.LogCaptureFixture) -> None:
    bench = Bench()
    bench.reclaims.report_cooldown(
        ReclaimOnCooldown(X, TenantName("a"), TenantName("b"), POOL, Millis(9))
    )
    assert bench.meters.loops == [TenantName("a")]
    assert "the reverse was done" in caplog.records[0].message
