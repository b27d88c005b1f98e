"""The leader's metrics: series of deleted objects disappear, and labels are bounded."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from fractions import Fraction

import pytest

from app.core.explain.backlog_stats import BacklogStats
from app.core.explain.views import ClusterView, PoolView, TenantView
from app.core.model import Millis, PoolName, ReleaseOutcome, Resource, TenantName
from app.core.scheduling.blocked_evictions import BlockedReclaim
from app.web.metrics import CERTIFICATE_EXPIRY, REGISTRY, PrometheusLeader

GPU = Resource("nvidia.com/gpu")
H100 = PoolName("h100")


def tenant(
    used: int, pending: int = 0, *, share: Fraction = Fraction(1, 2), parent: str | None = None
) -> TenantView:
    return TenantView(
        parent=TenantName(parent) if parent else None,
        weight=Fraction(2),
        share=share,
        used={H100: {GPU: used}},
        borrowed={},
        history=0.0,
        pending=pending,
        generation=1,
        disputed_namespaces=(),
        parent_fault="",
        paused=False,
        exists=True,
    )


def view(**tenants: TenantView) -> ClusterView:
    pool = PoolView(
        {GPU: 8, Resource("cpu"): 1500}, {}, 1, 1, contested_nodes={}, paused=False, exists=True
    )
    return ClusterView({TenantName(name): seen for name, seen in tenants.items()}, {H100: pool})


def sample(name: str, **labels: str) -> float | None:
    return REGISTRY.get_sample_value(name, labels)


def used(name: str) -> float | None:
    return sample("fairgate_used_resources", tenant=name, pool="h100", resource=GPU)


@pytest.fixture
def leading() -> Iterator[PrometheusLeader]:
    meters = PrometheusLeader(most_tenants=2)
    meters.set_leading_epoch(7)
    yield meters
    meters.set_leading_epoch(None)


def test_shares_are_shown_in_units_people_use(leading: PrometheusLeader) -> None:
    leading.set_shares(view(a=tenant(4, pending=3)))

    assert used("a") == 4
    assert sample("fairgate_weighted_share", tenant="a") == 0.25
    assert sample("fairgate_capacity", pool="h100", resource="cpu") == 1.5


def test_gauge_of_a_deleted_tenant_is_removed(leading: PrometheusLeader) -> None:
    leading.set_shares(view(a=tenant(4), b=tenant(1)))
    leading.set_shares(view(b=tenant(2)))

    assert (used("a"), used("b")) == (None, 2)


def test_tenants_beyond_the_bound_share_one_label(leading: PrometheusLeader) -> None:
    leading.set_shares(view(a=tenant(1), b=tenant(2), c=tenant(3), d=tenant(4)))

    assert (used("a"), used("b"), used("c"), used("other")) == (1, 2, None, 7)


def test_only_a_leader_shows_shares(leading: PrometheusLeader) -> None:
    leading.set_shares(view(a=tenant(1)))
    assert (sample("fairgate_leader"), sample("fairgate_leader_epoch")) == (1, 7)

    leading.set_leading_epoch(None)
    assert (sample("fairgate_leader"), sample("fairgate_leader_epoch")) == (0, 7)
    assert used("a") is None


def test_replica_that_no_longer_leads_exports_no_tenant_or_pool_gauge(
    leading: PrometheusLeader,
) -> None:
    """The alert `FairgateBudgetBlocksReclaim` must end when another replica leads."""
    blocked = replace(tenant(1, pending=1), blocked_reclaims=BlockedReclaim(2, (), (), ()))
    known = view(a=blocked)
    leading.set_shares(known)
    leading.set_backlog(known, {TenantName("a"): BacklogStats({H100: 1}, Millis(0))}, {H100: 0.5})
    leading.set_stale_pods({(TenantName("a"), "idle"): 1})
    assert sample("fairgate_reclaim_blocked_pods", tenant="a") == 2

    leading.set_leading_epoch(None)

    shown = {
        each.name
        for family in REGISTRY.collect()
        if family.type == "gauge"
        for each in family.samples
        if each.labels.keys() & {"tenant", "pool"}
    }
    assert shown == set()


def test_a_refusal_of_a_node_is_counted_by_pool_and_reason(leading: PrometheusLeader) -> None:
    def counted() -> float:
        labels = {"pool": "h100", "reason": "OutOfcpu"}
        return sample("fairgate_node_refusals_total", **labels) or 0

    before = counted()
    leading.count_node_refusal(H100, "OutOfcpu")

    assert counted() == before + 1


def test_jain_index_counts_only_top_level_tenants_with_pending_pods(
    leading: PrometheusLeader,
) -> None:
    half, none = Fraction(1, 2), Fraction(0)
    leading.set_shares(
        view(
            a=tenant(4, pending=1, share=half),
            b=tenant(0, pending=1, share=none),
            content=tenant(0, share=none),
            child=tenant(0, pending=1, share=none, parent="a"),
        )
    )
    assert sample("fairgate_jain_index") == 0.5

    leading.set_shares(view(a=tenant(4, pending=1), b=tenant(4, pending=9)))
    assert sample("fairgate_jain_index") == 1

    leading.set_shares(view(a=tenant(0, pending=1, share=none)))
    assert sample("fairgate_jain_index") == 1


def test_the_drift_is_shown_by_a_leader_only(leading: PrometheusLeader) -> None:
    leading.set_drift(0.25)
    assert sample("fairgate_fairness_drift_ratio") == 0.25

    leading.set_leading_epoch(None)
    assert sample("fairgate_fairness_drift_ratio") == 0


def test_pending_workloads_are_counted_by_their_pool(leading: PrometheusLeader) -> None:
    known = view(a=tenant(0, pending=9), b=tenant(0))
    leading.set_backlog(known, {TenantName("a"): BacklogStats({H100: 4, None: 2}, None)}, {})

    def pending(name: str, pool: str) -> float | None:
        return sample("fairgate_pending_workloads", tenant=name, pool=pool)

    assert [pending("a", pool) for pool in ("h100", "any", "none")] == [4, 2, 3]
    assert [pending("b", pool) for pool in ("h100", "any", "none")] == [None, None, 0]

    leading.set_backlog(view(b=tenant(0)), {}, {})
    assert pending("a", "h100") is None


def test_the_age_of_the_oldest_is_computed_when_it_is_read() -> None:
    now = [100.0]
    meters = PrometheusLeader(most_tenants=1, clock=lambda: now[0])
    known = view(a=tenant(0, pending=1), b=tenant(0, pending=1), c=tenant(0, pending=1))
    since = {"a": 40_000, "b": 70_000, "c": 10_000}
    waiting = {TenantName(name): BacklogStats({H100: 1}, Millis(at)) for name, at in since.items()}
    meters.set_backlog(known, waiting, {})

    def age(name: str) -> float | None:
        return sample("fairgate_oldest_pending_seconds", tenant=name)

    assert (age("a"), age("b"), age("other")) == (60, None, 90)
    now[0] = 101
    assert age("a") == 61
    meters.set_leading_epoch(None)
    assert age("a") is None


def test_fragmentation_is_exported_only_while_capacity_is_free(
    leading: PrometheusLeader,
) -> None:
    leading.set_backlog(view(), {}, {H100: 0.25})
    assert sample("fairgate_fragmentation_ratio", pool="h100") == 0.25
    leading.set_backlog(view(), {}, {})
    assert sample("fairgate_fragmentation_ratio", pool="h100") is None


def test_eviction_is_counted_with_its_lost_resource_seconds(leading: PrometheusLeader) -> None:
    def counted() -> tuple[float, float, float]:
        evicted = sample("fairgate_reclaimed_total", tenant="a", reason="unbound") or 0
        name = "fairgate_evicted_resource_seconds_total"
        return evicted, sample(name, resource=GPU) or 0, sample(name, resource="cpu") or 0

    before = counted()
    leading.count_eviction(TenantName("a"), "unbound", {GPU: 80.0, Resource("cpu"): 5000.0})

    assert counted() == (before[0] + 1, before[1] + 80, before[2] + 5)


def test_release_is_counted_by_its_outcome(leading: PrometheusLeader) -> None:
    def counted(result: str) -> float:
        labels = {"tenant": "a", "pool": "h100", "result": result}
        return sample("fairgate_release_total", **labels) or 0

    def waits() -> float:
        return sample("fairgate_wait_seconds_count", tenant="a") or 0

    before = counted("released"), counted("held"), waits()
    leading.count_release(TenantName("a"), H100, ReleaseOutcome.RELEASED, 0.1, waited=60)
    leading.count_release(TenantName("a"), H100, ReleaseOutcome.HELD, 0.1, waited=60)

    assert (counted("released"), counted("held"), waits()) == tuple(n + 1 for n in before)


def test_failures_of_the_store_are_counted_by_operation(leading: PrometheusLeader) -> None:
    before = sample("fairgate_store_errors_total", operation="write") or 0

    leading.count_store_failure("write")

    assert sample("fairgate_store_errors_total", operation="write") == before + 1


def test_the_end_of_the_certificate_is_computed_when_it_is_read() -> None:
    left = [100.0]
    CERTIFICATE_EXPIRY.set_function(lambda: left[0])
    assert sample("fairgate_certificate_expiry_seconds") == 100

    left[0] = 40
    assert sample("fairgate_certificate_expiry_seconds") == 40
