"""Pods that wait for new nodes get freed capacity, without one search per pod."""

from __future__ import annotations

from collections.abc import Mapping

from app.core.model import Amounts, Node, NodeName, Pool, PoolName, Resource
from app.core.placement.allocations import Allocation, Allocations
from app.core.placement.assignment import Assignment
from app.core.placement.pool_nodes import PoolNodes
from app.core.placement.pools import Pools
from app.core.podspec.constraints import NodeConstraints
from app.core.podspec.equivalence_class import DEFAULT_LAYOUT, GangLayout, Parts, Pins
from app.core.quantities import CPU, ManagedResources

GPU = Resource("nvidia.com/gpu")
AUTO = PoolName("auto")
NODE = NodeName("n0")
OFFER: Amounts = {GPU: 8, CPU: 8000}


class Counted(PoolNodes):
    """Counts its searches for a node."""

    asked = 0

    def find_assignment(
        self,
        parts: Parts,
        withheld: Mapping[NodeName, Amounts] = {},
        pins: Pins = (),
        manner: GangLayout = DEFAULT_LAYOUT,
    ) -> Assignment | None:
        self.asked += 1
        return super().find_assignment(parts, withheld, pins, manner)


class Yard:
    """A growing pool: one node with two half-node pods, and many different waiting pods."""

    def __init__(self, waiting: int) -> None:
        self.pools = Pools(ManagedResources([GPU]))
        self.pools.put_pool(Pool(AUTO, max_capacity={GPU: 8000}))
        self.pools.rebuild_if_stale()
        self.floor = self.pools.nodes_by_pool[AUTO] = Counted()
        self.put(NODE)
        self.placement = Allocations(self.pools)
        half: Amounts = {GPU: 4}
        self.halves = [self._enter(half, NODE) for _ in range(2)]
        self.waiting = [self._enter({GPU: 8, CPU: n + 1}) for n in range(waiting)]
        self.placement.assign_pods_to_new_nodes()
        self.floor.asked = 0

    def put(self, name: NodeName, labels: Mapping[str, str] | None = None) -> None:
        self.pools.put_node(Node(name, labels or {}, OFFER, True))

    def land(self) -> list[NodeName | None]:
        self.placement.assign_pods_to_new_nodes()
        return [allocation.node for allocation in self.waiting]

    def _enter(self, demand: Amounts, node: NodeName | None = None) -> Allocation:
        return self.placement.allocate(AUTO, demand, node=node, bound=node is not None)


def test_no_search_runs_if_the_freed_capacity_fits_no_waiting_pod() -> None:
    yard = Yard(50)
    yard.placement.remove_allocation(yard.halves[0])
    assert yard.land() == [None] * 50
    assert yard.floor.asked == 0


def test_first_pod_gets_the_freed_node_without_searches_for_the_others() -> None:
    yard = Yard(50)
    for half in yard.halves:
        yard.placement.remove_allocation(half)
    assert yard.land() == [NODE, *[None] * 49]
    assert yard.floor.asked <= 2


def test_each_pod_gets_its_own_node_if_several_nodes_appear() -> None:
    yard = Yard(3)
    for name in ("n1", "n2"):
        yard.put(NodeName(name))
    nodes = yard.land()
    assert set(nodes[:2]) == {"n1", "n2"}
    assert nodes[2] is None


def test_capacity_freed_before_a_pod_waits_is_not_lost() -> None:
    yard = Yard(0)
    yard.placement.remove_allocation(yard.halves[0])
    yard.waiting = [yard._enter({GPU: 8})]
    yard.placement.remove_allocation(yard.halves[1])
    assert yard.land() == [NODE]


def test_no_search_runs_for_pods_that_may_not_use_the_freed_node() -> None:
    yard = Yard(0)
    labelled = NodeConstraints((("zone", "b"),))
    for number in range(20):
        demand: Amounts = {GPU: 8, CPU: number + 1}
        allocation = yard.placement.allocate(
            AUTO, demand, node=None, bound=False, node_constraints=labelled
        )
        yard.waiting.append(allocation)
    yard.floor.asked = 0
    for half in yard.halves:
        yard.placement.remove_allocation(half)
    assert yard.land() == [None] * 20
    assert yard.floor.asked == 0
    yard.put(NODE, {"zone": "b"})
    assert yard.land() == [NODE, *[None] * 19]
