"""The capacity of a node that typical pods could use, computed from a sample of pods."""

from __future__ import annotations

from app.core.model import Amounts, NodeName, PoolName, Resource
from app.core.placement.fragmentation import PodKind, UsabilityGauge
from app.core.placement.node_info import FreeCapacity, NodeInfo, ResourceIndex
from app.core.quantities import CPU

GPU, FAST, SLOW = Resource("nvidia.com/gpu"), PoolName("fast"), PoolName("slow")
DEVICE = 1000


def kind(*pools: PoolName, gpu: int, cpu: int = 0) -> PodKind:
    demand = {GPU: gpu, CPU: cpu}
    return tuple(sorted(pair for pair in demand.items() if pair[1])), pools


def usable(
    *sample: tuple[PodKind, int], cpu: int, gpu: int, taken: Amounts | None = None, size: int = 0
) -> int:
    """Return the usable devices of a node of the pool `fast`."""
    layout = ResourceIndex()
    offer = {CPU: cpu, GPU: gpu}
    layout.add_resources(offer)
    site = NodeInfo(NodeName("n"), layout)
    site.set_capacity(offer, {GPU: size} if size else {}, True)
    site.allocate(taken or {})
    room: FreeCapacity = site.free_capacity()
    read = UsabilityGauge(layout, sample, FAST).usable(room)
    assert read % DEVICE == 0
    return read // DEVICE


def test_a_kind_uses_the_devices_of_as_many_pods_as_fit() -> None:
    pod = kind(gpu=2, cpu=10)
    assert usable((pod, 1), gpu=8, cpu=40) == 8
    assert usable((pod, 1), gpu=7, cpu=40) == 6
    assert usable((pod, 1), gpu=8, cpu=29) == 4
    assert usable((pod, 1), gpu=8, cpu=9) == 0


def test_each_kind_of_pod_counts_by_its_frequency() -> None:
    assert usable((kind(gpu=2, cpu=10), 3), (kind(gpu=1), 5), gpu=8, cpu=20) == 3 * 4 + 5 * 8


def test_kind_that_requests_no_cpu_fits_without_free_cpu() -> None:
    assert usable((kind(gpu=1, cpu=10), 1), (kind(gpu=1), 1), gpu=4, cpu=0) == 4


def test_kinds_that_differ_only_in_their_pools_add_up() -> None:
    either, fast, slow = (kind(*pools, gpu=1) for pools in ((FAST, SLOW), (FAST,), (SLOW,)))
    assert usable((either, 2), (fast, 3), (slow, 9), (kind(gpu=1), 4), gpu=1, cpu=0) == 2 + 3 + 4


def test_overfull_node_has_no_usable_capacity() -> None:
    sample = (kind(gpu=1, cpu=1), 1)
    assert usable(sample, gpu=8, cpu=4, taken={CPU: 9}) == 0
    assert usable(sample, gpu=1, cpu=8, taken={GPU: 4}) == 0


def test_a_device_sold_in_fractions_counts_by_its_size() -> None:
    # Two pods of four tenths fit on an unused device, and one on a device with half left.
    assert usable((kind(gpu=4), 5), gpu=20, cpu=0, taken={GPU: 5}, size=10) == 3 * 2
    assert usable((kind(gpu=10), 7), gpu=20, cpu=0, taken={GPU: 5}, size=10) == 7
