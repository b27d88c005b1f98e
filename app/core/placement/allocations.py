"""Allocations of all released pods, and cached answers on where a workload fits now.

Every pod that uses a pool has an `Allocation`: on the node that runs it, or on an assumed node
until the scheduler binds it. `pools` decides which nodes belong to a pool.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from weakref import WeakKeyDictionary

from app.core.model import Amounts, Millis, NodeName, NodeSet, PoolName, Resource, TenantName
from app.core.placement.assignment import Assignment
from app.core.placement.autoscaling_backoff import AutoscalingAccount
from app.core.placement.autoscaling_capacity import TO_COME, AutoscalingCapacity
from app.core.placement.existing_anti_affinity import ExistingAntiAffinity
from app.core.placement.node_filter import within
from app.core.placement.node_info import NodeAllocation
from app.core.placement.pod_affinity import PodPeers, TentativePeers, plan_apart, said_by_part
from app.core.placement.pool_nodes import PoolNodes
from app.core.placement.pools import Pools, add_to
from app.core.placement.topology import grounds
from app.core.podspec.constraints import (
    ANYWHERE,
    NodeConstraints,
    PodDistanceRule,
    PodDistanceRules,
)
from app.core.podspec.equivalence_class import EquivalenceClass, Pins


@dataclass(frozen=True, slots=True, eq=False)
class ReservedCapacity:
    """Capacity of a pool that is reserved and must stay free on nodes. Compared by identity."""

    rooms: Mapping[NodeName, Amounts]


NOTHING = ReservedCapacity({})


@dataclass(slots=True, eq=False)
class Allocation:
    """The allocation of one released pod: a pool, and a node if one is known.

    `only`, `terms` and `spacings`: the nodes it may be on. `ends`: its declared end, if any.
    `leaving`: the pod is terminating.
    """

    pool: PoolName
    demand: Amounts
    node: NodeName | None
    bound: bool
    ends: Millis | None
    only: NodeSet = None
    terms: NodeConstraints = ANYWHERE
    spacings: tuple[PodDistanceRules, ...] = ()
    leaving: bool = False
    slot: NodeAllocation | None = None

    def overstayed(self, now: Millis) -> bool:
        """Return whether the pod runs longer than declared."""
        return self.ends is not None and self.ends < now


_Plans = dict[tuple[PoolName, ReservedCapacity], tuple[int, Assignment | None]]
"""Cached plans of one class, each with the stamp of its distance rules."""


class Allocations:
    """The allocations of all released pods, and the free capacity that remains."""

    def __init__(self, pools: Pools) -> None:
        self.used: dict[PoolName, dict[Resource, int]] = {}
        self.stays: dict[NodeName, dict[Allocation, None]] = {}
        self.company = PodPeers(pools.reach, pools.labels_of)
        self.walls = ExistingAntiAffinity(self.company)
        self._closed: frozenset[tuple[TenantName, NodeName]] = frozenset()
        self.beyond = AutoscalingCapacity(pools)
        self._pools = pools
        self._adrift: dict[PoolName, dict[Resource, int]] = {}
        self._plans: WeakKeyDictionary[EquivalenceClass, _Plans] = WeakKeyDictionary()
        self._vain: WeakKeyDictionary[EquivalenceClass, set[tuple[PoolName, ReservedCapacity]]] = (
            WeakKeyDictionary()
        )
        """Pools in which a class without distance rules does not fit. Valid until capacity is
        freed, so a release causes no new search for the waiting workloads."""
        self._pins: WeakKeyDictionary[EquivalenceClass, dict[PoolName, Pins]] = WeakKeyDictionary()
        self._seen = self._pinned = (0, 0)
        self._drifters: dict[PoolName, dict[Allocation, None]] = {}
        self._landed: dict[PoolName, tuple[int, int]] = {}

    def enter(
        self,
        pool: PoolName,
        demand: Amounts,
        *,
        node: NodeName | None,
        bound: bool,
        ends: Millis | None = None,
        only: NodeSet = None,
        terms: NodeConstraints = ANYWHERE,
        spacings: tuple[PodDistanceRules, ...] = (),
        leaving: bool = False,
    ) -> Allocation:
        """Allocate capacity for a pod on its node. `bound`: the scheduler has bound the pod.

        If `node` is None, the best node is assumed. If no node has free capacity, only the pool is
        charged. A pod that may be on one node `only` is still assumed there, and waits for
        capacity.
        """
        allocation = Allocation(pool, demand, node, bound, ends, only, terms, spacings, leaving)
        if node is None:
            allocation.node = node = self._expected(allocation)
        self.resume(allocation)
        if bound and node is not None:
            self._send_on(pool, node)
        return allocation

    def close(self, closed: frozenset[tuple[TenantName, NodeName]]) -> None:
        """Set the closed nodes, each with the tenant to which it is closed."""
        for tenant, node in sorted(closed ^ self._closed):
            sign = 1 if (tenant, node) in closed else -1
            self.company.count_bound((_closed_to(tenant).group,), node, sign)
        self._closed = closed

    def closed_to(self, tenant: TenantName) -> tuple[PodDistanceRules, ...]:
        """Return the rule that keeps pods of a tenant off the nodes closed to it, if any."""
        return (_closed_to(tenant),) if self.nodes_closed_to(tenant) else ()

    def nodes_closed_to(self, tenant: TenantName) -> list[NodeName]:
        """Return the nodes that are closed to one tenant, by name."""
        return sorted(node for whose, node in self._closed if whose == tenant)

    def lost(self, allocation: Allocation, node: NodeName) -> bool:
        """Return whether a node is gone, not ready, in another pool, or excludes a pod by a taint.

        Labels are not checked: the owner of the pod may have narrowed its affinity since then.
        """
        known = self._pools.reach.node(node)
        if known is None or not known.ready or self._pools.home_of(node) != allocation.pool:
            return True
        return not self._pools.reach.bears(allocation.terms, node)

    def is_known(self, node: NodeName) -> bool:
        """Return whether a node of this name exists, ready or not."""
        return self._pools.reach.node(node) is not None

    def reconsider(self, node: NodeName) -> None:
        """Move assumed pods off a node that is gone, has less capacity, or excludes more pods."""
        home = self._pools.home_of(node)
        for allocation in list(self.stays.get(node, ())):
            if allocation.bound or _settled(allocation):
                continue
            if allocation.pool != home or not self._pools.reach.admits(allocation.terms, node):
                self._expect_anew(allocation)
        if home is not None:
            self._send_on(home, node)

    def _send_on(self, pool: PoolName, node: NodeName) -> None:
        """Move assumed pods off a node without capacity for them, the last added first."""
        floor = self._pools.floors.get(pool)
        while floor is not None:
            short = [r for r, left in floor.free(node).items() if left < 0]
            if not short:
                return
            # A pod that requests no overcommitted resource would be assumed there again.
            expected = [
                s
                for s in self.stays.get(node, ())
                if not s.bound and s.pool == pool and not _settled(s)
                if any(s.demand.get(r, 0) > 0 for r in short)
            ]
            if not expected:
                return
            self._expect_anew(expected[-1])

    def _expect_anew(self, allocation: Allocation) -> None:
        self.leave(allocation)
        allocation.node = self._expected(allocation)
        self.resume(allocation)

    def _expected(self, allocation: Allocation) -> NodeName | None:
        """Return the node to assume for a released pod. None: unknown."""
        floor = self._pools.floors.get(allocation.pool)
        if floor is None:
            return None
        pin = self._pools.reach.pin(allocation.terms, allocation.only, allocation.pool)
        if allocation.spacings:
            pin = self.company.pin(allocation.spacings, allocation.terms, allocation.pool, pin)
        plan = floor.find(((allocation.demand, 1),), pins=() if pin is None else (pin,))
        if plan is not None:
            return plan.nodes[0]
        only = allocation.only
        return only[0] if only is not None and len(only) == 1 and floor.free(only[0]) else None

    def resume(self, allocation: Allocation) -> None:
        """Add an allocation, for the first time or after `leave`."""
        add_to(self.used.setdefault(allocation.pool, {}), allocation.demand, 1)
        self._plans.clear()
        if allocation.node is None:
            add_to(self._adrift.setdefault(allocation.pool, {}), allocation.demand, 1)
            if not allocation.leaving:
                self._drifters.setdefault(allocation.pool, {})[allocation] = None
            return
        self.stays.setdefault(allocation.node, {})[allocation] = None
        if allocation.spacings:
            self.company.count(allocation.spacings, allocation.node, 1, bound=allocation.bound)
        floor = self._pools.floors.get(allocation.pool)
        if floor is not None:
            allocation.slot = floor.allocate(allocation.node, allocation.demand)
        if allocation.bound:
            self._pools.carry(allocation.node, allocation.demand, 1)

    def leave(self, allocation: Allocation) -> None:
        """Remove an allocation."""
        add_to(self.used[allocation.pool], allocation.demand, -1)
        self._forget_plans()
        if allocation.node is None:
            add_to(self._adrift[allocation.pool], allocation.demand, -1)
            self._drifters.get(allocation.pool, {}).pop(allocation, None)
            return
        del self.stays[allocation.node][allocation]
        if allocation.spacings:
            self.company.count(allocation.spacings, allocation.node, -1, bound=allocation.bound)
        floor = self._pools.floors.get(allocation.pool)
        if allocation.slot is not None and floor is not None:
            floor.give(allocation.slot)
        if allocation.bound:
            self._pools.carry(allocation.node, allocation.demand, -1)

    def part(self, allocation: Allocation) -> None:
        """Mark the pod as terminating. It keeps its allocation, but does not wait for a node."""
        allocation.leaving = True
        if allocation in self._drifters.get(allocation.pool, {}):
            del self._drifters[allocation.pool][allocation]
            self._forget_plans()

    def clear_allocations(self) -> None:
        """Remove all allocations before a full recount."""
        for stays in self.stays.values():
            for allocation in stays:
                floor = self._pools.floors.get(allocation.pool)
                if floor is not None and allocation.slot is not None:
                    floor.give(allocation.slot)
        self.used.clear()
        self._adrift.clear()
        self._drifters.clear()
        self._landed.clear()
        self.stays.clear()
        self.company.reset_counts()
        self._forget_plans()
        self._pools.forget_carried()

    @property
    def laid_out(self) -> tuple[int, int]:
        """Version of the pools, the node capacity, the node filter and the autoscaling backoff."""
        pools = self._pools
        return (pools.version, pools.resized + pools.reach.version + pools.growth.changes)

    def seen(self, shape: EquivalenceClass) -> tuple[int, int]:
        """Return a version for one workload: `laid_out` and the pods of its distance groups."""
        version, changes = self.laid_out
        return version, changes + sum(map(self.company.stamp, shape.spacings))

    def fitting(self, shape: EquivalenceClass) -> tuple[PoolName, ...]:
        """Return the pools where a workload fits now, the best first."""
        plans = {pool: plan for pool in shape.pools if (plan := self.plan(shape, pool))}
        return self.ranked(shape, plans)

    def ranked(
        self, shape: EquivalenceClass, plans: Mapping[PoolName, Assignment]
    ) -> tuple[PoolName, ...]:
        """Return the pools with a plan: smallest sufficient devices first, then best packed.

        Device size counts only if the class declares its device memory. A plan that waits for new
        nodes counts only if every plan does.
        """
        size = self._pools.makes.size
        there = {pool: plan for pool, plan in plans.items() if not plan.awaits} or plans
        costs = [(size(p) if shape.sized else 0, plan.cost, p) for p, plan in there.items()]
        return tuple(pool for *_, pool in sorted(costs))

    def plan(
        self, shape: EquivalenceClass, pool: PoolName, withheld: ReservedCapacity = NOTHING
    ) -> Assignment | None:
        """Return the node assignment of a workload in a pool, or None. Allocates nothing."""
        seen = self.laid_out
        if seen != self._seen:
            self._seen = seen
            self._forget_plans()
        key = (pool, withheld)
        if key in self._vain.get(shape, ()):
            return None
        plans = self._plans.get(shape)
        if plans is None:
            plans = self._plans[shape] = {}
        stamp = sum(map(self.company.stamp, shape.spacings))
        known = plans.get(key)
        if known is None or known[0] != stamp:
            known = plans[key] = stamp, self._find(shape, pool, withheld)
            if known[1] is None and not shape.spacings:
                self._vain.setdefault(shape, set()).add(key)
        return known[1]

    def plan_for(
        self,
        account: AutoscalingAccount,
        shape: EquivalenceClass,
        pool: PoolName,
        withheld: ReservedCapacity = NOTHING,
    ) -> Assignment | None:
        """Return `plan` for a user. None if it needs new nodes and the user is barred from them."""
        plan = self.plan(shape, pool, withheld)
        barred = plan is not None and self._pools.growth.barred(pool, account) is not None
        return None if barred and plan is not None and plan.awaits else plan

    def pins(self, shape: EquivalenceClass, pool: PoolName) -> Pins:
        """Return the allowed nodes of each part of a workload in a pool. Empty: any ready node."""
        seen = self.laid_out
        if seen != self._pinned:
            self._pinned = seen
            self._pins.clear()
        pins = self._pins.setdefault(shape, {})
        found = pins.get(pool)
        if found is None:
            only = shape.pins or (None,) * len(shape.parts)
            terms = shape.terms or (ANYWHERE,) * len(shape.parts)
            reach = self._pools.reach
            found = tuple(reach.pin(t, o, pool) for t, o in zip(terms, only, strict=True))
            found = pins[pool] = found if any(pin is not None for pin in found) else ()
        return found

    def blocking(self, shape: EquivalenceClass, pool: PoolName) -> PodDistanceRules | None:
        """Return the distance rule that leaves a workload no node. None if no rule does."""
        for number, spacings in enumerate(shape.spacings):
            terms, _ = said_by_part(shape, number)
            pin = (self.pins(shape, pool) or (None,) * len(shape.parts))[number]
            nodes = self._pools.open_nodes(pool, pin)
            for each in spacings:
                if self.company.open((each,), terms, pool).isdisjoint(nodes):
                    return each
        return None

    def avoided(self, shape: EquivalenceClass) -> bool:
        """Return whether anti-affinity of existing pods may close nodes to a workload."""
        return any(
            each.distance is PodDistanceRule.AVOIDED and self.company.restricts((each,))
            for spacings in shape.spacings
            for each in spacings
        )

    def avoided_nodes(self, shape: EquivalenceClass, pool: PoolName) -> int:
        """Return how many ready nodes of a pool existing anti-affinity closes to a workload."""
        rules = [
            (number, each)
            for number, spacings in enumerate(shape.spacings)
            for each in spacings
            if each.distance is PodDistanceRule.AVOIDED
        ]
        if not rules:
            return 0  # the usual case: do not list all nodes for each pod
        closed: set[NodeName] = set()
        nodes = frozenset(self.open_nodes(pool))
        for number, each in rules:
            terms, _ = said_by_part(shape, number)
            closed |= nodes - self.company.open((each,), terms, pool)
        return len(closed)

    def open_nodes(self, pool: PoolName, only: NodeSet = None) -> list[NodeName]:
        """Return the ready nodes of a pool, restricted to `only`, by name."""
        return self._pools.open_nodes(pool, only)

    def grounds(self, shape: EquivalenceClass, pool: PoolName) -> list[Collection[NodeName]] | None:
        """Return the nodes of each domain that a confined workload may use. None: not confined."""
        floor = self._pools.floors.get(pool)
        return None if floor is None else grounds(floor.domains, shape.manner)

    def free_on(self, pool: PoolName, node: NodeName) -> Amounts:
        """Return the free capacity of a node of a pool."""
        return self._pools.floors[pool].free(node)

    def free(self, pool: PoolName) -> dict[Resource, int]:
        """Return the free capacity of a pool as a whole."""
        used = self.used.get(pool, {})
        return {r: v - used.get(r, 0) for r, v in self._pools.capacity(pool).items()}

    def awaiting(self, pool: PoolName) -> int:
        """Return how many released pods wait for a node of a pool that may grow."""
        return len(self._drifters.get(pool, ())) if self.beyond.most(pool) else 0

    def land(self) -> None:
        """Assign pods that wait for new nodes to nodes with new capacity. Cheap without any."""
        for pool, drifters in self._drifters.items():
            floor = self._pools.floors.get(pool)
            if floor is None or not drifters or not self.beyond.most(pool):
                continue
            stamp = (self._pools.version, floor.grown)
            if self._landed.get(pool) == stamp:
                continue
            self._landed[pool] = stamp
            grown = {name: floor.free(name) for name in floor.take_grown()}
            vain: set[tuple[object, ...]] = set()
            for allocation in list(drifters):
                alike = (
                    id(allocation.demand),
                    allocation.terms,
                    allocation.only,
                    allocation.spacings,
                )
                if alike in vain or not self._may_land(allocation, grown):
                    continue
                if self._expected(allocation) is None:
                    vain.add(alike)
                else:
                    self._expect_anew(allocation)
                    if allocation.node in grown:
                        grown[allocation.node] = floor.free(allocation.node)

    def _may_land(self, allocation: Allocation, grown: Mapping[NodeName, Amounts]) -> bool:
        """Return, cheaply, whether a grown node may take a pod that waits for a new one.

        Other nodes could not take it before. If the pod has distance rules, any node may be open
        now.
        """
        if allocation.spacings or _settled(allocation):
            return True
        admits = self._pools.reach.admits
        return any(
            all(value <= free.get(r, 0) for r, value in allocation.demand.items() if value > 0)
            and admits(allocation.terms, name)
            for name, free in grown.items()
        )

    def _forget_plans(self) -> None:
        self._plans.clear()
        self._vain.clear()

    def _find(
        self, shape: EquivalenceClass, pool: PoolName, withheld: ReservedCapacity
    ) -> Assignment | None:
        floor = self._pools.floors.get(pool)
        if floor is None:
            return None
        adrift, most = self._adrift.get(pool, {}), self.beyond.most(pool)
        used, rooms = self.used.get(pool, {}), withheld.rooms
        if TO_COME in rooms and not self.beyond.spares(shape, pool, used, rooms):
            return None  # a new node belongs to the owner of the reservation
        if any(adrift.values()):
            # Released pods without a node will take any capacity as soon as it is free.
            free = self._left(pool) if most else self.free(pool)
            if any(v > free.get(r, 0) for r, v in shape.total.items() if not most or r in most):
                return None
        pins = self.pins(shape, pool)
        if self.company.restricts([each for part in shape.spacings for each in part]):
            return self._apart(floor, shape, pool, pins, withheld)
        plan = floor.find(shape.parts, rooms, pins, shape.manner)
        wary = self._pools.growth.is_wary(pool)
        if plan is None and most and not (wary and self.awaiting(pool)):
            return self.beyond.find(shape, pool, used, adrift, rooms, pins)
        return plan

    def _left(self, pool: PoolName) -> dict[Resource, int]:
        """Return the free capacity of a pool at its maximum size."""
        used = self.used.get(pool, {})
        return {r: v - used.get(r, 0) for r, v in self._pools.extent(pool).items()}

    def _apart(
        self,
        floor: PoolNodes,
        shape: EquivalenceClass,
        pool: PoolName,
        pins: Pins,
        withheld: ReservedCapacity,
    ) -> Assignment | None:
        """Return a plan for pods with distance rules, in one domain if they are confined."""
        domains = self.grounds(shape, pool)
        for among in (None,) if domains is None else domains:
            allowed = pins
            if among is not None:
                allowed = tuple(within(p, among) for p in pins or (None,) * len(shape.parts))
            trial = TentativePeers(self.company, pool)
            plan = plan_apart(floor, shape, allowed, withheld.rooms, trial)
            if plan is not None:
                return plan
        return None


def _settled(allocation: Allocation) -> bool:
    """Return whether a pod may be on one node only."""
    return allocation.only is not None and len(allocation.only) == 1


def _closed_to(tenant: TenantName) -> PodDistanceRules:
    return PodDistanceRules(PodDistanceRule.REFUSED, "", f"nodes closed to {tenant}")
