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
from app.core.placement.autoscaling_backoff import AutoscalingBackoff, raised
from app.core.placement.eligible_pools import EligiblePools, PoolHardware, sold
from app.core.placement.fragmentation import PodMix, Sample
from app.core.placement.node_filter import NodeFilter
from app.core.placement.pool_nodes import PoolNodes
from app.core.podspec.constraints import NodeConstraints, has_all
from app.core.pricing.pool_prices import PoolPrices
from app.core.pricing.share_units import Scale
from app.core.quantities import ManagedResources, is_device

_EVERY_NODE = {DEFAULT_POOL: Pool(DEFAULT_POOL)}


class Pools:
    """The observed pools, the nodes of each, and their capacity.

    `floors`: the `PoolNodes` of each pool, which count free capacity. `version` changes whenever
    every pod must be accounted again. `resized` changes with any capacity, and `reach.version` with
    the nodes that pods may use.
    """

    def __init__(self, managed: ManagedResources, sample: Sample | None = None) -> None:
        self.version = 0
        self.resized = 0
        self.settled = False
        self.floors: dict[PoolName, PoolNodes] = {}
        self.reach = NodeFilter()
        self._managed = managed
        self.mix = PodMix(sample)
        self._tariff = PoolPrices()
        self._written: dict[PoolName, Pool] = {}
        self._nodes: dict[NodeName, Node] = {}
        self._unmanaged: dict[Uid, UnmanagedPod] = {}
        self._guests: dict[NodeName, dict[Uid, Amounts]] = {}
        self._taken: dict[NodeName, dict[Resource, int]] = {}
        self._home: dict[NodeName, PoolName] = {}
        self.avoided: Mapping[NodeName, Millis] = {}
        """Nodes that get no releases, even if they are ready, and until when."""
        self._observed: dict[NodeName, Node] = {}
        """The observed state of the nodes in `avoided`."""
        self._moved: set[NodeName] = set()
        self._squeezed: set[NodeName] = set()
        self._room: dict[NodeName, Amounts] = {}
        self._capacity: dict[PoolName, dict[Resource, int]] = {DEFAULT_POOL: {}}
        self._overlapping: frozenset[PoolName] = frozenset()
        self._claims: dict[NodeName, tuple[PoolName, ...]] = {}
        self.growth = AutoscalingBackoff()
        self.makes = PoolHardware(managed, lambda name: self.pools[name], self.reach.members)
        self._serving = EligiblePools(self.reach, self.makes)

    @property
    def pools(self) -> Mapping[PoolName, Pool]:
        """The pools in force: the Pool resources, or one pool of all nodes if there is no Pool."""
        return self._written or _EVERY_NODE

    def is_written(self, name: PoolName) -> bool:
        """Return whether a Pool resource of this name exists."""
        return name in self._written

    @property
    def overlapping(self) -> frozenset[PoolName]:
        """Pools that select a node of a pool before them by name. No pod is released into them."""
        return self._overlapping

    def contested(self, pool: PoolName) -> dict[NodeName, PoolName]:
        """Return the nodes that a pool selects but another pool owns, with the owner."""
        if pool not in self._overlapping:
            return {}
        return {name: claims[0] for name, claims in self._claims.items() if pool in claims[1:]}

    def outside(self) -> list[Node]:
        """Return the nodes that belong to no pool, by name."""
        return [self._nodes[name] for name in sorted(self._nodes.keys() - self._home.keys())]

    def put_pool(self, pool: Pool) -> None:
        """Add or replace a pool."""
        if self._written.get(pool.name) != pool:
            self._written[pool.name] = pool
            self.settled = False

    def drop_pool(self, name: PoolName) -> None:
        """Remove a pool. An unknown name is ignored."""
        if self._written.pop(name, None) is not None:
            self.settled = False

    def put_node(self, node: Node) -> None:
        """Add or replace a node."""
        if node.name in self.avoided:
            self._observed[node.name] = node
            node = replace(node, ready=False)
        known = self._nodes.get(node.name)
        if known == node:
            return
        self._nodes[node.name] = node
        if known is None:
            self.growth.arrive(node.name)
        if known is None or known.labels != node.labels:
            self.reach.edition += 1  # also for a node in no pool: existing pods there may count
            self._rehome(node.name)
        else:
            self.makes.drop_cache()
            self._recount(node.name)
        if known is not None and (known.labels, known.taints) != (node.labels, node.taints):
            self._moved.add(node.name)  # pods that may only use this node are evaluated again
            self._squeezed.add(node.name)
        self._reroute()

    def avoid(self, until: Mapping[NodeName, Millis]) -> None:
        """Treat exactly these nodes as not ready. This lasts until the next call."""
        changed, self.avoided = sorted(until.keys() ^ self.avoided.keys()), dict(until)
        for name in changed:
            node = self._observed.pop(name, None) or self._nodes.get(name)
            if node is not None:
                self.put_node(node)

    def devices_of(self, name: NodeName) -> Amounts:
        """Return the devices of a node, including those in use."""
        node = self._nodes.get(name)
        return {} if node is None else devices(node)

    def drop_node(self, name: NodeName) -> None:
        """Remove a node. An unknown name is ignored."""
        self._observed.pop(name, None)
        if self._nodes.pop(name, None) is not None:
            self.growth.depart(name)
            self.reach.edition += 1
            self._rehome(name)
            self._reroute()

    def put_unmanaged(self, unmanaged_pod: UnmanagedPod) -> None:
        """Add or replace an unmanaged pod that uses capacity of a node. Others are ignored."""
        if unmanaged_pod.node is None or self._unmanaged.get(unmanaged_pod.uid) == unmanaged_pod:
            return
        self.drop_unmanaged(unmanaged_pod.uid)
        self._unmanaged[unmanaged_pod.uid] = unmanaged_pod
        self._guests.setdefault(unmanaged_pod.node, {})[unmanaged_pod.uid] = unmanaged_pod.demand
        self._recount(unmanaged_pod.node)

    def drop_unmanaged(self, uid: Uid) -> None:
        """Remove an unmanaged pod. An unknown uid is ignored."""
        known = self._unmanaged.pop(uid, None)
        if known is not None and known.node is not None:
            del self._guests[known.node][uid]
            self._recount(known.node)

    def contents(self) -> tuple[tuple[Node, ...], tuple[UnmanagedPod, ...]]:
        """Return every node and every unmanaged pod that uses node capacity."""
        return tuple(self._nodes.values()), tuple(self._unmanaged.values())

    def capacity(self, pool: PoolName) -> Amounts:
        """Return the capacity of a pool: its ready nodes, and running pods on its other nodes."""
        return self._capacity.get(pool, {})

    def extent(self, pool: PoolName) -> Amounts:
        """Return the capacity of a pool at its maximum size, if it grows."""
        return raised(self.capacity(pool), self.pools[pool].max_capacity)

    def manages(self, resource: Resource) -> bool:
        """Return whether pods that request this resource are held."""
        return resource in self._managed

    def nodes_in(self, pool: PoolName) -> int:
        """Return how many nodes belong to a pool, ready or not."""
        return sum(home == pool for home in self._home.values())

    def trim(self, pods: int) -> None:
        """Empty the caches that have far more entries than there are pods."""
        for floor in self.floors.values():
            floor.trim(pods)

    def open_nodes(self, pool: PoolName, only: NodeSet = None) -> list[NodeName]:
        """Return the ready nodes of a pool, restricted to `only`, by name."""
        names = self._home if only is None else only
        return sorted(n for n in names if self._home.get(n) == pool and self._nodes[n].ready)

    def take_moved(self) -> list[NodeName]:
        """Return the nodes with a changed pool, labels or taints since the last call."""
        moved, self._moved = sorted(self._moved), set()
        return moved

    def take_squeezed(self) -> list[NodeName]:
        """Return the nodes that may not fit or accept all assumed pods, since the last call."""
        squeezed, self._squeezed = sorted(self._squeezed), set()
        return squeezed

    def members(self, pool: PoolName) -> list[Node]:
        """Return the nodes of a pool, by name."""
        return [self._nodes[name] for name in sorted(self._home) if self._home[name] == pool]

    def offer(self, node: NodeName) -> Amounts:
        """Return the capacity of a node that is available to pods released by Fairgate."""
        return self._room.get(node, {})

    def whole(self, name: NodeName) -> Amounts:
        """Return the capacity of a node without unmanaged pods."""
        return sold(self._nodes[name], self.pools[self._home[name]])

    def labels_of(self, node: NodeName) -> Mapping[str, str]:
        """Return the labels of a node. Empty if it is unknown."""
        known = self._nodes.get(node)
        return {} if known is None else known.labels

    def home_of(self, node: NodeName) -> PoolName | None:
        """Return the pool of a node. None if it belongs to no pool."""
        return self._home.get(node)

    def scale(self) -> Scale:
        """Return the size of the cluster against which shares are measured."""
        extents = {name: self.extent(name) for name in self._capacity}
        return self._tariff.scale(extents, self.pools, self._managed)

    def serving(self, pod: Pod, tenant: Tenant | None) -> tuple[PoolName, ...]:
        """Return the eligible pools of a pod by name, regardless of free capacity.

        If the pod declares its device memory, pools with the smallest devices come first.
        """
        return self._serving.pools(pod, tenant)

    def forget_answers(self) -> None:
        """Drop cached answers about pods. Many are for pods that no longer exist."""
        self._serving.drop_cached_answers()
        self.reach.drop_cache_entries()

    @property
    def answers(self) -> int:
        """The number of different terms with cached answers."""
        return len(self._serving)

    def take_rerouted(self) -> set[NodeConstraints]:
        """Return the terms with different eligible pools since the last call."""
        return self._serving.take_rerouted()

    def _reroute(self) -> None:
        """Find the terms with different eligible pools, unless `settle` will check all pods."""
        if self.settled:
            self._serving.reroute()

    def pool_of(self, pod: Pod, tenant: Tenant | None) -> PoolName | None:
        """Return the pool that is charged for a pod that is not held. None: no pool."""
        if pod.node is not None and pod.node in self._nodes:
            return self._home.get(pod.node)
        if pod.pool in self.pools:
            return pod.pool
        serving = self.serving(pod, tenant)
        return serving[0] if serving else None

    def carry(self, node: NodeName, demand: Amounts, sign: int) -> None:
        """Count a released pod that runs on a node. `sign` -1 subtracts."""
        add_to(self._taken.setdefault(node, {}), demand, sign)
        if node in self._nodes and not self._nodes[node].ready:
            self._recount(node)

    def forget_carried(self) -> None:
        """Reset the counts of `carry` before a full recount."""
        nodes, self._taken = list(self._taken), {}
        for node in nodes:
            if node in self._nodes:
                self._recount(node)

    def settle(self) -> None:
        """Assign all nodes to pools again if pools or nodes changed.

        Call it after the last change and before any query.
        """
        if self.settled:
            self.reach.purge()
            return
        self.settled = True
        self.version += 1
        self._moved.clear()
        self._squeezed |= self._home.keys() | self._nodes.keys()
        self.reach.reset_pools(self.pools)
        self.makes.drop_cache()
        self._home.clear()
        self._room.clear()
        self._capacity = {name: {} for name in self.pools}
        self._tariff.clear()
        self.mix.supply.clear()
        self.floors = {
            n: PoolNodes(p.placement, self.mix, n, p.topology) for n, p in self.pools.items()
        }
        self._claims.clear()
        for name in self._nodes:
            self._claims[name] = claims = self._claims_on(name)
            if claims:
                self._home[name] = claims[0]
                self._recount(name)
        self._overlapping = self._overlaps()
        self._serving.reset_pools(self.pools, self._overlapping)

    def _rehome(self, name: NodeName) -> None:
        """Update the pool of one changed node.

        Request a full `settle` if other nodes change too.
        """
        if not self.settled:
            return
        self.makes.drop_cache()
        before, claims = self._claims.pop(name, ()), self._claims_on(name)
        moved = before[:1] != claims[:1]
        if moved and before:  # otherwise `PoolNodes` must retain the allocations there
            home = self._home.pop(name)
            add_to(self._capacity[home], self._room.pop(name, {}), -1)
            self.floors[home].drop(name)
            self.reach.drop(name)
            self._tariff.drop(name)
        if name in self._nodes:
            self._claims[name] = claims
        if claims:
            self._home[name] = claims[0]
            self._recount(name)
        self.resized += 1
        if moved:
            self._moved.add(name)
            self._squeezed.add(name)
        taken = moved and any(self._taken.get(name, {}).values())
        if taken or self._overlaps() != self._overlapping:
            self.settled = False

    def _claims_on(self, name: NodeName) -> tuple[PoolName, ...]:
        """Return the pools that select a node, by name. The node belongs to the first."""
        node = self._nodes.get(name)
        if node is None:
            return ()
        pools = sorted(self.pools.items())
        return tuple(n for n, p in pools if has_all(node.labels, p.selector.items()))

    def _overlaps(self) -> frozenset[PoolName]:
        return frozenset(pool for claims in self._claims.values() for pool in claims[1:])

    def _recount(self, name: NodeName) -> None:
        """Update the capacity of a pool for one node."""
        home = self._home.get(name)
        if not self.settled or home is None:
            return  # `settle` counts every node
        node = self._nodes[name]
        self.reach.update_node(node, home)
        room = self._offer(node, self.pools[home])
        sizes = self._tariff.update_node(node, home, room, self.pools[home].gpu_memory)
        sizes = {**sizes, **node.fractions}
        self.floors[home].set_node(name, room, sizes, node.ready, node.labels)
        before, total = self._room.get(name, {}), self._capacity[home]
        if not node.ready or any(v > room.get(r, 0) for r, v in before.items()):
            self._squeezed.add(name)
        if before == room:
            return
        self.resized += 1
        for resource in {**before, **room}:
            change = room.get(resource, 0) - before.get(resource, 0)
            total[resource] = total.get(resource, 0) + change
        self._room[name] = room

    def _offer(self, node: Node, pool: Pool) -> dict[Resource, int]:
        if not node.ready:
            # No further pod fits, and its running pods use no capacity of other nodes.
            return dict(self._taken.get(node.name, {}))
        offer = sold(node, pool)
        for demand in self._guests.get(node.name, {}).values():
            for resource, value in demand.items():
                offer[resource] = offer.get(resource, 0) - value
        # Overcommitment by unmanaged pods reduces this node only, not the pool.
        return {resource: max(0, value) for resource, value in offer.items()}


def devices(node: Node) -> Amounts:
    """Return the devices among the allocatable resources of a node."""
    return {r: v for r, v in node.allocatable.items() if is_device(r)}


def add_to(total: dict[Resource, int], demand: Amounts, sign: int) -> None:
    """Add a demand to a total. `sign` -1 subtracts."""
    for resource, value in demand.items():
        total[resource] = total.get(resource, 0) + sign * value
