"""Allocations of all released pods, and cached answers on where a workload fits now.

Every pod that uses a pool has an `Allocation`: on the node that runs it, or on an assumed node
until the scheduler binds it. `pools` decides which nodes belong to a pool. It has
more than 500 lines because the cached answers depend on every change of an allocation.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from weakref import WeakKeyDictionary

from app.core.model import Amounts, Millis, NodeName, NodeSet, PoolName, Resource, TenantName
from app.core.placement.assignment import Assignment
from app.core.placement.autoscaling_backoff import AutoscalingAccount
from app.core.placement.autoscaling_capacity import FUTURE_NODE, AutoscalingCapacity
from app.core.placement.existing_anti_affinity import ExistingAntiAffinity
from app.core.placement.node_filter import filter_allowed
from app.core.placement.node_info import NodeAllocation
from app.core.placement.pod_affinity import (
    PodPeers,
    TentativePeers,
    constraints_of_part,
    find_assignment_with_rules,
)
from app.core.placement.pool_nodes import PoolNodes
from app.core.placement.pools import Pools, add_to
from app.core.placement.topology import domain_nodes
from app.core.podspec.constraints import (
    ANYWHERE,
    DistanceRuleKind,
    NodeConstraints,
    PodDistanceRule,
)
from app.core.podspec.equivalence_class import EquivalenceClass, Pins
from app.core.quantities import fits


@dataclass(frozen=True, slots=True, eq=False)
class ReservedCapacity:
    """Capacity of a pool that is reserved and must stay free on nodes. Compared by identity."""

    amounts_by_node: Mapping[NodeName, Amounts]


ENDING_MS = 60_000
"""Time that a node usually needs to end a pod at its deadline: grace period and reports."""

NO_RESERVATION = ReservedCapacity({})


@dataclass(slots=True, eq=False)
class Allocation:
    """The allocation of one released pod: a pool, and a node if one is known.

    `node_names`, `node_constraints` and `distance_rules`: the nodes it may be on. `declared_end`:
    its declared end, if any.
    `terminating`: the pod is terminating.
    """

    pool: PoolName
    demand: Amounts
    node: NodeName | None
    bound: bool
    declared_end: Millis | None
    node_names: NodeSet = None
    node_constraints: NodeConstraints = ANYWHERE
    distance_rules: tuple[PodDistanceRule, ...] = ()
    terminating: bool = False
    node_allocation: NodeAllocation | None = None

    def is_past_declared_end(self, now: Millis) -> bool:
        """Return whether the pod runs longer than declared, and than it takes to end it then."""
        return self.declared_end is not None and self.declared_end + ENDING_MS < now


_Plans = dict[tuple[PoolName, ReservedCapacity], tuple[int, Assignment | None]]
"""Cached plans of one class, each with the stamp of its distance rules."""


class Allocations:
    """The allocations of all released pods, and the free capacity that remains."""

    def __init__(self, pools: Pools) -> None:
        self.used: dict[PoolName, dict[Resource, int]] = {}
        self.allocations_by_node: dict[NodeName, dict[Allocation, None]] = {}
        self.pod_peers = PodPeers(pools.node_filter, pools.labels_of)
        self.existing_anti_affinity = ExistingAntiAffinity(self.pod_peers)
        self._closed: frozenset[tuple[TenantName, NodeName]] = frozenset()
        self.autoscaling_capacity = AutoscalingCapacity(pools)
        self._pools = pools
        self._unassigned: dict[PoolName, dict[Resource, int]] = {}
        self._plans: WeakKeyDictionary[EquivalenceClass, _Plans] = WeakKeyDictionary()
        self._unfit_pools: WeakKeyDictionary[
            EquivalenceClass, set[tuple[PoolName, ReservedCapacity]]
        ] = WeakKeyDictionary()
        """Pools in which a class without distance rules does not fit. Valid until capacity is
        freed, so a release causes no new search for the waiting workloads."""
        self._pins: WeakKeyDictionary[EquivalenceClass, dict[PoolName, Pins]] = WeakKeyDictionary()
        self._domains: WeakKeyDictionary[
            EquivalenceClass, dict[PoolName, tuple[int, list[Collection[NodeName]]]]
        ] = WeakKeyDictionary()
        """The domains of `_large_domains`, each list with the version of the node labels."""
        self._plans_version = self._pins_version = (0, 0)
        self._unassigned_allocations: dict[PoolName, dict[Allocation, None]] = {}
        self._assigned_versions: dict[PoolName, tuple[int, int]] = {}

    def allocate(
        self,
        pool: PoolName,
        demand: Amounts,
        *,
        node: NodeName | None,
        bound: bool,
        declared_end: Millis | None = None,
        node_names: NodeSet = None,
        node_constraints: NodeConstraints = ANYWHERE,
        distance_rules: tuple[PodDistanceRule, ...] = (),
        terminating: bool = False,
    ) -> Allocation:
        """Allocate capacity for a pod on its node. `bound`: the scheduler has bound the pod.

        If `node` is None, the best node is assumed. If no node has free capacity, only the pool is
        charged. A pod with one name in `node_names` is still assumed there, and waits for
        capacity.
        """
        allocation = Allocation(
            pool,
            demand,
            node,
            bound,
            declared_end,
            node_names,
            node_constraints,
            distance_rules,
            terminating,
        )
        if node is None:
            allocation.node = node = self._find_assumed_node(allocation)
        self.add_allocation(allocation)
        if bound and node is not None:
            self._move_excess_pods(pool, node)
        return allocation

    def set_closed_nodes(self, closed: frozenset[tuple[TenantName, NodeName]]) -> None:
        """Set the closed nodes, each with the tenant to which it is closed."""
        for tenant, node in sorted(closed ^ self._closed):
            sign = 1 if (tenant, node) in closed else -1
            self.pod_peers.count_bound((_closed_node_rule(tenant).group,), node, sign)
        self._closed = closed

    def closed_node_rules(self, tenant: TenantName) -> tuple[PodDistanceRule, ...]:
        """Return the rule that keeps pods of a tenant off the nodes closed to it, if any."""
        return (_closed_node_rule(tenant),) if self.nodes_closed_to(tenant) else ()

    def nodes_closed_to(self, tenant: TenantName) -> list[NodeName]:
        """Return the nodes that are closed to one tenant, by name."""
        return sorted(node for whose, node in self._closed if whose == tenant)

    def has_lost_node(self, allocation: Allocation, node: NodeName) -> bool:
        """Return whether a node is gone, not ready, in another pool, or excludes a pod by a taint.

        Labels are not checked: the owner of the pod may have narrowed its affinity since then.
        """
        known = self._pools.node_filter.node(node)
        if known is None or not known.ready or self._pools.pool_of_node(node) != allocation.pool:
            return True
        return not self._pools.node_filter.tolerates_taints(allocation.node_constraints, node)

    def has_node(self, node: NodeName) -> bool:
        """Return whether a node of this name exists, ready or not."""
        return self._pools.node_filter.node(node) is not None

    def reassign_assumed_pods(self, node: NodeName) -> None:
        """Move assumed pods off a node that is gone, has less capacity, or excludes more pods."""
        home = self._pools.pool_of_node(node)
        for allocation in list(self.allocations_by_node.get(node, ())):
            if allocation.bound or _has_fixed_node(allocation):
                continue
            if allocation.pool != home or not self._pools.node_filter.is_node_allowed(
                allocation.node_constraints, node
            ):
                self._reassign(allocation)
        if home is not None:
            self._move_excess_pods(home, node)

    def _move_excess_pods(self, pool: PoolName, node: NodeName) -> None:
        """Move assumed pods off a node without capacity for them, the last added first."""
        floor = self._pools.nodes_by_pool.get(pool)
        while floor is not None:
            short = [r for r, left in floor.free(node).items() if left < 0]
            if not short:
                return
            # A pod that requests no overcommitted resource would be assumed there again.
            expected = [
                s
                for s in self.allocations_by_node.get(node, ())
                if not s.bound and s.pool == pool and not _has_fixed_node(s)
                if any(s.demand.get(r, 0) > 0 for r in short)
            ]
            if not expected:
                return
            self._reassign(expected[-1])

    def _reassign(self, allocation: Allocation) -> None:
        self.remove_allocation(allocation)
        allocation.node = self._find_assumed_node(allocation)
        self.add_allocation(allocation)

    def _find_assumed_node(self, allocation: Allocation) -> NodeName | None:
        """Return the node to assume for a released pod. None: unknown."""
        floor = self._pools.nodes_by_pool.get(allocation.pool)
        if floor is None:
            return None
        pin = self._pools.node_filter.allowed_nodes(
            allocation.node_constraints, allocation.node_names, allocation.pool
        )
        if allocation.distance_rules:
            pin = self.pod_peers.allowed_nodes(
                allocation.distance_rules, allocation.node_constraints, allocation.pool, pin
            )
        plan = floor.find_assignment(((allocation.demand, 1),), pins=() if pin is None else (pin,))
        if plan is not None:
            return plan.nodes[0]
        only = allocation.node_names
        return only[0] if only is not None and len(only) == 1 and floor.free(only[0]) else None

    def add_allocation(self, allocation: Allocation) -> None:
        """Add an allocation, for the first time or after `remove_allocation`."""
        add_to(self.used.setdefault(allocation.pool, {}), allocation.demand, 1)
        self._plans.clear()
        if allocation.node is None:
            add_to(self._unassigned.setdefault(allocation.pool, {}), allocation.demand, 1)
            if not allocation.terminating:
                self._unassigned_allocations.setdefault(allocation.pool, {})[allocation] = None
            return
        self.allocations_by_node.setdefault(allocation.node, {})[allocation] = None
        if allocation.distance_rules:
            self.pod_peers.count_released_pod(
                allocation.distance_rules, allocation.node, 1, bound=allocation.bound
            )
        floor = self._pools.nodes_by_pool.get(allocation.pool)
        if floor is not None:
            allocation.node_allocation = floor.allocate(allocation.node, allocation.demand)
        if allocation.bound:
            self._pools.count_bound_pod(allocation.node, allocation.demand, 1)

    def remove_allocation(self, allocation: Allocation) -> None:
        """Remove an allocation."""
        add_to(self.used[allocation.pool], allocation.demand, -1)
        self._clear_plans()
        if allocation.node is None:
            add_to(self._unassigned[allocation.pool], allocation.demand, -1)
            self._unassigned_allocations.get(allocation.pool, {}).pop(allocation, None)
            return
        stays = self.allocations_by_node[allocation.node]
        del stays[allocation]
        if not stays:
            del self.allocations_by_node[allocation.node]
        if allocation.distance_rules:
            self.pod_peers.count_released_pod(
                allocation.distance_rules, allocation.node, -1, bound=allocation.bound
            )
        floor = self._pools.nodes_by_pool.get(allocation.pool)
        if allocation.node_allocation is not None and floor is not None:
            floor.release_allocation(allocation.node_allocation)
        if allocation.bound:
            self._pools.count_bound_pod(allocation.node, allocation.demand, -1)

    def mark_terminating(self, allocation: Allocation) -> None:
        """Mark the pod as terminating. It keeps its allocation, but does not wait for a node."""
        allocation.terminating = True
        if allocation in self._unassigned_allocations.get(allocation.pool, {}):
            del self._unassigned_allocations[allocation.pool][allocation]
            self._clear_plans()

    def clear_allocations(self) -> None:
        """Remove all allocations before a full recount."""
        for stays in self.allocations_by_node.values():
            for allocation in stays:
                floor = self._pools.nodes_by_pool.get(allocation.pool)
                if floor is not None and allocation.node_allocation is not None:
                    floor.release_allocation(allocation.node_allocation)
        self.used.clear()
        self._unassigned.clear()
        self._unassigned_allocations.clear()
        self._assigned_versions.clear()
        self.allocations_by_node.clear()
        self.pod_peers.reset_counts()
        self._clear_plans()
        self._pools.reset_bound_pods()

    @property
    def pools_version(self) -> tuple[int, int]:
        """Version of the pools, the node capacity, the node filter and the autoscaling backoff."""
        pools = self._pools
        return (
            pools.version,
            pools.capacity_version + pools.node_filter.version + pools.autoscaling_backoff.version,
        )

    def version_for(self, shape: EquivalenceClass) -> tuple[int, int]:
        """Return the version for a workload: `pools_version`, pods of its distance groups."""
        version, changes = self.pools_version
        return version, changes + sum(map(self.pod_peers.version_of, shape.distance_rules))

    def fitting_pools(self, shape: EquivalenceClass) -> tuple[PoolName, ...]:
        """Return the pools where a workload fits now, the best first."""
        plans = {pool: plan for pool in shape.pools if (plan := self.find_assignment(shape, pool))}
        return self.rank_pools(shape, plans)

    def rank_pools(
        self, shape: EquivalenceClass, plans: Mapping[PoolName, Assignment]
    ) -> tuple[PoolName, ...]:
        """Return the pools with a plan: smallest sufficient devices first, then best packed.

        Device size counts only if the class declares its device memory. A plan that waits for new
        nodes counts only if every plan does.
        """
        size = self._pools.hardware.memory_sort_key
        there = {pool: plan for pool, plan in plans.items() if not plan.has_future_nodes} or plans
        costs = [
            (size(p) if shape.has_gpu_memory else 0, plan.cost, p) for p, plan in there.items()
        ]
        return tuple(pool for *_, pool in sorted(costs))

    def find_assignment(
        self, shape: EquivalenceClass, pool: PoolName, withheld: ReservedCapacity = NO_RESERVATION
    ) -> Assignment | None:
        """Return the node assignment of a workload in a pool, or None. Allocates nothing."""
        seen = self.pools_version
        if seen != self._plans_version:
            self._plans_version = seen
            self._clear_plans()
        key = (pool, withheld)
        if key in self._unfit_pools.get(shape, ()):
            return None
        plans = self._plans.get(shape)
        if plans is None:
            plans = self._plans[shape] = {}
        stamp = sum(map(self.pod_peers.version_of, shape.distance_rules))
        known = plans.get(key)
        if known is None or known[0] != stamp:
            known = plans[key] = stamp, self._search_assignment(shape, pool, withheld)
            if known[1] is None and not shape.distance_rules:
                self._unfit_pools.setdefault(shape, set()).add(key)
        return known[1]

    def find_assignment_for(
        self,
        account: AutoscalingAccount,
        shape: EquivalenceClass,
        pool: PoolName,
        withheld: ReservedCapacity = NO_RESERVATION,
    ) -> Assignment | None:
        """Return `find_assignment` for a user. None if it needs new nodes and the user is barred
        from them.
        """
        plan = self.find_assignment(shape, pool, withheld)
        barred = (
            plan is not None
            and self._pools.autoscaling_backoff.barred_until(pool, account) is not None
        )
        return None if barred and plan is not None and plan.has_future_nodes else plan

    def allowed_nodes_by_part(self, shape: EquivalenceClass, pool: PoolName) -> Pins:
        """Return the allowed nodes of each part of a workload in a pool. Empty: any ready node."""
        seen = self.pools_version
        if seen != self._pins_version:
            self._pins_version = seen
            self._pins.clear()
        pins = self._pins.setdefault(shape, {})
        found = pins.get(pool)
        if found is None:
            only = shape.node_sets or (None,) * len(shape.request_counts)
            terms = shape.node_constraints or (ANYWHERE,) * len(shape.request_counts)
            reach = self._pools.node_filter
            found = tuple(reach.allowed_nodes(t, o, pool) for t, o in zip(terms, only, strict=True))
            found = pins[pool] = found if any(pin is not None for pin in found) else ()
        return found

    def find_blocking_rule(self, shape: EquivalenceClass, pool: PoolName) -> PodDistanceRule | None:
        """Return the distance rule that leaves a workload no node. None if no rule does."""
        for number, spacings in enumerate(shape.distance_rules):
            terms, _ = constraints_of_part(shape, number)
            pin = (self.allowed_nodes_by_part(shape, pool) or (None,) * len(shape.request_counts))[
                number
            ]
            nodes = self._pools.ready_nodes(pool, pin)
            for each in spacings:
                if self.pod_peers.open_nodes((each,), terms, pool).isdisjoint(nodes):
                    return each
        return None

    def find_limiting_rule(self, shape: EquivalenceClass, pool: PoolName) -> PodDistanceRule | None:
        """Return a distance rule that keeps a workload from free capacity that would suffice.

        None if the workload fits, or would not fit without its rules either.
        """
        floor = self._pools.nodes_by_pool.get(pool)
        rules = [each for part in shape.distance_rules for each in part]
        if floor is None or not self.pod_peers.may_close_nodes(rules):
            return None  # the usual case
        if self._is_free_capacity_awaited(shape, pool):
            return None
        pins = self.allowed_nodes_by_part(shape, pool)
        if floor.find_assignment(shape.request_counts, {}, pins, shape.layout) is None:
            return None
        if self.find_assignment(shape, pool) is not None:
            return None
        if self._has_unplaced_peer(rules, pool):
            return next(each for each in rules if each.kind is DistanceRuleKind.EVEN)
        for number, (demand, _) in enumerate(shape.request_counts):
            terms, spacings = constraints_of_part(shape, number)
            for each in spacings:
                open = self.pod_peers.allowed_nodes(
                    (each,), terms, pool, pins[number] if pins else None
                )
                if floor.find_assignment(((demand, 1),), {}, (open,)) is None:
                    return each
        closing = [each for each in rules if each.kind is not DistanceRuleKind.AVOIDS]
        return next((r for r in closing if self.pod_peers.may_close_nodes((r,))), closing[0])

    def may_be_excluded(self, shape: EquivalenceClass) -> bool:
        """Return whether anti-affinity of existing pods may close nodes to a workload."""
        return any(
            each.kind is DistanceRuleKind.AVOIDED and self.pod_peers.may_close_nodes((each,))
            for spacings in shape.distance_rules
            for each in spacings
        )

    def count_excluded_nodes(self, shape: EquivalenceClass, pool: PoolName) -> int:
        """Return how many ready nodes of a pool existing anti-affinity closes to a workload."""
        rules = [
            (number, each)
            for number, spacings in enumerate(shape.distance_rules)
            for each in spacings
            if each.kind is DistanceRuleKind.AVOIDED
        ]
        if not rules:
            return 0  # the usual case: do not list all nodes for each pod
        closed: set[NodeName] = set()
        nodes = frozenset(self.ready_nodes(pool))
        for number, each in rules:
            terms, _ = constraints_of_part(shape, number)
            closed |= nodes - self.pod_peers.open_nodes((each,), terms, pool)
        return len(closed)

    def ready_nodes(self, pool: PoolName, only: NodeSet = None) -> list[NodeName]:
        """Return the ready nodes of a pool, restricted to `only`, by name."""
        return self._pools.ready_nodes(pool, only)

    def domain_nodes(
        self, shape: EquivalenceClass, pool: PoolName
    ) -> list[Collection[NodeName]] | None:
        """Return the nodes of each domain that a confined workload may use. None: not confined."""
        floor = self._pools.nodes_by_pool.get(pool)
        return None if floor is None else domain_nodes(floor.domains, shape.layout)

    def free_on(self, pool: PoolName, node: NodeName) -> Amounts:
        """Return the free capacity of a node of a pool. Empty if either is gone."""
        floor = self._pools.nodes_by_pool.get(pool)
        return {} if floor is None else floor.free(node)

    def free(self, pool: PoolName) -> dict[Resource, int]:
        """Return the free capacity of a pool as a whole."""
        used = self.used.get(pool, {})
        return {r: v - used.get(r, 0) for r, v in self._pools.capacity(pool).items()}

    def count_waiting_for_nodes(self, pool: PoolName) -> int:
        """Return how many released pods wait for a node of a pool that may grow."""
        return (
            len(self._unassigned_allocations.get(pool, ()))
            if self.autoscaling_capacity.declared_max_capacity(pool)
            else 0
        )

    def could_waiting_pod_use(
        self,
        pool: PoolName,
        nodes: Iterable[NodeName | None],
        apart_from: Collection[Allocation],
    ) -> bool:
        """Return whether a pod that waits for a new node fits now on one of these nodes."""
        admits = self._pools.node_filter.is_node_allowed
        free = {node: self.free_on(pool, node) for node in set(nodes) if node is not None}
        return any(
            (allocation.node_names is None or node in allocation.node_names)
            and fits(allocation.demand, room)
            and admits(allocation.node_constraints, node)
            for allocation in self._unassigned_allocations.get(pool, ())
            if allocation not in apart_from
            for node, room in free.items()
        )

    def assign_pods_to_new_nodes(self) -> None:
        """Assign pods that wait for new nodes to nodes with new capacity. Cheap without any."""
        for pool, drifters in self._unassigned_allocations.items():
            floor = self._pools.nodes_by_pool.get(pool)
            if (
                floor is None
                or not drifters
                or not self.autoscaling_capacity.declared_max_capacity(pool)
            ):
                continue
            stamp = (self._pools.version, floor.growth_version)
            if self._assigned_versions.get(pool) == stamp:
                continue
            self._assigned_versions[pool] = stamp
            grown = {name: floor.free(name) for name in floor.drain_grown_nodes()}
            vain: set[tuple[object, ...]] = set()
            for allocation in list(drifters):
                alike = (
                    id(allocation.demand),
                    allocation.node_constraints,
                    allocation.node_names,
                    allocation.distance_rules,
                )
                if alike in vain or not self._may_be_assigned(allocation, grown):
                    continue
                if self._find_assumed_node(allocation) is None:
                    vain.add(alike)
                else:
                    self._reassign(allocation)
                    if allocation.node in grown:
                        grown[allocation.node] = floor.free(allocation.node)

    def _may_be_assigned(self, allocation: Allocation, grown: Mapping[NodeName, Amounts]) -> bool:
        """Return, cheaply, whether a grown node may take a pod that waits for a new one.

        Other nodes could not take it before. If the pod has distance rules, any node may be open
        now.
        """
        if allocation.distance_rules or _has_fixed_node(allocation):
            return True
        admits = self._pools.node_filter.is_node_allowed
        return any(
            all(value <= free.get(r, 0) for r, value in allocation.demand.items() if value > 0)
            and admits(allocation.node_constraints, name)
            for name, free in grown.items()
        )

    def _clear_plans(self) -> None:
        self._plans.clear()
        self._unfit_pools.clear()

    def _search_assignment(
        self, shape: EquivalenceClass, pool: PoolName, withheld: ReservedCapacity
    ) -> Assignment | None:
        floor = self._pools.nodes_by_pool.get(pool)
        if floor is None:
            return None
        most = self.autoscaling_capacity.declared_max_capacity(pool)
        used, rooms = self.used.get(pool, {}), withheld.amounts_by_node
        if FUTURE_NODE in rooms and not self.autoscaling_capacity.fits_at_max_size(
            shape, pool, used, rooms
        ):
            return None  # a new node belongs to the owner of the reservation
        if self._is_free_capacity_awaited(shape, pool):
            return None
        pins = self.allowed_nodes_by_part(shape, pool)
        rules = [each for part in shape.distance_rules for each in part]
        if self.pod_peers.may_close_nodes(rules):
            if not most and self._has_unplaced_peer(rules, pool):
                return None
            return self._find_with_rules(floor, shape, pool, pins, withheld)
        plan = floor.find_assignment(shape.request_counts, rooms, pins, shape.layout)
        wary = self._pools.autoscaling_backoff.is_limited_to_one(pool)
        if plan is None and most and not (wary and self.count_waiting_for_nodes(pool)):
            adrift = self._unassigned.get(pool, {})
            return self.autoscaling_capacity.find_assignment(shape, pool, used, adrift, rooms, pins)
        return plan

    def _is_free_capacity_awaited(self, shape: EquivalenceClass, pool: PoolName) -> bool:
        """Return whether released pods without a node need capacity that a workload would use.

        They take any capacity as soon as it is free, except for pods that wait for lost nodes.
        """
        if not any(self._unassigned.get(pool, {}).values()):
            return False
        most = self.autoscaling_capacity.declared_max_capacity(pool)
        free = self._free_at_max_size(pool) if most else self.free(pool)
        demand = {r: v for r, v in shape.total.items() if not most or r in most}
        if all(v <= free.get(r, 0) for r, v in demand.items()):
            return False
        awaited, lost = dict(self._unassigned[pool]), dict[tuple[object, ...], bool]()
        for allocation in self._unassigned_allocations.get(pool, ()):
            key = allocation.node_constraints, allocation.node_names
            if key not in lost:
                lost[key] = self._waits_for_lost_node(allocation)
            if lost[key]:
                add_to(awaited, allocation.demand, -1)
                add_to(free, allocation.demand, 1)
        return any(awaited.values()) and any(v > free.get(r, 0) for r, v in demand.items())

    def _waits_for_lost_node(self, allocation: Allocation) -> bool:
        """Return whether none of the nodes that a pod may be on is ready."""
        pool = allocation.pool
        pin = self._pools.node_filter.allowed_nodes(
            allocation.node_constraints, allocation.node_names, pool
        )
        return pin is not None and not self._pools.ready_nodes(pool, pin)

    def _has_unplaced_peer(self, rules: list[PodDistanceRule], pool: PoolName) -> bool:
        """Return whether a released pod of the same topology spread has no assumed node.

        The scheduler put pods elsewhere than planned, so any domain may be the next one of it. A
        pod whose nodes are all not ready does not count: it may wait for long.
        """
        even = {each.group for each in rules if each.kind is DistanceRuleKind.EVEN}
        for allocation in self._unassigned_allocations.get(pool, ()) if even else ():
            groups = (e.group for e in allocation.distance_rules if e.kind is DistanceRuleKind.EVEN)
            if not even.isdisjoint(groups) and not self._waits_for_lost_node(allocation):
                return True
        return False

    def _free_at_max_size(self, pool: PoolName) -> dict[Resource, int]:
        """Return the free capacity of a pool at its maximum size."""
        used = self.used.get(pool, {})
        return {r: v - used.get(r, 0) for r, v in self._pools.max_capacity(pool).items()}

    def _find_with_rules(
        self,
        floor: PoolNodes,
        shape: EquivalenceClass,
        pool: PoolName,
        pins: Pins,
        withheld: ReservedCapacity,
    ) -> Assignment | None:
        """Return a plan for pods with distance rules, in one domain if they are confined."""
        domains = self._large_domains(shape, pool)
        for among in (None,) if domains is None else domains:
            allowed = pins
            if among is not None:
                allowed = tuple(
                    filter_allowed(p, among) for p in pins or (None,) * len(shape.request_counts)
                )
            trial = TentativePeers(self.pod_peers, pool)
            plan = find_assignment_with_rules(
                floor, shape, allowed, withheld.amounts_by_node, trial
            )
            if plan is not None:
                return plan
        return None

    def _large_domains(
        self, shape: EquivalenceClass, pool: PoolName
    ) -> list[Collection[NodeName]] | None:
        """Return those of `domain_nodes` that are large enough for pods that exclude each other."""
        if not shape.layout.required_topology_label:
            return None
        seen = self._pools.node_filter.labels_version
        cached = self._domains.setdefault(shape, {})
        known = cached.get(pool)
        if known is None or known[0] != seen:
            counts = [count for _, count in shape.request_counts]
            parts = list(zip(shape.distance_rules, counts, strict=True))
            large = [
                names
                for names in self.domain_nodes(shape, pool) or ()
                if not any(self.pod_peers.has_too_few_domains(*part, names) for part in parts)
            ]
            known = cached[pool] = (seen, large)
        return known[1]


def _has_fixed_node(allocation: Allocation) -> bool:
    """Return whether a pod may be on one node only."""
    return allocation.node_names is not None and len(allocation.node_names) == 1


def _closed_node_rule(tenant: TenantName) -> PodDistanceRule:
    return PodDistanceRule(DistanceRuleKind.REFUSED, "", f"nodes closed to {tenant}")
