"""The controller around the engine: its effects, and the loss of the store or the lease."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace as changed
from typing import Any, cast

import pytest

from app.controller import status_publisher, store_writer
from app.controller.engine_loop import TICK_SECONDS
from app.controller.status_publisher import AMOUNTS_PERIODS
from app.controller.store_writer import MOST_DUE
from app.core import events as ev
from app.core.audit_entry import EntryType
from app.core.effects import Dequeue, EventReason, StoreWrite
from app.core.errors import ClusterRefused, ClusterUnavailable
from app.core.fairshare.usage_record import UsageStarted
from app.core.model import (
    DEFAULT_POOL,
    Millis,
    Pod,
    Pool,
    PoolName,
    Quota,
    ReleaseOutcome,
    Tenant,
    TenantName,
    Uid,
    UserName,
)
from app.core.well_known import RELEASE_HELD
from app.ports.cluster import StoredCondition
from app.sim.cluster.virtual_cluster import held_pod
from tests.fakes.fake_evictor import FreePod
from tests.fakes.fake_store import FakeStore, Memory
from tests.support.controller_rig import GPU, NODE, Rig, running, until
from tests.support.usage_record_cases import run


@pytest.fixture(autouse=True)
def short_periods(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(status_publisher, "PERIOD_SECONDS", 0.02)


async def test_leader_releases_fitting_pods_and_keeps_the_store_in_sync() -> None:
    async with running(Rig()) as rig:
        for i in range(3):
            await rig.create(held_pod(f"p{i}", "a"))
        rig.lead.free.set()
        await until(lambda: rig.released() == 2 and rig.is_settled())
        assert rig.memory.contents is not None
        assert len(rig.memory.contents.held) == 1
        assert rig.memory.contents.intents() == ()
        assert rig.meters.answers == [ReleaseOutcome.RELEASED] * 2


async def test_standby_releases_no_pods() -> None:
    async with running(Rig()) as rig:
        await rig.create(held_pod("p", "a"))
        await until(lambda: bool(list(rig.engine.held_pods())))
        assert rig.released() == 0
        assert rig.memory.contents is None


async def test_the_epoch_is_above_everything_that_was_ever_seen() -> None:
    async with running(Rig(Memory(floor=7))) as rig:
        old = changed(held_pod("old", "a"), gates=(), release_annotation="9.3")
        await rig.create(old)
        rig.lead.free.set()
        await until(lambda: rig.meters.epochs == [10])


async def test_new_leader_fences_open_releases_of_the_last_leader() -> None:
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
        await until(lambda: rig.leader.is_leading)
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
        await until(lambda: rig.released() == 2 and rig.is_settled())
        assert rig.meters.failures


async def test_a_refused_write_is_a_failure_until_a_later_write() -> None:
    async with running(Rig()) as rig:
        rig.lead.free.set()
        await until(lambda: rig.leader.is_leading and rig.is_copy())
        assert not rig.copier.failure
        rig.memory.refuse = lambda write: True
        await rig.create(held_pod("p", "a"))
        await until(lambda: bool(rig.copier.failure))
        assert await rig.store.read_epoch_floor()
        rig.memory.refuse = lambda write: False
        await until(lambda: rig.released() == 1 and not rig.copier.failure)


async def test_store_that_falls_too_far_behind_is_rewritten() -> None:
    async with running(Rig()) as rig:
        rig.lead.free.set()
        await until(lambda: rig.leader.is_leading and rig.is_copy())
        for _ in range(MOST_DUE + 1):
            rig.copier.queue_write(Dequeue(Uid("x")))
        await until(lambda: rig.meters.failures == ["write"])
        await rig.create(held_pod("p", "a"))
        await until(lambda: rig.released() == 1 and rig.is_settled())


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
        await until(lambda: len(list(rig.engine.queries.open_usage_records())) == 1)
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


async def test_new_leader_continues_usage_records_of_the_last_leader() -> None:
    first = Rig()
    pods = [held_pod(name, "a") for name in ("p0", "p1")]
    async with running(first) as rig:
        for pod in pods:
            await rig.create(pod)
        rig.lead.free.set()
        await until(lambda: len(rig.memory.runs.open) == 2)
    second = Rig(first.memory)
    second.now = Millis(200_000)
    seen = changed(pods[0], gates=(), release_annotation="1.1", started_at=Millis(170_000))
    async with running(second) as rig:
        await rig.create(seen)
        rig.lead.transitions = 5
        rig.lead.free.set()
        await until(lambda: rig.leader.is_leading and len(rig.memory.runs.ended) == 1)
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


async def test_a_refused_status_does_not_delay_the_others() -> None:
    async with running(Rig()) as rig:
        rig.written.refusal = ClusterRefused("request is too large", 500)
        for name in ("a", "b"):
            await rig.hear(ev.TenantObserved(Millis(0), Tenant(TenantName(name), Millis(0))))
        rig.lead.free.set()
        await until(lambda: ("tenants", "b") in rig.written.statuses)
        assert ("tenants", "a") not in rig.written.statuses
        rig.now = Millis(rig.now + status_publisher.REFUSED_DELAY_MS)
        await until(lambda: ("tenants", "a") in rig.written.statuses)


async def test_a_status_without_an_answer_does_not_stop_the_others() -> None:
    async with running(Rig()) as rig:
        rig.written.broken["tenants", "a"] = ClusterUnavailable("no answer")
        for name in ("a", "b", "c"):
            await rig.hear(ev.TenantObserved(Millis(0), Tenant(TenantName(name), Millis(0))))
        rig.lead.free.set()
        await until(lambda: {("tenants", "b"), ("tenants", "c")} <= rig.written.statuses.keys())
        assert ("tenants", "a") not in rig.written.statuses
        rig.written.broken.clear()
        await until(lambda: ("tenants", "a") in rig.written.statuses)


async def test_amounts_that_no_longer_exist_leave_the_status() -> None:
    """An earlier leader may have written them. A write merges with the stored status."""
    async with running(Rig()) as rig:
        rig.written.statuses["pools", "default"] = {"free": {"old": "1"}, "kept": {"by": "others"}}
        await rig.hear(ev.PoolObserved(Millis(0), Pool(DEFAULT_POOL, uid="u")))
        rig.lead.free.set()
        await until(lambda: GPU in capacity(rig))
        status = rig.written.statuses["pools", "default"]
        assert "old" not in cast(dict[str, object], status["free"])
        assert status["kept"] == {"by": "others"}
        await rig.hear(ev.NodeGone(rig.now, NODE))
        await until(lambda: not capacity(rig))


def capacity(rig: Rig) -> dict[str, object]:
    status = rig.written.statuses.get(("pools", "default"), {})
    return cast(dict[str, object], status.get("capacity", {}))


async def test_a_pool_that_was_created_again_gets_its_status_again() -> None:
    async with running(Rig()) as rig:
        pool = Pool(PoolName("a"), uid="first")
        await rig.hear(ev.PoolObserved(Millis(0), pool))
        rig.lead.free.set()
        await until(lambda: ("pools", "a") in rig.written.statuses)
        seen = len(rig.meters.views)
        await until(lambda: len(rig.meters.views) > seen + 1)
        rig.written.statuses.clear()
        again = changed(pool, uid="second")
        await rig.hear(ev.PoolGone(Millis(0), pool.name), ev.PoolObserved(Millis(0), again))
        await until(lambda: ("pools", "a") in rig.written.statuses)


async def test_no_pod_is_released_while_redis_is_unavailable() -> None:
    async with running(Rig()) as rig:
        rig.lead.free.set()
        await until(lambda: rig.leader.is_leading)
        rig.memory.down = True
        await until(lambda: bool(rig.meters.failures))
        await rig.create(held_pod("p", "a"))
        await until(lambda: bool(list(rig.engine.held_pods())))
        assert rig.released() == 0
        rig.memory.down = False
        await until(lambda: rig.released() == 1)


async def test_a_swallowed_reply_counts_once_and_is_found_out() -> None:
    async with running(Rig()) as rig:
        rig.releaser.deaf = True
        rig.lead.free.set()
        for i in range(4):
            await rig.create(held_pod(f"p{i}", "a"))
        await until(lambda: rig.meters.answers == [ReleaseOutcome.RELEASED] * 2)
        assert rig.released() == 2


async def test_a_leader_that_finds_a_newer_epoch_steps_down() -> None:
    async with running(Rig()) as rig:
        rig.lead.free.set()
        await until(lambda: rig.leader.is_leading and rig.memory.contents is not None)
        rig.lead.free.clear()
        await FakeStore(rig.memory).rebuild(99, [])
        await until(lambda: rig.lead.over.is_set() and not rig.leader.is_leading)


async def test_a_leader_that_leaves_does_not_take_the_lease_again() -> None:
    async with running(Rig()) as rig:
        rig.lead.free.set()
        await until(lambda: rig.leader.is_leading)
        rig.leader.stop_acquiring()
        await rig.releases.drain(1)
        await rig.lead.release_lease()
        await until(rig.parts["leader"].done)
        assert not rig.leader.is_leading


async def test_a_standby_that_leaves_never_leads() -> None:
    async with running(Rig()) as rig:
        await until(lambda: rig.engine.is_ready)
        rig.leader.stop_acquiring()
        await until(rig.parts["leader"].done)
        rig.lead.free.set()
        assert not rig.leader.is_leading


async def test_no_patch_leaves_after_the_lease_is_over() -> None:
    async with running(Rig()) as rig:
        rig.lead.free.set()
        await until(lambda: rig.leader.is_leading and rig.memory.contents is not None)
        rig.lead.free.clear()
        rig.lead.over.set()
        await rig.create(held_pod("p", "a"))
        await until(lambda: not rig.leader.is_leading)
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


async def test_new_leader_keeps_times_of_conditions_that_still_hold() -> None:
    rig, since = Rig(), Millis(5_000)
    rig.written.stored = {
        ("tenants", "t", "Ready"): StoredCondition("u1", True, since),
        ("tenants", "t", "QuotasInForce"): StoredCondition("u1", False, since),
        ("tenants", "anew", "Ready"): StoredCondition("of an earlier object", True, since),
    }
    async with running(rig):
        rig.now = Millis(60_000)
        for name, uid in (("t", "u1"), ("anew", "u2")):
            tenant = Tenant(TenantName(name), Millis(0), namespaces=(name,), uid=uid)
            await rig.hear(ev.TenantObserved(Millis(0), tenant))
        rig.lead.free.set()
        await until(lambda: len(rig.written.statuses) == 2)
        found = times(rig, "t")
        assert (found["Ready"], found["QuotasInForce"]) == ("00:05", "01:00")
        assert times(rig, "anew")["Ready"] == "01:00"


def times(rig: Rig, name: str) -> dict[str, str]:
    """Return minutes and seconds of the last transition of each condition of a tenant."""
    found: Any = rig.written.statuses["tenants", name]["conditions"]
    return {each["type"]: each["lastTransitionTime"][14:19] for each in found}


async def test_conditions_that_cannot_be_read_are_read_later() -> None:
    rig = Rig()
    rig.written.refusal = ClusterUnavailable("the API server does not answer")
    async with running(rig):
        await rig.hear(ev.TenantObserved(Millis(0), Tenant(TenantName("t"), Millis(0))))
        rig.lead.free.set()
        await until(lambda: ("tenants", "t") in rig.written.statuses)
        assert rig.written.refusal is None


def guaranteed(
    name: str, namespace: str, guarantee: int, max_pending: int | None = None
) -> ev.TenantObserved:
    quotas = {DEFAULT_POOL: Quota({GPU: guarantee})}
    tenant = Tenant(
        TenantName(name), Millis(0), namespaces=(namespace,), quotas=quotas, max_pending=max_pending
    )
    return ev.TenantObserved(Millis(0), tenant)


async def test_status_reports_borrowed_amounts_and_history() -> None:
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


async def test_unchanged_status_is_not_written_again() -> None:
    async with running(Rig(), gpus=4) as rig:
        await rig.hear(guaranteed("t", "a", 0))
        rig.lead.free.set()
        await rig.create(held_pod("p", "a"))
        await until(lambda: rig.written.statuses.get(("tenants", "t"), {}).get("share") == "0.250")
        writes, seen = rig.written.writes, len(rig.meters.views)
        rig.now = Millis(rig.now + 60_000)  # the history grows, by less than 0.01
        await until(lambda: len(rig.meters.views) > seen + 2)
        assert rig.written.writes == writes


async def test_new_amounts_are_written_only_after_several_periods() -> None:
    async with running(Rig(), gpus=0) as rig:
        await rig.hear(guaranteed("t", "a", 0))
        rig.lead.free.set()
        await until(lambda: ("tenants", "t") in rig.written.statuses)
        writes = rig.written.writes
        for number in range(2 * AMOUNTS_PERIODS):
            seen = len(rig.meters.views)
            await rig.create(held_pod(f"p{number}", "a"))
            await until(lambda seen=seen: len(rig.meters.views) > seen)  # type: ignore[misc]
        assert 1 <= rig.written.writes - writes <= 3
        await until(lambda: rig.written.statuses["tenants", "t"]["pending"] == 2 * AMOUNTS_PERIODS)


async def test_status_is_written_at_once_if_a_tenant_reaches_its_pending_limit() -> None:
    async with running(Rig(), gpus=0) as rig:
        most = 3
        await rig.hear(guaranteed("t", "a", 0, most))
        rig.lead.free.set()
        await until(lambda: ("tenants", "t") in rig.written.statuses)
        seen = len(rig.meters.views)
        for number in range(most):
            await rig.create(held_pod(f"p{number}", "a"))
        pending = lambda: rig.written.statuses["tenants", "t"]["pending"]  # noqa: E731
        await until(lambda: pending() == most)
        assert len(rig.meters.views) - seen < AMOUNTS_PERIODS / 2


async def test_a_status_is_written_again_after_a_write_without_an_answer() -> None:
    async with running(Rig(), gpus=0) as rig:
        await rig.hear(guaranteed("t", "a", 0))
        rig.lead.free.set()
        pending = lambda: rig.written.statuses.get(("tenants", "t"), {}).get("pending")  # noqa: E731
        await until(lambda: pending() == 0)
        rig.written.lost = ClusterUnavailable("no answer")
        await rig.create(held_pod("p", "a"))
        await until(lambda: pending() == 1)
        await rig.hear(ev.PodGone(Millis(0), held_pod("p", "a").uid))
        await until(lambda: pending() == 0)


async def test_a_changed_condition_is_written_at_once() -> None:
    async with running(Rig(), gpus=0) as rig:
        await rig.hear(guaranteed("t", "a", 0))
        rig.lead.free.set()
        await until(lambda: ("tenants", "t") in rig.written.statuses)
        tenant = Tenant(TenantName("t"), Millis(0), namespaces=("a",), paused=True)
        await rig.hear(ev.TenantObserved(Millis(0), tenant))
        seen = len(rig.meters.views)
        await until(lambda: len(rig.meters.views) > seen + 1)
        assert "Paused" in str(rig.written.statuses["tenants", "t"]["conditions"])


async def test_borrowed_capacity_is_reclaimed_with_an_event_for_the_evicted_pod() -> None:
    async with running(Rig()) as rig:
        await rig.hear(guaranteed("owner", "a", 1))
        rig.lead.free.set()
        for i in range(2):
            await rig.create(held_pod(f"b{i}", "b"))
        await until(lambda: rig.released() == 2)
        for i in range(2):
            rig.corrector.pods["b", f"b{i}"] = FreePod(f"b/b{i}", budget=[0])
            stored = changed(
                held_pod(f"b{i}", "b"), gates=(), release_annotation=f"5.{i + 1}", node=NODE
            )
            await rig.hear(ev.PodObserved(rig.now, stored))
        rig.now = Millis(rig.now + 3_600_000)  # long after minRuntime
        await rig.create(held_pod("p", "a"))
        await until(lambda: len(rig.meters.refusals) == 2)  # the first and then the second
        rig.corrector.pods["b", "b0"].budget = None
        rig.now = Millis(rig.now + 60_000)
        await until(lambda: ("b", "b0") not in rig.corrector.pods)
        told = lambda: [t for t in rig.told.notices if t.reason is EventReason.RECLAIMED]  # noqa: E731
        await until(lambda: bool(told()))
        assert rig.releaser.pods["a", "p"].held  # it is terminating and still counts
        await rig.hear(ev.PodGone(rig.now, Uid("b/b0")))
        await until(lambda: not rig.releaser.pods["a", "p"].held)
        assert [t.ref.name for t in told()] == ["b0"]
        assert ("b", "b1") in rig.corrector.pods
        assert rig.meters.evictions[0][1] == "guarantee"


async def test_the_loop_sleeps_no_longer_than_until_something_is_due() -> None:
    async with running(Rig()) as rig:
        rig.lead.free.set()
        await until(lambda: rig.leader.is_leading and rig.memory.contents is not None)
        await rig.create(held_pod("p", "a"))
        rig.releaser.pods["a", "p"].stamp = "edited"  # so its release is refused and it backs off
        await until(lambda: rig.meters.answers == [ReleaseOutcome.HELD])
        rig.now = Millis(rig.now + 900)
        await until(lambda: rig.inbox.patience == 0.1)
        rig.releaser.pods["a", "p"].stamp = RELEASE_HELD
        rig.now = Millis(rig.now + 100)
        await until(lambda: rig.released() == 1 and rig.inbox.patience == TICK_SECONDS)


def running_pod(name: str, since: int) -> Pod:
    return changed(held_pod(name, "a", since=since), gates=(), release_annotation="", node=NODE)


async def test_pod_older_than_the_installation_is_adopted_until_observed() -> None:
    async with running(Rig()) as rig:
        old = running_pod("old", 29_000)
        rig.corrector.pods["a", "old"] = FreePod(old.uid)
        rig.corrector.silent = True
        await rig.hear(ev.PodObserved(rig.now, old))
        rig.lead.free.set()
        await until(lambda: len(rig.corrector.asked) == 1)
        rig.corrector.silent = False

        def is_adopted() -> bool:
            """Check, and let time pass: an order is ignored while the first is under way."""
            if rig.corrector.pods["a", "old"].stamp == "adopted":
                return True
            rig.now = Millis(rig.now + 5_000)
            return False

        await until(is_adopted)
        assert rig.corrector.pods["a", "old"].labels["fairgate.io/tenant"] == "ns.a"
        await rig.hear(ev.PodObserved(rig.now, changed(old, release_annotation="adopted")))
        await until(rig.is_copy)
        asked = len(rig.corrector.asked)
        rig.now = Millis(rig.now + 1_000_000)
        before = rig.inbox.waits
        await until(lambda: rig.inbox.waits > before + 1)
        assert len(rig.corrector.asked) == asked


async def test_bypassing_pod_is_counted_logged_reported_and_evicted(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with running(Rig()) as rig:
        rig.lead.free.set()
        await until(lambda: rig.leader.is_leading)
        new = running_pod("new", 31_000)
        rig.corrector.pods["a", "new"] = FreePod(new.uid, budget=[0])
        await rig.hear(ev.PodObserved(rig.now, new))
        await until(lambda: rig.meters.strays == 1 and len(rig.corrector.asked) == 1)
        assert [t.reason for t in rig.told.notices] == [EventReason.REFUSED]
        [record] = [r for r in caplog.records if r.levelname == "ERROR"]
        assert (record.__dict__["pod"], record.__dict__["node"]) == ("new", NODE)
        rig.corrector.pods["a", "new"].budget = None
        rig.now = Millis(rig.now + 5_000)
        await until(lambda: not rig.corrector.pods)
        await until(lambda: len(rig.recorder.told(EntryType.RECLAIMED)) == 1)
        assert rig.meters.strays == 1


async def test_no_pod_is_corrected_after_the_lease_expired() -> None:
    async with running(Rig()) as rig:
        rig.lead.free.set()
        await until(lambda: rig.leader.is_leading)
        rig.lead.free.clear()
        rig.lead.seconds_left = lambda: 0.0  # type: ignore[method-assign]
        await rig.hear(ev.PodObserved(rig.now, running_pod("new", 31_000)))
        await until(lambda: rig.meters.strays == 1)
        before = rig.inbox.waits
        await until(lambda: rig.inbox.waits > before + 1)
        assert not rig.corrector.asked


async def test_first_leader_stores_the_installation_time() -> None:
    rig = Rig()
    rig.installation.kept = None
    async with running(rig):
        rig.lead.free.set()
        await until(lambda: rig.leader.is_leading)
        assert rig.installation.kept == 60_000


async def test_late_write_of_an_earlier_term_drops_no_later_change(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(store_writer, "RECENT", 0)
    rig = Rig()
    write, reached, goes_on = rig.store.write, asyncio.Event(), asyncio.Event()

    async def slow(epoch: int, writes: Sequence[StoreWrite]) -> None:
        reached.set()
        await goes_on.wait()
        await write(epoch, writes)

    monkeypatch.setattr(rig.store, "write", slow)
    copying = asyncio.create_task(rig.copier.write_changes())
    rig.copier.start_writing(1)
    await until(lambda: rig.memory.floor == 1)
    rig.copier.queue_write(UsageStarted(run("first")))
    await reached.wait()
    rig.copier.start_writing(2)
    rig.copier.queue_write(UsageStarted(run("second")))
    goes_on.set()
    await until(lambda: rig.memory.floor == 2)
    copying.cancel()
    assert Uid("u-second") in rig.memory.runs.open
