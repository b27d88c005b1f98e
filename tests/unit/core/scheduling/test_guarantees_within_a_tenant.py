"""Reclaim for a guarantee if several users of the tenant wait."""

from __future__ import annotations

import pytest

from app.core import events as ev
from app.sim.cluster.virtual_cluster import held_pod
from tests.support.eviction_cluster import EvictionCluster


def submit(cluster: EvictionCluster, user: str, devices: int) -> None:
    """Submit a pod of a user of tenant a, which has a guarantee of 4 devices."""
    cluster.now += 1000
    pod = held_pod(user, "a", devices, user=user, since=cluster.now)
    cluster.hear(ev.PodObserved(cluster.at, pod))


@pytest.fixture
def cluster() -> EvictionCluster:
    """A full node of 9 devices. Bob uses two, tenant d borrows the others, one can be evicted."""
    full = EvictionCluster()
    full.run("a1", "a2", user="bob")
    full.run("d1")
    full.run(*(f"d{i}" for i in range(2, 8)), preemptible=False)
    full.lead()
    return full


def test_a_guarantee_is_honoured_though_no_eviction_helps_the_first_user(
    cluster: EvictionCluster,
) -> None:
    submit(cluster, "alice", 2)
    assert not cluster.evicted()
    submit(cluster, "bob", 1)
    assert cluster.evicted() == ["d1"]


def test_a_guarantee_is_honoured_though_no_eviction_helps_many_users_with_equal_pods(
    cluster: EvictionCluster,
) -> None:
    for i in range(30):
        submit(cluster, f"alice{i}", 2)
    submit(cluster, "bob", 1)
    assert cluster.evicted() == ["d1"]


def test_a_second_user_waits_while_a_reclaim_can_help_the_first(cluster: EvictionCluster) -> None:
    submit(cluster, "bob", 1)
    assert cluster.evicted() == ["d1"]
    submit(cluster, "alice", 1)
    assert not cluster.evicted()
