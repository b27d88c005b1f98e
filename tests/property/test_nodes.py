"""Invariants of the nodes of a pool under any changes, and comparison with a simple model."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass, field

from hypothesis import given, settings
from hypothesis import strategies as st

from app.core.model import Amounts, NodeName, PlacementStrategy, Resource
from app.core.placement.fragmentation import PodMix
from app.core.placement.node_info import NodeAllocation
from app.core.placement.pool_nodes import PoolNodes
from app.core.placement.shared_devices import (
    Devices,
    DeviceTray,
    count_fitting_demands,
    subtract_demand,
    subtract_forcibly,
)
from app.core.podspec.equivalence_class import Parts
from tests.support.depth import cases

GPU = Resource("nvidia.com/gpu")
CPU = Resource("cpu")
SIZE = 10
NAMES = tuple(NodeName(name) for name in "abcde")

styles = st.sampled_from(PlacementStrategy)
plain_nodes = st.dictionaries(
    st.sampled_from(NAMES),
    st.fixed_dictionaries({GPU: st.integers(0, 6), CPU: st.integers(0, 9)}),
    min_size=1,
)


def pods_of(gpus: int, cpus: int) -> st.SearchStrategy[dict[Resource, int]]:
    """Pods with requests. Pods without requests are never assigned."""
    each = st.fixed_dictionaries({GPU: st.integers(0, gpus), CPU: st.integers(0, cpus)})
    return each.filter(lambda demand: any(demand.values()))


plain_pods = pods_of(3, 3)
fractional_pods = pods_of(25, 4)


def pool_of(
    style: PlacementStrategy,
    offers: Mapping[NodeName, Amounts],
    fractions: Amounts,
    mix: PodMix | None = None,
) -> PoolNodes:
    nodes = PoolNodes(style, mix)
    for name, offer in offers.items():
        nodes.set_node(name, offer, fractions, True)
    return nodes


def take_all(nodes: PoolNodes, parts: Parts, names: tuple[NodeName, ...]) -> list[NodeAllocation]:
    demands = [demand for demand, count in parts for _ in range(count)]
    assert len(names) == len(demands)
    pairs = sorted(zip(names, demands, strict=True), key=lambda pair: -pair[1].get(GPU, 0))
    return [nodes.allocate(name, demand) for name, demand in pairs]


@given(styles, plain_nodes, plain_pods, st.integers(1, 12))
def test_plan_for_equal_pods_is_found_if_and_only_if_one_exists(
    style: PlacementStrategy, offers: dict[NodeName, Amounts], demand: Amounts, count: int
) -> None:
    nodes = pool_of(style, offers, {})
    room = sum(min(o[r] // v for r, v in demand.items() if v) for o in offers.values())
    parts = ((demand, count),)
    plan = nodes.find_assignment(parts)
    assert (plan is not None) == (count <= room)
    if plan is not None:
        take_all(nodes, parts, plan.nodes)
        assert all(value >= 0 for name in offers for value in nodes.free(name).values())


@given(
    styles,
    st.dictionaries(st.sampled_from(NAMES), st.integers(1, 4), min_size=1),
    st.lists(st.tuples(st.sampled_from(NAMES), st.integers(1, 25)), max_size=5),
    st.integers(1, 25),
    st.integers(1, 12),
)
def test_plan_for_equal_fractional_pods_is_found_if_and_only_if_one_exists(
    style: PlacementStrategy,
    sizes: dict[NodeName, int],
    before: list[tuple[NodeName, int]],
    value: int,
    count: int,
) -> None:
    offers = {name: {GPU: SIZE * n} for name, n in sizes.items()}
    nodes = pool_of(style, offers, {GPU: SIZE})
    slots = [nodes.allocate(name, {GPU: taken}) for name, taken in before]
    assert all(slot.node in NAMES for slot in slots)
    left = {name: devices_left(sizes[name], [s for s in slots if s.node == name]) for name in sizes}
    parts = ((demand := {GPU: value}, count),)
    plan = nodes.find_assignment(parts)
    assert (plan is not None) == (
        count <= sum(most_pods(devices, value) for devices in left.values())
    )
    if plan is not None:
        assert all(
            slot.has_fitting_devices for slot in take_all(nodes, ((demand, count),), plan.nodes)
        )


def devices_left(count: int, slots: list[NodeAllocation]) -> list[int]:
    left = [SIZE] * count
    for slot in slots:
        for number, amount in slot.devices(GPU):
            left[number] -= amount
    assert all(0 <= value <= SIZE for value in left)
    return left


def most_pods(left: list[int], value: int) -> int:
    """Return the largest number of pods of `value` each, over all uses of the unused devices."""
    count, rest = divmod(value, SIZE)
    whole, parts = left.count(SIZE), [v for v in left if v < SIZE]
    spots = sum(part // rest for part in parts) if rest else 0
    return max(
        min(
            (whole - opened) // count if count else 10**9,
            spots + opened * (SIZE // rest) if rest else 10**9,
        )
        for opened in range(whole + 1)
    )


@given(
    styles,
    plain_nodes,
    st.lists(st.tuples(plain_pods, st.integers(1, 3)), min_size=1, max_size=3),
    st.dictionaries(st.sampled_from(NAMES), plain_pods),
)
def test_plan_leaves_withheld_capacity_free(
    style: PlacementStrategy,
    offers: dict[NodeName, Amounts],
    parts: list[tuple[Amounts, int]],
    withheld: dict[NodeName, Amounts],
) -> None:
    nodes = pool_of(style, offers, {})
    wanted = tuple(parts)
    plan = nodes.find_assignment(wanted, withheld)
    if plan is not None:
        slots = take_all(nodes, wanted, plan.nodes)
        used = {r for demand, _ in parts for r, value in demand.items() if value}
        for slot in slots:
            free, kept = nodes.free(slot.node), withheld.get(slot.node, {})
            assert all(free[r] >= kept.get(r, 0) for r in used if slot.demand[r])


devices = st.builds(
    lambda whole, parts: Devices(0, SIZE, whole, tuple(sorted(parts))),
    st.integers(0, 4),
    st.lists(st.integers(1, SIZE - 1), max_size=4),
)


@given(devices, st.integers(1, 25))
def test_counted_placements_equal_placing_pods_one_by_one(left: Devices, demand: int) -> None:
    placed, rest = 0, subtract_demand(left, demand)
    while rest is not None:
        placed, rest = placed + 1, subtract_demand(rest, demand)
    assert count_fitting_demands(left, demand) == placed


@given(devices, st.integers(1, 60))
def test_forced_subtraction_takes_at_most_the_free_amount(left: Devices, demand: int) -> None:
    def total(some: Devices) -> int:
        return some.whole * SIZE + sum(some.parts)

    rest = subtract_forcibly(left, demand)
    assert total(rest) == max(0, total(left) - demand)
    assert list(rest.parts) == sorted(part for part in rest.parts if 0 < part < SIZE)


@given(st.integers(0, 45), st.lists(st.integers(0, 25), max_size=12), st.data())
def test_numbered_devices_behave_like_counted_devices(
    offer: int, steps: list[int], data: st.DataObject
) -> None:
    tray = DeviceTray(0, SIZE, offer)
    held = []
    for step in steps:
        if step == 0 and held:
            tray.release(held.pop(data.draw(st.integers(0, len(held) - 1))))
            continue
        counted = subtract_demand(tray.device_counts(), step)
        seats, proper = tray.allocate(step)
        held.append(seats)
        assert proper == (counted is not None)
        assert counted in (None, tray.device_counts())
        if proper:
            assert sum(amount for _, amount in seats) == step
    for seats in held:
        tray.release(seats)
    assert tray.device_counts() == DeviceTray(0, SIZE, offer).device_counts()


@dataclass
class Naive:
    """The same pool, computed from the definitions for each query."""

    style: PlacementStrategy
    offers: dict[NodeName, Amounts] = field(default_factory=dict)
    closed: set[NodeName] = field(default_factory=set)
    slots: list[NodeAllocation] = field(default_factory=list)

    def free(self, name: NodeName) -> dict[Resource, int]:
        left = dict(self.offers[name])
        for slot in self.on(name):
            for resource, value in slot.demand.items():
                left[resource] = left.get(resource, 0) - value
        return left

    def on(self, name: NodeName) -> list[NodeAllocation]:
        return [slot for slot in self.slots if slot.node == name]

    def best(self, demand: Amounts, mix: PodMix) -> NodeName | None:
        judged = []
        for name in sorted(self.offers):
            free = self.free(name)
            left = devices_left(self.offers[name][GPU] // SIZE, self.on(name))
            after = fitted(left, demand.get(GPU, 0))
            if name in self.closed or after is None:
                continue
            rest = {r: v - demand.get(r, 0) for r, v in free.items()}
            if any(rest[r] < 0 for r, v in demand.items() if v):
                continue
            if self.style is PlacementStrategy.SPREAD:
                judged.append(((-free[self.scarce(demand)],), name))
                continue
            lost = usable(left, free[CPU], mix) - usable(after, rest[CPU], mix)
            idle = 0 if demand.get(GPU, 0) else max(0, free[GPU])
            judged.append(((lost, idle, rest[self.scarce(demand)]), name))
        return min(judged)[1] if judged else None

    def scarce(self, demand: Amounts) -> Resource:
        def part(resource: Resource) -> float:
            opened = [o for name, o in self.offers.items() if name not in self.closed]
            return demand.get(resource, 0) / max(1, sum(o[resource] for o in opened))

        return GPU if part(GPU) >= part(CPU) and demand.get(GPU, 0) else CPU


def fitted(left: list[int], demand: int) -> list[int] | None:
    """Return the devices left: a fraction on the fullest fitting one, the rest on unused ones."""
    count, rest = divmod(demand, SIZE)
    left = sorted(left)
    if rest:
        spot = next((i for i, value in enumerate(left) if value >= rest), None)
        if spot is None:
            return None
        left[spot] -= rest
    for _ in range(count):
        if SIZE not in left:
            return None
        left.remove(SIZE)
    return left


def usable(left: list[int], cpu: int, mix: PodMix) -> int:
    """Return the devices usable by the mix: for each kind, as many pods as fit."""
    total = 0
    for (wanted, _), weight in mix.sample:
        demand = dict(wanted)
        devices: list[int] | None = left
        cores = cpu - demand.get(CPU, 0)
        while cores >= 0 and (devices := fitted(devices, demand[GPU])) is not None:
            total += weight * 1000 // SIZE * demand[GPU]
            cores -= demand.get(CPU, 0)
    return total


steps = st.one_of(
    st.tuples(st.just("put"), st.sampled_from(NAMES), st.integers(0, 3), st.booleans()),
    st.tuples(st.just("drop"), st.sampled_from(NAMES)),
    st.tuples(st.just("give"), st.integers(0, 99)),
    st.tuples(st.just("find"), st.integers(0, 3)),
    st.tuples(st.just("find"), st.integers(0, 3)),
    st.tuples(st.just("find"), st.integers(0, 3)),
)


@settings(max_examples=cases(120, 300))
@given(styles, st.lists(fractional_pods, min_size=4, max_size=4), st.lists(steps, max_size=40))
def test_every_pod_is_assigned_to_the_node_of_a_naive_model(
    style: PlacementStrategy, pods: list[Amounts], history: list[tuple[object, ...]]
) -> None:
    mix = PodMix()
    nodes, naive = PoolNodes(style, mix), Naive(style)
    shapes: list[Parts] = [((demand, 1),) for demand in pods]
    nodes.set_node(NAMES[0], {GPU: 20, CPU: 6}, {GPU: SIZE}, True)
    naive.offers[NAMES[0]] = {GPU: 20, CPU: 6}
    for step in history:
        match step:
            case ("put", str(name), int(count), bool(open)):
                node = NodeName(name)
                if not naive.on(node):  # devices may be reassigned when their number changes
                    naive.offers[node] = {GPU: SIZE * count, CPU: 3 * count}
                naive.closed -= {node}
                naive.closed |= set() if open else {node}
                offer = naive.offers[node]
                nodes.set_node(node, offer, {GPU: SIZE}, open)
            case ("drop", str(name)):
                node = NodeName(name)
                nodes.drop_node(node)
                naive.offers.pop(node, None)
                naive.slots = [slot for slot in naive.slots if slot.node != node]
            case ("give", int(number)) if naive.slots:
                nodes.release_allocation(naive.slots.pop(number % len(naive.slots)))
            case ("find", int(number)):
                mix.count_workload(shapes[number])
                plan = nodes.find_assignment(shapes[number])
                best = naive.best(pods[number], mix)
                assert (plan.nodes if plan else ()) == ((best,) if best else ())
                if plan is not None:
                    naive.slots.append(nodes.allocate(plan.nodes[0], pods[number]))
        for name in naive.offers:
            assert nodes.free(name) == naive.free(name)


@given(styles, plain_nodes, st.lists(plain_pods, min_size=1, max_size=8))
def test_order_of_observed_nodes_does_not_change_assignments(
    style: PlacementStrategy, offers: dict[NodeName, Amounts], pods: list[Amounts]
) -> None:
    orders = itertools.islice(itertools.permutations(sorted(offers)), 0, 24, 5)
    answers = set()
    for order in orders:
        mix = PodMix()
        nodes = pool_of(style, {name: offers[name] for name in order}, {}, mix)
        answer = []
        for demand in pods:
            mix.count_workload(((demand, 1),))
            plan = nodes.find_assignment(((demand, 1),))
            answer.append(plan and (plan.nodes, plan.cost))
            if plan is not None:
                nodes.allocate(plan.nodes[0], demand)
        answers.add(tuple(answer))
    assert len(answers) == 1


@given(
    st.lists(st.tuples(st.sampled_from(NAMES), fractional_pods), max_size=12),
    st.lists(st.tuples(st.sampled_from(NAMES), st.integers(0, 45)), max_size=6),
    st.data(),
)
def test_free_amounts_and_devices_stay_exact_on_an_overcommitted_node(
    taken: list[tuple[NodeName, Amounts]],
    offers: list[tuple[NodeName, int]],
    data: st.DataObject,
) -> None:
    nodes = PoolNodes()
    slots = [nodes.allocate(name, demand) for name, demand in taken]
    known: dict[NodeName, Amounts] = {}
    for name, gpus in offers:
        known[name] = {GPU: gpus, CPU: 5}
        nodes.set_node(name, known[name], {GPU: SIZE}, True)
        if slots:
            nodes.release_allocation(slots.pop(data.draw(st.integers(0, len(slots) - 1))))
        for node, offer in known.items():
            here = [slot for slot in slots if slot.node == node]
            used = {r: sum(slot.demand.get(r, 0) for slot in here) for r in offer}
            assert nodes.free(node) == {r: v - used[r] for r, v in offer.items()}
            seated = [pair for slot in here for pair in slot.devices(GPU)]
            each: dict[int, int] = {}
            for number, amount in seated:
                each[number] = each.get(number, 0) + amount
            assert all(amount <= SIZE for amount in each.values())
            assert sum(each.values()) == min(used[GPU], max(0, offer[GPU]))
