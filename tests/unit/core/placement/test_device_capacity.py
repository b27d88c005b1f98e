"""Devices of ResourceSlices count as the capacity of nodes."""

from __future__ import annotations

from dataclasses import replace

import pytest

from app.core.model import Amounts, Node, NodeName, Resource
from app.core.placement.device_capacity import DeviceCapacity
from app.core.podspec.constraints import (
    NodeSelectorRequirement,
    NodeSelectorTerm,
    Taint,
    Toleration,
)
from app.core.podspec.devices import CounterUse, Device, NodeReach, ResourceSlice, ShareLimit
from app.core.podspec.resource_claims import MOST_DEVICES, Classes, DeviceAsk, DeviceClass
from app.core.quantities import CPU, ManagedResources
from tests.support.device_slices import (
    GPU,
    GPUS,
    IS_GPU,
    SICK,
    Words,
    allocated,
    device,
    gpus,
    published,
)

MIG = Resource("nvidia.com/mig-1g.5gb")
MANAGED = ManagedResources([GPU, MIG])
N1, N2 = NodeName("n1"), NodeName("n2")
EVERYWHERE = NodeReach(every=True)


def node(name: NodeName, *, ready: bool = True, **labels: str) -> Node:
    return Node(name, labels, {CPU: 8000}, ready)


class Shelf:
    """Two nodes, the class of GPUs, and slices."""

    def __init__(self, *slices: ResourceSlice) -> None:
        self.classes = Classes(MANAGED, {GPUS.name: GPU})
        self.classes.store_class(GPUS)
        self.capacity = DeviceCapacity(self.classes, Words())
        for name in (N1, N2):
            self.capacity.inventory.put_node(node(name))
        self.publish(*slices)
        self.capacity.drain_changed_nodes()

    def publish(self, *slices: ResourceSlice) -> None:
        for each in slices:
            self.capacity.inventory.put_slice(each)

    def gpus(self, name: NodeName = N1) -> int:
        return self.capacity.slice_capacity(name).get(GPU, 0)

    def changed(self) -> dict[NodeName, Amounts]:
        return {each.name: each.allocatable for each in self.capacity.drain_changed_nodes()}


def test_a_node_keeps_no_readiness_taint_of_the_past() -> None:
    """Nodes are equal with and without these taints, which come and go a moment later."""
    shelf, sick = Shelf(), Taint("node.kubernetes.io/not-ready", "", "NoSchedule")
    for ready, taints in ((False, (sick,)), (True, (sick,)), (True, ())):
        shelf.capacity.put_node(replace(node(N1, ready=ready), readiness_taints=taints))
    shelf.publish(published("n1", *gpus(1)))
    shelf.classes.store_class(GPUS)
    found = {each.name: each.readiness_taints for each in shelf.capacity.drain_changed_nodes()}
    assert found[N1] == ()


def test_the_devices_of_a_node_are_its_capacity() -> None:
    shelf = Shelf(published("n1", *gpus(8)))
    assert shelf.gpus() == 8
    assert shelf.gpus(N2) == 0
    assert shelf.capacity.with_slice_devices(node(N1)).allocatable == {CPU: 8000, GPU: 8}


def test_only_devices_that_match_the_class_count() -> None:
    shelf = Shelf(published("n1", *gpus(2), device("nic-0", "nic")))
    assert shelf.gpus() == 2


def test_a_device_counts_once_though_two_classes_of_a_resource_match() -> None:
    shelf = Shelf(published("n1", *gpus(2)))
    shelf.classes.store_class(DeviceClass("all", GPU))
    assert shelf.gpus() == 2


def test_a_selector_without_an_answer_may_match() -> None:
    shelf = Shelf(published("n1", *gpus(2)))
    shelf.classes.store_class(replace(GPUS, selectors=("unknown()",)))
    assert shelf.gpus() == 2


def test_without_its_class_a_device_is_no_capacity() -> None:
    shelf = Shelf(published("n1", *gpus(2)))
    shelf.classes.drop_class(GPUS.name)
    assert shelf.changed() == {N1: {CPU: 8000}, N2: {CPU: 8000}}


