"""Pressure on pools, the unusable part of free capacity, and entitled shares."""

from __future__ import annotations

import pytest

from app.core import events as ev
from app.core.engine import Engine
from app.core.engine_options import EngineOptions
from app.core.model import Millis, Node, NodeName, PoolName, Resource, TenantName, UserName
from app.core.quantities import PODS, ManagedResources
from app.sim.cluster.virtual_cluster import held_pod
from app.web.api.wait_reason_cache import WaitReasonCache
from tests.fakes.fake_api_cluster import GPU, NOW, held, pool, runs, tenant

H100 = PoolName("h100")


def engine(*events: ev.ClusterEvent) -> Engine:
    """Return a following engine with these events."""
    made = Engine(ManagedResources([GPU]), EngineOptions(emits_audit_records=False))
    for source in ev.WatchedSource:
        made.handle(ev.SourceFresh(NOW, source))
    for event in events:
        made.handle(event)
    made.handle(ev.Pass(NOW))
    return made


def waiting(name: str, since: int, priority: int = 0, devices: int = 1) -> ev.PodObserved:
    pod = held_pod(name, "a", devices, since=since, priority=priority)
    return ev.PodObserved(NOW, pod)


def test_the_oldest_is_found_behind_younger_work_of_higher_priority() -> None:
    seen = engine(
        *pool("h100", 1),
        tenant("a"),
        waiting("urgent", 500, priority=9),
        waiting("old", 100, devices=2),
        waiting("young", 900, devices=2),
        waiting("older", 50, priority=1, devices=2),
    )
    found = seen.queries.backlog_by_tenant()[TenantName("a")]
    assert found.oldest == 50
    assert found.pods == {H100: 4}


def test_pod_that_fits_several_pools_is_counted_without_a_pool() -> None:
    news = [*pool("h100", 1), *pool("t4", 1), tenant("p"), tenant("a", parent="p")]
    found = engine(*news, waiting("w", 1)).queries.backlog_by_tenant()
    assert found[TenantName("a")].pods == found[TenantName("p")].pods == {None: 1}


def test_tenant_with_only_running_pods_has_no_backlog() -> None:
    seen = engine(*pool("h100", 1), tenant("a"), runs("r", "a", "u", "h100-00"))
    found = seen.queries.backlog_by_tenant()[TenantName("a")]
    assert (found.pods, found.oldest) == ({}, None)


def leading(*events: ev.ClusterEvent) -> Engine:
    """Return a leading engine."""
    made = Engine(ManagedResources([GPU]), EngineOptions(emits_audit_records=False))
    made.handle(ev.LeadershipGained(Millis(0), 1))
    made.handle(ev.StoreReady(Millis(0)))
    for source in ev.WatchedSource:
        made.handle(ev.SourceFresh(Millis(0), source))
    for event in events:
        made.handle(event)
    made.handle(ev.Pass(NOW))
    return made


def test_free_devices_that_no_waiting_pod_can_use_count_as_fragmented() -> None:
    nodes = [
        ev.NodeObserved(NOW, Node(NodeName(f"n{i}"), {}, {GPU: 4, PODS: 10}, True)) for i in (1, 2)
    ]
    seen = leading(*nodes, tenant("a"), *(waiting(f"w{i}", i, devices=3) for i in range(3)))
    # Each node has one pod of 3 devices. The remaining device of a node is useless for these pods.
    [part] = seen.queries.fragmentation().values()
    assert part == 1


def test_fragmentation_is_not_reported_before_any_pod_was_seen() -> None:
    assert engine(*pool("h100", 2)).queries.fragmentation() == {}


# --- entitled shares ---


def owed(seen: Engine, name: str) -> float:
    return seen.queries.fair_shares()[TenantName(name)].fair_share


def test_siblings_with_work_divide_all_by_weight() -> None:
    news = [tenant("a", 3), tenant("b"), tenant("c", 4), held("w", "a", "u"), held("v", "b", "u")]
    seen = engine(*pool("h100", 1), *news)
    assert (owed(seen, "a"), owed(seen, "b")) == (0.75, 0.25)
    assert owed(seen, "c") == 0.5  # if it had workloads: 4 of 8


def test_users_and_child_tenants_are_siblings() -> None:
    news = [tenant("p"), tenant("a", 2, parent="p"), held("w", "a", "u"), held("v", "p", "z")]
    seen = engine(*pool("h100", 1), *news)
    assert owed(seen, "a") == pytest.approx(2 / 3)
    users = seen.queries.fair_shares()[TenantName("p")].users
    assert users[UserName("z")].fair_share == pytest.approx(1 / 3)


def test_tenant_of_weight_0_has_no_share() -> None:
    seen = engine(*pool("h100", 1), tenant("a", 0), tenant("b"), held("w", "a", "u"))
    assert owed(seen, "a") == 0


def test_a_cluster_without_devices_owes_no_shares() -> None:
    found = engine(tenant("a"), held("w", "a", "u")).queries.fair_shares()[TenantName("a")]
    assert (found.used_share, found.limit) == (0, None)


def test_sums_count_every_pod_that_waits_once() -> None:
    seen = engine(
        *pool("h100", 1, devices=2),
        tenant("a"),
        *(held(f"w{i}", "a", "u") for i in range(5)),
        *(held(f"big{i}", "a", "u", 4) for i in range(2)),
        held("other", "a", "v"),
        ev.PodObserved(NOW, held_pod("odd", "a", 1, user="v", resource=Resource("x.io/none"))),
    )
    sums = WaitReasonCache(lambda: 0.0).backlogs(seen.queries)
    people = {user.name: user.pending for user in seen.queries.user_views(TenantName("a"))}
    assert {user: backlog.pods for (_, user), backlog in sums.items()} == people
    requests = {user: backlog.request for (_, user), backlog in sums.items()}
    assert requests == {"u": {GPU: 13}, "v": {GPU: 1}}
