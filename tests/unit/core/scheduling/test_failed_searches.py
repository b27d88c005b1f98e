"""Victim searches without a result: each is repeated after a pause in proportion to its work."""

from __future__ import annotations

from app.core import events as ev
from app.core.fairshare.tree_node import TenantNode, UserNode
from app.core.model import Millis, Node, TenantName, UserName
from app.core.podspec.equivalence_class import EquivalenceClass
from app.core.quantities import PODS
from app.core.scheduling.failed_searches import (
    MAX_PAUSE_MS,
    MAX_STEPS_WITHOUT_PAUSE,
    FailedSearches,
    SearchKey,
)
from tests.support.call_counts import calls_of
from tests.support.eviction_cluster import GPU, NODE, POOL, EvictionCluster

LARGE = MAX_STEPS_WITHOUT_PAUSE + 100
"""Number of pods whose search is followed by a pause."""

PROTECTED_MS = 60_000
"""Time for which the pods of tenant b are still protected by `minRuntime`."""


def full_of_young_pods(devices: int) -> EvictionCluster:
    """Return a cluster in which tenant b borrows nearly all devices and tenant a waits for one."""
    cluster = EvictionCluster()
    cluster.hear(ev.NodeObserved(cluster.at, Node(NODE, {}, {GPU: devices, PODS: 9999}, True)))
    cluster.rule(min_runtime=Millis(cluster.now + PROTECTED_MS))
    cluster.run(*(f"b{i}" for i in range(devices)))
    cluster.lead()
    cluster.submit("a")
    return cluster


def calls_of_a_pass(cluster: EvictionCluster) -> int:
    """Return the number of function calls of a pass after the arrival of an unrelated pod."""
    cluster.now += 100
    return calls_of(lambda: cluster.submit(f"d{cluster.now}"))


def search_key(user: str) -> SearchKey:
    tenant = TenantNode(TenantName("a"), None, (1, 1), {})
    leaf = UserNode(TenantName("a"), UserName(user), tenant, (1, 1))
    return SearchKey(leaf, 0, EquivalenceClass((), {}, (POOL,)), POOL)


def test_a_failed_search_is_not_repeated_in_every_pass() -> None:
    small, large = full_of_young_pods(20), full_of_young_pods(LARGE)
    for cluster in (small, large):
        calls_of_a_pass(cluster)  # the first pod of a tenant costs more
    assert calls_of_a_pass(large) < 2 * calls_of_a_pass(small)


def test_a_guarantee_is_honoured_soon_after_the_protection_ends() -> None:
    cluster = full_of_young_pods(LARGE)
    began = cluster.now
    calls_of_a_pass(cluster)
    while not (evicted := cluster.evicted()):
        assert cluster.now < began + PROTECTED_MS + MAX_PAUSE_MS
        assert cluster.alarm > cluster.now, "the leader would wait for an event"
        cluster.wait(cluster.alarm - cluster.now)
    assert evicted == ["b0"]
    assert cluster.now >= began + PROTECTED_MS


def test_a_small_cluster_has_no_pause() -> None:
    cluster = full_of_young_pods(20)
    cluster.wait(PROTECTED_MS)
    assert not cluster.evicted()
    cluster.wait(1)
    assert cluster.evicted() == ["b0"]


def test_searches_for_others_do_not_prolong_a_pause_without_end() -> None:
    searches, first = FailedSearches(), search_key("first")
    searches.start_cycle(Millis(0))
    searches.record(first, 10**6, Millis(0))
    for now in range(0, MAX_PAUSE_MS, 1000):
        searches.start_cycle(Millis(now))
        assert searches.is_paused(first)
        searches.record(search_key(f"user {now}"), 10**6, Millis(now))
    searches.start_cycle(Millis(MAX_PAUSE_MS))
    assert not searches.is_paused(first)


def test_pause_has_a_due_time_only_if_its_search_was_requested_again() -> None:
    searches, key = FailedSearches(), search_key("user")
    searches.start_cycle(Millis(0))
    searches.record(key, 10**6, Millis(0))
    assert searches.is_paused(key)
    assert searches.due() is None
    searches.start_cycle(Millis(100))
    assert searches.is_paused(key)
    assert searches.due() == MAX_PAUSE_MS
