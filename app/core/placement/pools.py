"""Pools, the nodes that belong to them, their capacity, and the eligible pools of a pod.

`allocations` decides whether a workload fits now.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from app.core.model import (
    DEFAULT_POOL,
    Amounts,
    Millis,
    Node,
    NodeName,
    NodeSet,
    Pod,
    Pool,
    PoolName,
    Resource,
    Tenant,
    Uid,
    UnmanagedPod,
)
from app.core.placement.autoscaling_backoff import AutoscalingBackoff, capacity_at_max_size
from app.core.placement.eligible_pools import EligiblePools, PoolHardware, overcommitted_capacity
from app.core.placement.fragmentation import PodMix, Sample
from app.core.placement.node_filter import NodeFilter
from app.core.placement.pool_nodes import PoolNodes
from app.core.podspec.constraints import NodeConstraints, contains_labels
from app.core.pricing.pool_prices import PoolPrices
from app.core.pricing.share_units import Scale
from app.core.quantities import ManagedResources, is_device

_EVERY_NODE = {DEFAULT_POOL: Pool(DEFAULT_POOL)}


class Pools:
    """The observed pools, the nodes of each, and their capacity.

    `nodes_by_pool`: the `PoolNodes` of each pool, which count free capacity. `version` changes
    whenever every pod must be accounted again. `capacity_version` changes with any capacity, and
    `reach.version` with the nodes that pods may use.
    """

    def __init__(self, managed: ManagedResources, sample: Sample | None = None) -> None:
        self.version = 0
        self.capacity_version = 0
        self.is_current = False
        self.nodes_by_pool: dict[PoolName, PoolNodes] = {}
        self.node_filter = NodeFilter()
        self._managed = managed
        self.pod_mix = PodMix(sample)
        self._prices = PoolPrices()
        self._pool_resources: dict[PoolName, Pool] = {}
        self._nodes: dict[NodeName, Node] = {}
        self._unmanaged: dict[Uid, UnmanagedPod] = {}
        self._unmanaged_by_node: dict[NodeName, dict[Uid, Amounts]] = {}
        self._bound_usage: dict[NodeName, dict[Resource, int]] = {}
        self._pool_by_node: dict[NodeName, PoolName] = {}
        self.avoided_nodes: Mapping[NodeName, Millis] = {}
        """Nodes that get no releases, even if they are ready, and until when."""
        self._observed: dict[NodeName, Node] = {}
        """The observed state of the nodes in `avoided_nodes`."""
        self._moved_nodes: set[NodeName] = set()
        self._overfull_nodes: set[NodeName] = set()
        self._available_by_node: dict[NodeName, Amounts] = {}
        self._capacity: dict[PoolName, dict[Resource, int]] = {DEFAULT_POOL: {}}
        self._overlapping: frozenset[PoolName] = frozenset()
        self._pools_selecting: dict[NodeName, tuple[PoolName, ...]] = {}
        self.autoscaling_backoff = AutoscalingBackoff()
        self.hardware = PoolHardware(
            managed, lambda name: self.pools[name], self.node_filter.members
        )
        self._eligible_pools = EligiblePools(self.node_filter, self.hardware)

    @property
    def pools(self) -> Mapping[PoolName, Pool]:
        """The pools in force: the Pool resources, or one pool of all nodes if there is no Pool."""
        return self._pool_resources or _EVERY_NODE

    def has_pool_resource(self, name: PoolName) -> bool:
        """Return whether a Pool resource of this name exists."""
        return name in self._pool_resources

    @property
    def overlapping(self) -> frozenset[PoolName]:
        """Pools that select a node of a pool before them by name. No pod is released into them."""
        return self._overlapping

    def contested_nodes(self, pool: PoolName) -> dict[NodeName, PoolName]:
        """Return the nodes that a pool selects but another pool owns, with the owner."""
        if pool not in self._overlapping:
            return {}
        return {
            name: claims[0] for name, claims in self._pools_selecting.items() if pool in claims[1:]
        }

    def nodes_without_pool(self) -> list[Node]:
        """Return the nodes that belong to no pool, by name."""
        return [
            self._nodes[name] for name in sorted(self._nodes.keys() - self._pool_by_node.keys())
        ]

    def put_pool(self, pool: Pool) -> None:
        """Add or replace a pool."""
        if self._pool_resources.get(pool.name) != pool:
            self._pool_resources[pool.name] = pool
            self.is_current = False

    def drop_pool(self, name: PoolName) -> None:
        """Remove a pool. An unknown name is ignored."""
        if self._pool_resources.pop(name, None) is not None:
            self.is_current = False

    def put_node(self, node: Node) -> None:
        """Add or replace a node."""
        if node.name in self.avoided_nodes:
            self._observed[node.name] = node
            node = replace(node, ready=False)
        known = self._nodes.get(node.name)
        if known == node:
            if known.readiness_taints != node.readiness_taints:
                self._nodes[node.name] = node
                self.node_filter.update_readiness_taints(node)
            return
        self._nodes[node.name] = node
        if known is None:
            self.autoscaling_backoff.record_node_added(node.name)
        if known is None or known.labels != node.labels:
            self.node_filter.labels_version += (
                1  # also for a node in no pool: existing pods there may count
            )
            self._update_pool_of_node(node.name)
        else:
            self.hardware.drop_cache()
            self._update_node_capacity(node.name)
        if known is not None and (known.labels, known.taints) != (node.labels, node.taints):
            self._moved_nodes.add(node.name)  # pods that may only use this node are evaluated again
            self._overfull_nodes.add(node.name)
        self._find_changed_constraints()

    def set_avoided_nodes(self, until: Mapping[NodeName, Millis]) -> None:
        """Treat exactly these nodes as not ready. This lasts until the next call."""
        changed, self.avoided_nodes = sorted(until.keys() ^ self.avoided_nodes.keys()), dict(until)
        for name in changed:
            node = self._observed.pop(name, None) or self._nodes.get(name)
            if node is not None:
                self.put_node(node)

    def devices_of(self, name: NodeName) -> Amounts:
        """Return the devices of a node, including those in use."""
        node = self._nodes.get(name)
        return {} if node is None else node_devices(node)

    def drop_node(self, name: NodeName) -> None:
        """Remove a node. An unknown name is ignored."""
        self._observed.pop(name, None)
        if self._nodes.pop(name, None) is not None:
            self.autoscaling_backoff.record_node_gone(name)
            self.node_filter.labels_version += 1
            self._update_pool_of_node(name)
            self._find_changed_constraints()

    def put_unmanaged(self, unmanaged_pod: UnmanagedPod) -> None:
        """Add or replace an unmanaged pod that uses capacity of a node. Others are ignored."""
        if unmanaged_pod.node is None or self._unmanaged.get(unmanaged_pod.uid) == unmanaged_pod:
            return
        self.drop_unmanaged(unmanaged_pod.uid)
        self._unmanaged[unmanaged_pod.uid] = unmanaged_pod
        self._unmanaged_by_node.setdefault(unmanaged_pod.node, {})[unmanaged_pod.uid] = (
            unmanaged_pod.demand
        )
        self._update_node_capacity(unmanaged_pod.node)

    def drop_unmanaged(self, uid: Uid) -> None:
        """Remove an unmanaged pod. An unknown uid is ignored."""
        known = self._unmanaged.pop(uid, None)
        if known is not None and known.node is not None:
            pods = self._unmanaged_by_node[known.node]
            del pods[uid]
            if not pods:
                del self._unmanaged_by_node[known.node]
            self._update_node_capacity(known.node)

    def nodes_and_unmanaged_pods(self) -> tuple[tuple[Node, ...], tuple[UnmanagedPod, ...]]:
        """Return every node and every unmanaged pod that uses node capacity."""
        return tuple(self._nodes.values()), tuple(self._unmanaged.values())

    def capacity(self, pool: PoolName) -> Amounts:
        """Return the capacity of a pool: its ready nodes, and running pods on its other nodes."""
        return self._capacity.get(pool, {})

    def max_capacity(self, pool: PoolName) -> Amounts:
        """Return the capacity of a pool at its maximum size, if it grows."""
        return capacity_at_max_size(self.capacity(pool), self.pools[pool].max_capacity)

    def is_managed(self, resource: Resource) -> bool:
        """Return whether pods that request this resource are held."""
        return resource in self._managed

    def count_nodes(self, pool: PoolName) -> int:
        """Return how many nodes belong to a pool, ready or not."""
        return sum(home == pool for home in self._pool_by_node.values())

    def trim(self, pods: int) -> None:
        """Empty the caches that have far more entries than there are pods."""
        for floor in self.nodes_by_pool.values():
            floor.trim_caches(pods)

    def ready_nodes(self, pool: PoolName, only: NodeSet = None) -> list[NodeName]:
        """Return the ready nodes of a pool, restricted to `only`, by name."""
        names = self._pool_by_node if only is None else only
        return sorted(
            n for n in names if self._pool_by_node.get(n) == pool and self._nodes[n].ready
        )

    def drain_moved_nodes(self) -> list[NodeName]:
        """Return the nodes with a changed pool, labels or taints since the last call."""
        moved, self._moved_nodes = sorted(self._moved_nodes), set()
        return moved

    def drain_overfull_nodes(self) -> list[NodeName]:
        """Return the nodes that may not fit or accept all assumed pods, since the last call."""
        squeezed, self._overfull_nodes = sorted(self._overfull_nodes), set()
        return squeezed

    def members(self, pool: PoolName) -> list[Node]:
        """Return the nodes of a pool, by name."""
        return [
            self._nodes[name]
            for name in sorted(self._pool_by_node)
            if self._pool_by_node[name] == pool
        ]

    def available(self, node: NodeName) -> Amounts:
        """Return the capacity of a node that is available to pods released by Fairgate."""
        return self._available_by_node.get(node, {})

    def allocatable(self, name: NodeName) -> Amounts:
        """Return the capacity of a node without unmanaged pods."""
        return overcommitted_capacity(self._nodes[name], self.pools[self._pool_by_node[name]])

    def labels_of(self, node: NodeName) -> Mapping[str, str]:
        """Return the labels of a node. Empty if it is unknown."""
        known = self._nodes.get(node)
        return {} if known is None else known.labels

    def pool_of_node(self, node: NodeName) -> PoolName | None:
        """Return the pool of a node. None if it belongs to no pool."""
        return self._pool_by_node.get(node)

    def scale(self) -> Scale:
        """Return the size of the cluster against which shares are measured."""
        extents = {name: self.max_capacity(name) for name in self._capacity}
        return self._prices.scale(extents, self.pools, self._managed)

    def eligible_pools(self, pod: Pod, tenant: Tenant | None) -> tuple[PoolName, ...]:
        """Return the eligible pools of a pod by name, regardless of free capacity.

        If the pod declares its device memory, pools with the smallest devices come first.
        """
        return self._eligible_pools.pools(pod, tenant)

    def drop_cached_answers(self) -> None:
        """Drop cached answers about pods. Many are for pods that no longer exist."""
        self._eligible_pools.drop_cached_answers()
        self.node_filter.drop_cache_entries()

    @property
    def cached_answers(self) -> int:
        """The number of different terms with cached answers."""
        return len(self._eligible_pools)

    def drain_changed_constraints(self) -> set[NodeConstraints]:
        """Return the terms with different eligible pools since the last call."""
        return self._eligible_pools.drain_changed_constraints()

    def _find_changed_constraints(self) -> None:
        """Find the terms with different eligible pools, unless `rebuild_if_stale` will check all
        pods.
        """
        if self.is_current:
            self._eligible_pools.find_changed_constraints()

    def pool_of(self, pod: Pod, tenant: Tenant | None) -> PoolName | None:
        """Return the pool that is charged for a pod that is not held. None: no pool."""
        if pod.node is not None and pod.node in self._nodes:
            return self._pool_by_node.get(pod.node)
        if pod.pool in self.pools:
            return pod.pool
        serving = self.eligible_pools(pod, tenant)
        return serving[0] if serving else None

    def count_bound_pod(self, node: NodeName, demand: Amounts, sign: int) -> None:
        """Count a released pod that runs on a node. `sign` -1 subtracts."""
        usage = self._bound_usage.setdefault(node, {})
        add_to(usage, demand, sign)
        if not any(usage.values()):
            del self._bound_usage[node]
        if node in self._nodes and not self._nodes[node].ready:
            self._update_node_capacity(node)

    def reset_bound_pods(self) -> None:
        """Reset the counts of `count_bound_pod` before a full recount."""
        nodes, self._bound_usage = list(self._bound_usage), {}
        for node in nodes:
            if node in self._nodes:
                self._update_node_capacity(node)

    def rebuild_if_stale(self) -> None:
        """Assign all nodes to pools again if pools or nodes changed.

        Call it after the last change and before any query.
        """
        if self.is_current:
            self.node_filter.drop_unused_entries()
            return
        self.is_current = True
        self.version += 1
        self._moved_nodes.clear()
        self._overfull_nodes |= self._pool_by_node.keys() | self._nodes.keys()
        self.node_filter.reset_pools(self.pools)
        self.hardware.drop_cache()
        self._pool_by_node.clear()
        self._available_by_node.clear()
        self._capacity = {name: {} for name in self.pools}
        self._prices.clear()
        self.pod_mix.supply.clear()
        self.nodes_by_pool = {
            n: PoolNodes(p.placement, self.pod_mix, n, p.topology) for n, p in self.pools.items()
        }
        self._pools_selecting.clear()
        for name in self._nodes:
            self._pools_selecting[name] = claims = self._find_selecting_pools(name)
            if claims:
                self._pool_by_node[name] = claims[0]
                self._update_node_capacity(name)
        self._overlapping = self._overlaps()
        self._eligible_pools.reset_pools(self.pools, self._overlapping)

    def _update_pool_of_node(self, name: NodeName) -> None:
        """Update the pool of one changed node.

        Request a full `rebuild_if_stale` if other nodes change too.
        """
        if not self.is_current:
            return
        self.hardware.drop_cache()
        before, claims = self._pools_selecting.pop(name, ()), self._find_selecting_pools(name)
        moved = before[:1] != claims[:1]
        if moved and before:  # otherwise `PoolNodes` must retain the allocations there
            home = self._pool_by_node.pop(name)
            add_to(self._capacity[home], self._available_by_node.pop(name, {}), -1)
            self.nodes_by_pool[home].drop_node(name)
            self.node_filter.drop_node(name)
            self._prices.drop_node(name)
        if name in self._nodes:
            self._pools_selecting[name] = claims
        if claims:
            self._pool_by_node[name] = claims[0]
            self._update_node_capacity(name)
        self.capacity_version += 1
        if moved:
            self._moved_nodes.add(name)
            self._overfull_nodes.add(name)
        taken = moved and any(self._bound_usage.get(name, {}).values())
        if taken or self._overlaps() != self._overlapping:
            self.is_current = False

    def _find_selecting_pools(self, name: NodeName) -> tuple[PoolName, ...]:
        """Return the pools that select a node, by name. The node belongs to the first."""
        node = self._nodes.get(name)
        if node is None:
            return ()
        pools = sorted(self.pools.items())
        return tuple(n for n, p in pools if contains_labels(node.labels, p.selector.items()))

    def _overlaps(self) -> frozenset[PoolName]:
        return frozenset(pool for claims in self._pools_selecting.values() for pool in claims[1:])

    def _update_node_capacity(self, name: NodeName) -> None:
        """Update the capacity of a pool for one node."""
        home = self._pool_by_node.get(name)
        if not self.is_current or home is None:
            return  # `rebuild_if_stale` counts every node
        node = self._nodes[name]
        self.node_filter.update_node(node, home)
        room = self._compute_available(node, self.pools[home])
        sizes = self._prices.update_node(node, home, room, self.pools[home].gpu_memory)
        sizes = {**sizes, **node.device_sizes}
        self.nodes_by_pool[home].set_node(name, room, sizes, node.ready, node.labels)
        before, total = self._available_by_node.get(name, {}), self._capacity[home]
        if not node.ready or any(v > room.get(r, 0) for r, v in before.items()):
            self._overfull_nodes.add(name)
        if before == room:
            return
        self.capacity_version += 1
        for resource in {**before, **room}:
            change = room.get(resource, 0) - before.get(resource, 0)
            total[resource] = total.get(resource, 0) + change
        self._available_by_node[name] = room

    def _compute_available(self, node: Node, pool: Pool) -> dict[Resource, int]:
        if not node.ready:
            # No further pod fits, and its running pods use no capacity of other nodes.
            return dict(self._bound_usage.get(node.name, {}))
        offer = overcommitted_capacity(node, pool)
        for demand in self._unmanaged_by_node.get(node.name, {}).values():
            for resource, value in demand.items():
                offer[resource] = offer.get(resource, 0) - value
        # Overcommitment by unmanaged pods reduces this node only, not the pool.
        return {resource: max(0, value) for resource, value in offer.items()}


def node_devices(node: Node) -> Amounts:
    """Return the devices among the allocatable resources of a node."""
    return {r: v for r, v in node.allocatable.items() if is_device(r)}


def add_to(total: dict[Resource, int], demand: Amounts, sign: int) -> None:
    """Add a demand to a total. `sign` -1 subtracts."""
    for resource, value in demand.items():
        total[resource] = total.get(resource, 0) + sign * value
