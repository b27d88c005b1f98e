"""Reservations of freed capacity: never for a workload that can never start."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from fractions import Fraction

import pytest

from app.core.model import (
    Amounts,
    Millis,
    Node,
    NodeName,
    PoolName,
    Quota,
    Resource,
    Tenant,
    TenantName,
    UserName,
)
from app.core.policy import Policy, Reclaim
from app.core.quantities import PODS, ManagedResources
from app.sim.cluster.virtual_cluster import VirtualCluster
from app.sim.cluster.workload import SimulatedWorkload, TimelineStep

GPU = Resource("nvidia.com/gpu")
MINUTE = 60_000
HOUR = 60 * MINUTE
DEFAULT = PoolName("default")


def world(nodes: int, gpus: int, tenants: Iterable[Tenant], **policy: object) -> VirtualCluster:
    room = {GPU: gpus, PODS: 1000}
    cluster = [Node(NodeName(f"n{i}"), {}, room, True) for i in range(nodes)]
    chosen = Policy(reclaim=Reclaim.OFF, min_runtime=Millis(0))
    return VirtualCluster(
        ManagedResources([GPU]),
        cluster,
        tenants,
        policy=replace(chosen, **policy),  # type: ignore[arg-type]
    )


def tenant(name: str, guarantee: int = 0, limit: int = 0) -> Tenant:
    quota = Quota(amount(guarantee) if guarantee else {}, amount(limit) if limit else {})
    return Tenant(TenantName(name), Millis(0), namespaces=(name,), quotas={DEFAULT: quota})


def amount(gpus: int) -> Amounts:
    return {GPU: gpus}


def work(
    name: str, owner: str, at: int, gpus: int, minutes: int | None = None, **more: object
) -> SimulatedWorkload:
    lasts = None if minutes is None else Millis(minutes * MINUTE)
    return SimulatedWorkload(
        name,
        TenantName(owner),
        UserName(owner),
        Millis(at),
        amount(gpus),
        duration=lasts,
        **more,  # type: ignore[arg-type]
    )


def started(world: VirtualCluster, name: str) -> int | None:
    """Return when a workload was released, in minutes."""
    times = [
        m.at for m in world.timeline if m.work.name == name and m.step is TimelineStep.RELEASED
    ]
    return times[0] // MINUTE if times else None


def flood(world: VirtualCluster, owner: str, hours: int, minutes: int = 40) -> None:
    """Submit one-device jobs of a tenant each minute, faster than they end."""
    for i in range(hours * 60):
        world.add_workload(work(f"small-{i}", owner, i * MINUTE, 1, minutes))


@pytest.mark.parametrize("with_impossible", [False, True])
def test_workload_that_never_fits_does_not_prevent_a_reservation(with_impossible: bool) -> None:
    cluster = world(4, 8, [tenant("idle"), tenant("gang"), tenant("busy")])
    flood(cluster, "busy", 10)
    if with_impossible:
        cluster.add_workload(work("impossible", "idle", HOUR - 1, 9))
    cluster.add_workload(work("pair", "gang", HOUR, 8, 60, pods=2))
    cluster.advance_to(Millis(10 * HOUR))

    at = started(cluster, "pair")
    assert started(cluster, "impossible") is None
    assert at is not None
    assert at < 3 * 60


def test_workload_that_never_fits_does_not_prevent_a_reclaim() -> None:
    tenants = [tenant("x", guarantee=16), tenant("z", guarantee=4), tenant("hog")]
    cluster = world(2, 8, tenants, reclaim=Reclaim.GUARANTEE)
    for i in range(16):
        cluster.add_workload(work(f"hog-{i}", "hog", 0, 1))
    cluster.add_workload(work("impossible", "x", MINUTE, 9))
    cluster.add_workload(work("wanted", "z", 2 * MINUTE, 1))
    cluster.advance_to(Millis(3 * MINUTE))

    assert started(cluster, "wanted") == 2
    assert [m.work.name for m in cluster.timeline if m.step is TimelineStep.EVICTED] == ["hog-15"]


@pytest.mark.parametrize("size", [20, 22, 24, 32])
def test_large_gang_starts_although_another_tenant_refills_the_cluster(size: int) -> None:
    """Two equal tenants: the other may use half of the gang's size before the gang is next."""
    cluster = world(1, 32, [tenant("gang"), tenant("busy")])
    flood(cluster, "busy", 12)
    cluster.add_workload(work("large", "gang", HOUR, size, 60))
    cluster.advance_to(Millis(12 * HOUR))

    at = started(cluster, "large")
    assert at is not None
    assert at < 8 * 60