def test_a_class_counts_as_its_extended_resource_without_any_setting() -> None:
    shelf = Shelf(published("n1", *gpus(3, "tpu")))
    shelf.classes.store_class(DeviceClass("tpu.example.com", GPU, ("type == tpu",)))
    assert shelf.changed()[N1] == {CPU: 8000, GPU: 3}


def test_a_resource_in_status_and_in_slices_is_not_added_up() -> None:
    shelf = Shelf(published("n1", *gpus(4)))
    plugin = replace(node(N1), allocatable={GPU: 8})
    stale = replace(node(N1), allocatable={GPU: 0})
    assert shelf.capacity.with_slice_devices(plugin).allocatable[GPU] == 8
    assert shelf.capacity.with_slice_devices(stale).allocatable[GPU] == 4


def test_only_the_newest_generation_of_a_pool_counts() -> None:
    shelf = Shelf(published("n1", *gpus(8)), published("n1", *gpus(3), generation=2))
    assert shelf.gpus() == 3
    shelf.capacity.inventory.drop_slice("n1-2")
    assert shelf.gpus() == 8


def test_an_incomplete_pool_offers_nothing_and_is_reported() -> None:
    first = published("n1", device("gpu-0"), name="s-0", count=2)
    shelf = Shelf(first)
    assert shelf.gpus() == 0
    key = first.key
    assert shelf.capacity.inventory.problems() == {key: "1 of 2 slices of generation 1 exist"}
    shelf.publish(published("n1", device("gpu-1"), name="s-1", count=2))
    assert shelf.gpus() == 2
    assert not shelf.capacity.inventory.problems()


def test_a_newer_incomplete_generation_hides_the_older_one() -> None:
    shelf = Shelf(published("n1", *gpus(8)))
    shelf.publish(published("n1", device("gpu-0"), generation=2, count=2))
    assert shelf.changed() == {N1: {CPU: 8000}}


def test_pool_with_two_devices_of_the_same_name_offers_nothing() -> None:
    slices = [published("n1", device("gpu-0"), name=f"s-{i}", count=2) for i in range(2)]
    shelf = Shelf(*slices)
    assert shelf.gpus() == 0
    assert list(shelf.capacity.inventory.problems().values()) == ["two devices have the name gpu-0"]


def test_slice_that_shrinks_or_is_deleted_removes_its_devices() -> None:
    shelf = Shelf(published("n1", *gpus(8)))
    shelf.publish(published("n1", *gpus(5)))
    assert shelf.changed()[N1][GPU] == 5
    shelf.capacity.inventory.drop_slice("n1-1")
    assert shelf.changed() == {N1: {CPU: 8000}}
    assert shelf.changed() == {}


def test_a_tainted_device_is_capacity_only_while_a_claim_has_it() -> None:
    shelf = Shelf(published("n1", device("gpu-0", "gpu", SICK), device("gpu-1")))
    assert shelf.gpus() == 1
    shelf.capacity.put_claim(allocated("c", "n1", "gpu-0"))
    assert shelf.changed()[N1][GPU] == 2
    shelf.capacity.drop_claim(("a", "c"))
    assert shelf.changed()[N1][GPU] == 1


def test_a_request_may_tolerate_a_tainted_device() -> None:
    shelf = Shelf(published("n1", device("gpu-0", "gpu", SICK), device("gpu-1")))
    tolerant = DeviceAsk(GPUS.name, tolerations=(Toleration("sick", "Exists"),))
    assert len(shelf.capacity.matching_devices(DeviceAsk(GPUS.name), node(N1))) == 1
    assert len(shelf.capacity.matching_devices(tolerant, node(N1))) == 2


def test_a_device_of_several_nodes_counts_on_one_ready_node() -> None:
    shelf = Shelf(published(EVERYWHERE, *gpus(2)))
    assert (shelf.gpus(N1), shelf.gpus(N2)) == (2, 0)
    shelf.capacity.inventory.put_node(node(N1, ready=False))
    assert shelf.changed() == {N1: {CPU: 8000}, N2: {CPU: 8000, GPU: 2}}
    assert len(shelf.capacity.matching_devices(DeviceAsk(GPUS.name), node(N2))) == 2


