"""Guarantees and limits are in devices where pods request fractions of any size."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

from app.core.model import (
    DEFAULT_POOL,
    Amounts,
    Millis,
    Node,
    NodeName,
    Pool,
    Quota,
    Tenant,
    TenantName,
    Uid,
)
from app.core.podspec.device_fractions import CORES, MEMORY, WHOLE
from app.core.pricing.share_units import Scale
from app.core.quantities import PODS, ManagedResources
from app.sim.cluster.virtual_cluster import VirtualCluster, held_pod

MANAGED = ManagedResources(["nvidia.com/*"])
OFFER = {WHOLE: 20, CORES: 200, MEMORY: 81920, PODS: 110}
FILL = (WHOLE, ((CORES, 100), (MEMORY, 40960)))


def cluster(quota: Quota) -> VirtualCluster:
    """Four devices on two nodes; the only tenant has this quota."""
    name = TenantName("a")
    quotas = {DEFAULT_POOL: quota}
    tenant = Tenant(name, Millis(0), Fraction(1), None, ("a",), quotas=quotas)
    nodes = [Node(NodeName(f"n{each}"), {}, OFFER, True) for each in range(2)]
    return VirtualCluster(MANAGED, nodes, [tenant], [Pool(DEFAULT_POOL)])


def submit(world: VirtualCluster, count: int, demand: Amounts) -> None:
    for number in range(count):
        pod = replace(held_pod(f"p{number}", "a", 1), demand={**demand, PODS: 1})
        world.submit(replace(pod, uid=Uid(pod.name)), world.now, None)
    world.advance_to(Millis(world.now + 1))


def borrowed(world: VirtualCluster) -> Amounts:
    found = world.view().tenants[TenantName("a")].borrowed.get(DEFAULT_POOL, {})
    return {r: value for r, value in found.items() if value}


def test_whole_devices_within_a_guarantee_of_devices_are_not_borrowed() -> None:
    world = cluster(Quota({WHOLE: 3}))
    submit(world, 3, {WHOLE: 1})
    assert len(world.released_pods) == 3
    assert borrowed(world) == {}


def test_devices_beyond_a_guarantee_are_borrowed_with_their_cores_and_memory() -> None:
    world = cluster(Quota({WHOLE: 3}))
    submit(world, 4, {WHOLE: 1})
    assert borrowed(world) == {WHOLE: 1, CORES: 100, MEMORY: 40960}


def test_limit_of_devices_also_limits_pods_that_request_only_cores() -> None:
    world = cluster(Quota({}, {WHOLE: 1}))
    submit(world, 3, {CORES: 40})
    assert len(world.released_pods) == 2


def test_a_limit_of_no_devices_lets_no_part_through() -> None:
    world = cluster(Quota({}, {WHOLE: 0}))
    submit(world, 1, {CORES: 40})
    assert not world.released_pods


def test_quota_that_names_cores_or_memory_is_not_changed() -> None:
    scale = Scale({}, {}, fills={DEFAULT_POOL: FILL})
    for amounts in ({WHOLE: 2, CORES: 0}, {MEMORY: 9}, {}):
        assert scale.quota_with_sides(DEFAULT_POOL, Quota(amounts, amounts)) == Quota(
            amounts, amounts
        )


def test_a_guarantee_of_devices_is_owed_as_devices_not_as_seats() -> None:
    world = cluster(Quota({WHOLE: 3}, {WHOLE: 3}))
    owed = world.engine.queries.fair_shares()[TenantName("a")]
    assert (owed.guarantee, owed.limit) == (0.75, 0.75)


def test_reason_names_the_resource_that_a_limit_of_devices_exhausts() -> None:
    world = cluster(Quota({}, {WHOLE: 1}))
    submit(world, 3, {CORES: 40})
    why = world.engine.queries.explain_wait(Uid("p2"))
    assert why is not None
    assert "nvidia.com/gpucores" in why.text