def test_last_started_of_equal_victims_is_evicted() -> None:
    tenants = [tenant("owner", guarantee=2), tenant("hog")]
    cluster = world(1, 8, tenants, reclaim=Reclaim.GUARANTEE)
    for i in range(8):
        cluster.add_workload(work(f"hog-{i}", "hog", 0, 1))
    for i in range(2):
        cluster.add_workload(work(f"own-{i}", "owner", MINUTE, 1))
    cluster.advance_to(Millis(MINUTE))

    evicted = [m.work.name for m in cluster.timeline if m.step is TimelineStep.EVICTED]
    assert evicted == ["hog-7", "hog-6"]


def test_declared_run_time_is_ignored_for_an_hour_after_it_was_exceeded() -> None:
    """The gang waits for five devices, free after four hours.

    Workloads that declare an earlier end may backfill.
    """
    cluster = world(1, 8, [tenant("gang"), tenant("liar"), tenant("honest")])
    brief = Millis(10 * MINUTE)
    cluster.add_workload(work("other", "liar", 0, 3))
    cluster.add_workload(work("lie", "liar", 0, 1, 30, max_runtime=brief))
    cluster.add_workload(work("long", "honest", 0, 4, 240, max_runtime=Millis(4 * HOUR)))
    cluster.add_workload(work("large", "gang", MINUTE, 5, 60))
    cluster.add_workload(work("again", "liar", HOUR, 1, 10, max_runtime=brief))
    cluster.add_workload(work("true", "honest", HOUR + MINUTE, 1, 10, max_runtime=brief))
    cluster.advance_to(Millis(6 * HOUR))

    assert started(cluster, "true") == 61
    assert started(cluster, "again") in (91, None) or started(cluster, "again") >= 90  # type: ignore[operator]
    assert started(cluster, "large") == 240


def test_a_pod_that_ends_shortly_after_its_declared_run_time_is_still_trusted() -> None:
    """A node ends a pod at its deadline, and the end is seen later."""
    cluster = world(1, 8, [tenant("gang"), tenant("true"), tenant("honest")])
    brief = Millis(10 * MINUTE - 30_000)
    cluster.add_workload(work("other", "true", 0, 3))
    cluster.add_workload(work("ended", "true", 0, 1, 10, max_runtime=brief))
    cluster.add_workload(work("long", "honest", 0, 4, 240, max_runtime=Millis(4 * HOUR)))
    cluster.add_workload(work("large", "gang", MINUTE, 5, 60))
    cluster.add_workload(work("again", "true", HOUR, 1, 10, max_runtime=brief))
    cluster.advance_to(Millis(2 * HOUR))

    assert started(cluster, "again") == 60


def test_history_puts_a_past_borrower_behind_a_new_tenant() -> None:
    past = {"history": Fraction(1), "half_life": Millis(HOUR)}
    cluster = world(1, 2, [tenant("before"), tenant("new")], **past)
    for i in range(2):
        cluster.add_workload(work(f"old-{i}", "before", 0, 1, 90))
    for owner in ("before", "new"):
        for i in range(2):
            cluster.add_workload(work(f"{owner}-{i}", owner, 90 * MINUTE, 1))
    cluster.advance_to(Millis(90 * MINUTE))

    assert started(cluster, "new-0") == started(cluster, "new-1") == 90
    assert started(cluster, "before-0") is None