def test_a_node_selector_decides_which_nodes_reach_a_device() -> None:
    rack = NodeSelectorTerm((NodeSelectorRequirement("rack", "In", ("r1",)),))
    shelf = Shelf(published(NodeReach(selector=(rack,)), *gpus(2)))
    assert (shelf.gpus(N1), shelf.gpus(N2)) == (0, 0)
    shelf.capacity.inventory.put_node(node(N2, rack="r1"))
    assert shelf.changed() == {N2: {CPU: 8000, GPU: 2}}


def test_devices_of_one_slice_may_belong_to_different_nodes() -> None:
    mine, other = (device(f"gpu-{n}", reach=NodeReach(n)) for n in (N1, N2))
    shelf = Shelf(published(NodeReach(), mine, other))
    assert (shelf.gpus(N1), shelf.gpus(N2)) == (1, 1)


def whole(name: str = "gpu-0") -> CounterUse:
    return CounterUse(name, "memory", 8)


def mig(name: str, size: int) -> CounterUse:
    return CounterUse("gpu-0", "memory", size)


PARTS = published(
    "n1",
    device("gpu-0", uses=[whole()]),
    *(device(f"mig-{i}", uses=[mig("gpu-0", 1)]) for i in range(7)),
    counters=[whole()],
)


def test_partitions_of_a_device_are_not_counted_beside_the_device() -> None:
    assert Shelf(PARTS).gpus() == 1


def test_free_partitions_of_a_device_in_use_are_capacity() -> None:
    shelf = Shelf(PARTS)
    shelf.capacity.put_claim(allocated("c", "n1", "mig-0"))
    assert shelf.changed()[N1][GPU] == 1 + 6
    matching = shelf.capacity.matching_devices(DeviceAsk(GPUS.name), node(N1))
    free = {each.device.name for each in shelf.capacity.free_devices(matching)}
    assert free == {f"mig-{i}" for i in range(1, 7)}


def test_a_device_in_use_as_a_whole_has_no_free_partitions() -> None:
    shelf = Shelf(PARTS)
    shelf.capacity.put_claim(allocated("c", "n1", "gpu-0"))
    assert shelf.gpus() == 1
    assert not shelf.capacity.free_devices(
        shelf.capacity.matching_devices(DeviceAsk(GPUS.name), node(N1))
    )


def test_shared_device_always_has_capacity_for_one_more_claim() -> None:
    shelf = Shelf(published("n1", device("gpu-0", shared=True)))
    assert shelf.gpus() == 1
    for number in (1, 2):
        shelf.capacity.put_claim(allocated(f"c{number}", "n1", "gpu-0"))
        assert shelf.changed()[N1][GPU] == number + 1


def test_a_used_up_shared_device_has_no_capacity_for_one_more_claim() -> None:
    memory = ShareLimit("memory", 80, 80)
    shelf = Shelf(published("n1", device("gpu-0", shared=True, limits=[memory])))
    shelf.capacity.put_claim(allocated("c1", "n1", "gpu-0", consumed=(("memory", 50),)))
    assert shelf.gpus() == 2
    shelf.capacity.put_claim(allocated("c2", "n1", "gpu-0", consumed=(("memory", 30),)))
    assert shelf.gpus() == 2
    shelf.capacity.drop_claim(("a", "c1"))
    shelf.capacity.drop_claim(("a", "c2"))
    assert shelf.gpus() == 1
    assert not shelf.capacity._consumed


def test_a_device_for_one_claim_counts_once_even_if_two_claims_have_it() -> None:
    shelf = Shelf(published("n1", device("gpu-0")))
    for number in (1, 2):
        shelf.capacity.put_claim(allocated(f"c{number}", "n1", "gpu-0"))
        assert shelf.gpus() == 1


def test_admin_access_takes_no_device() -> None:
    shelf = Shelf(published("n1", *gpus(2)))
    shelf.capacity.put_claim(allocated("c", "n1", "gpu-0", admin=True))
    matching = shelf.capacity.matching_devices(DeviceAsk(GPUS.name), node(N1))
    assert len(shelf.capacity.free_devices(matching)) == 2
    assert shelf.capacity.devices_of_claim(("a", "c")) is None


@pytest.mark.parametrize(("slices", "most"), [((), MOST_DEVICES), ((4, 8), 8), ((40,), 32)])
def test_all_devices_are_those_of_the_largest_node(slices: tuple[int, ...], most: int) -> None:
    shelf = Shelf(*(published(f"n{i}", *gpus(n)) for i, n in enumerate(slices, 1)))
    claim = replace(allocated("c", "n1"), requests=((DeviceAsk(GPUS.name, None),),))
    assert shelf.classes.count_amounts(claim) == {GPU: most}


def test_selectors_of_a_claim_are_not_evaluated() -> None:
    """Users write them, and each would be evaluated for every device of the cluster."""
    evaluated: list[str] = []

    class Recording(Words):
        def matches(self, expression: str, driver: str, device: Device) -> bool | None:
            evaluated.append(expression)
            return super().matches(expression, driver, device)

        def matches_of_user(self, expression: str, driver: str, device: Device) -> bool | None:
            return self.matches(expression, driver, device)

    capacity = DeviceCapacity(classes := Classes(MANAGED, {GPUS.name: GPU}), Recording())
    classes.store_class(GPUS)
    capacity.inventory.put_node(node(N1))
    capacity.inventory.put_slice(published("n1", *gpus(8)))
    asks = [(DeviceAsk(GPUS.name, None, f"r{i}", selectors=(f"uuid == {i}",)),) for i in range(32)]
    claim = replace(allocated("c", "n1"), allocated_devices=None, requests=tuple(asks))
    assert classes.count_amounts(claim) == {GPU: MOST_DEVICES}
    assert evaluated == [IS_GPU] * 8


def test_a_node_that_is_gone_is_not_changed() -> None:
    shelf = Shelf(published("n1", *gpus(2)))
    shelf.publish(published("n1", *gpus(3)))
    shelf.capacity.inventory.drop_node(N1)
    assert shelf.changed() == {}


def test_selectors_of_a_claim_are_evaluated_as_those_of_a_user() -> None:
    """They have a time budget, see `kube.device_selectors`."""
    asked: list[str] = []

    class Recording(Words):
        def matches_of_user(self, expression: str, driver: str, device: Device) -> bool | None:
            asked.append(expression)
            return None

    capacity = DeviceCapacity(classes := Classes(MANAGED, {GPUS.name: GPU}), Recording())
    classes.store_class(GPUS)
    capacity.inventory.put_node(n1 := node(N1))
    capacity.inventory.put_slice(published("n1", *gpus(2)))
    ask = DeviceAsk(GPUS.name, 1, "r", selectors=("type == none",))
    assert len(capacity.matching_devices(ask, n1)) == 2, "a device may match without an answer"
    assert asked == ["type == none"] * 2


def test_an_allocation_does_not_count_all_devices_of_the_cluster_again() -> None:
    asked: list[str] = []

    class Recording(Words):
        def matches(self, expression: str, driver: str, device: Device) -> bool | None:
            asked.append(device.name)
            return super().matches(expression, driver, device)

    capacity = DeviceCapacity(classes := Classes(MANAGED, {GPUS.name: GPU}), Recording())
    classes.store_class(GPUS)
    parts = [device(f"part-{i}", uses=(CounterUse("c", "m", 1),)) for i in range(4)]
    for number in range(20):
        name = f"m{number}"
        capacity.put_node(node(NodeName(name)))
        capacity.inventory.put_slice(published(name, *parts, counters=(CounterUse("c", "m", 4),)))
    capacity.drain_changed_nodes()
    claim = replace(
        allocated("all", "m0"),
        allocated_devices=None,
        requests=((DeviceAsk(GPUS.name, None, "r"),),),
    )
    assert capacity.drain_device_change()
    assert classes.count_amounts(claim) == {GPU: 4}
    asked.clear()

    capacity.put_claim(allocated("c", "m3", "part-1"))
    assert [each.name for each in capacity.drain_changed_nodes()] == ["m3"]

    assert not capacity.drain_device_change()
    assert classes.count_amounts(claim) == {GPU: 4}
    assert len(asked) == len(parts)
