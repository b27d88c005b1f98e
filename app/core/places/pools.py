"""Pools and the nodes that belong to them: how much there is, and which pools can serve a pod.

Whether a workload fits now is not asked here.
"""

from __future__ import annotations

from collections.abc import Mapping

from app.core.asks.terms import Terms, has_all
from app.core.model import (
    DEFAULT_POOL,
    Amounts,
    Bystander,
    Node,
    NodeName,
    Pin,
    Pod,
    Pool,
    PoolName,
    Resource,
    Tenant,
    Uid,
)
from app.core.places.fragmentation import Mix, Sample
from app.core.places.growth import Growth, raised
from app.core.places.makes import Makes, sold
from app.core.places.nodes import Nodes
from app.core.places.reach import Reach
from app.core.places.scale import Scale
from app.core.places.serving import Serving
from app.core.places.tariff import Tariff
from app.core.resources import ManagedResources

_EVERY_NODE = {DEFAULT_POOL: Pool(DEFAULT_POOL)}


class Pools:
    """The pools as last observed, the nodes of each, and their capacity.

    `floors` are the nodes of each pool, where room is counted. `version` changes whenever every
    pod is to be placed anew, `resized` whenever a capacity did, and `reach.version` whenever pods
    may go to other nodes than before.
    """

    def __init__(self, managed: ManagedResources, sample: Sample | None = None) -> None:
        self.version = 0
        self.resized = 0
        self.settled = False
        self.floors: dict[PoolName, Nodes] = {}
        self.reach = Reach()
        self._managed = managed
        self.mix = Mix(sample)
        self._tariff = Tariff()
        self._written: dict[PoolName, Pool] = {}
        self._nodes: dict[NodeName, Node] = {}
        self._bystanders: dict[Uid, Bystander] = {}
        self._guests: dict[NodeName, dict[Uid, Amounts]] = {}
        self._taken: dict[NodeName, dict[Resource, int]] = {}
        self._home: dict[NodeName, PoolName] = {}
        self._moved: set[NodeName] = set()
        self._squeezed: set[NodeName] = set()
        self._room: dict[NodeName, Amounts] = {}
        self._capacity: dict[PoolName, dict[Resource, int]] = {DEFAULT_POOL: {}}
        self._overlapping: frozenset[PoolName] = frozenset()
        self._claims: dict[NodeName, tuple[PoolName, ...]] = {}
        self.growth = Growth()
        self.makes = Makes(managed, lambda name: self.pools[name], self.reach.members)
        self._serving = Serving(self.reach, self.makes)

    @property
    def pools(self) -> Mapping[PoolName, Pool]:
        """The pools in force: what was written, or the one pool of every node."""
        return self._written or _EVERY_NODE

    def is_written(self, name: PoolName) -> bool:
        """Tell whether there is a Pool resource of this name."""
        return name in self._written

    @property
    def overlapping(self) -> frozenset[PoolName]:
        """Pools that claim a node of a pool before them by name: nothing is released into them."""
        return self._overlapping

    def contested(self, pool: PoolName) -> dict[NodeName, PoolName]:
        """Return the nodes that a pool selects and that belong to another, and to which."""
        if pool not in self._overlapping:
            return {}
        return {name: claims[0] for name, claims in self._claims.items() if pool in claims[1:]}

    def outside(self) -> list[Node]:
        """Return the nodes that belong to no pool, by name."""
        return [self._nodes[name] for name in sorted(self._nodes.keys() - self._home.keys())]

    def put_pool(self, pool: Pool) -> None:
        """Add a pool or replace what was known of it."""
        if self._written.get(pool.name) != pool:
            self._written[pool.name] = pool
            self.settled = False

    def drop_pool(self, name: PoolName) -> None:
        """Forget a pool; harmless if it is unknown."""
        if self._written.pop(name, None) is not None:
            self.settled = False

    def put_node(self, node: Node) -> None:
        """Add a node or replace what was known of it."""
        known = self._nodes.get(node.name)
        if known == node:
            return
        self._nodes[node.name] = node
        if known is None:
            self.growth.arrive(node.name)
        if known is None or known.labels != node.labels:
            self._rehome(node.name)
        else:
            self.makes.forget()
            self._recount(node.name)
        if known is not None and (known.labels, known.taints) != (node.labels, node.taints):
            self._moved.add(node.name)  # whoever may go there alone is judged anew
            self._squeezed.add(node.name)
        self._reroute()

    def drop_node(self, name: NodeName) -> None:
        """Forget a node; harmless if it is unknown."""
        if self._nodes.pop(name, None) is not None:
            self.growth.depart(name)
            self._rehome(name)
            self._reroute()

    def put_bystander(self, bystander: Bystander) -> None:
        """A pod that is not managed takes room on a node."""
        if self._bystanders.get(bystander.uid) == bystander:
            return
        self.drop_bystander(bystander.uid)
        self._bystanders[bystander.uid] = bystander
        self._guests.setdefault(bystander.node, {})[bystander.uid] = bystander.demand
        self._recount(bystander.node)

    def drop_bystander(self, uid: Uid) -> None:
        """It takes room no more; harmless if it is unknown."""
        known = self._bystanders.pop(uid, None)
        if known is not None:
            del self._guests[known.node][uid]
            self._recount(known.node)

    def contents(self) -> tuple[tuple[Node, ...], tuple[Bystander, ...]]:
        """Return every node, and who takes room there without being managed."""
        return tuple(self._nodes.values()), tuple(self._bystanders.values())

    def capacity(self, pool: PoolName) -> Amounts:
        """Return what a pool can carry: its ready nodes, and what still runs on the others."""
        return self._capacity.get(pool, {})

    def extent(self, pool: PoolName) -> Amounts:
        """Return what a pool may come to carry: its capacity, or more if it grows."""
        return raised(self.capacity(pool), self.pools[pool].max_capacity)

    def manages(self, resource: Resource) -> bool:
        """Tell whether pods are held for a resource."""
        return resource in self._managed

    def nodes_in(self, pool: PoolName) -> int:
        """Return how many nodes belong to a pool, ready or not."""
        return sum(home == pool for home in self._home.values())

    def open_nodes(self, pool: PoolName, only: Pin = None) -> list[NodeName]:
        """Return the ready nodes of a pool, or those of them that a pod may go to, by name."""
        names = self._home if only is None else only
        return sorted(n for n in names if self._home.get(n) == pool and self._nodes[n].ready)

    def take_moved(self) -> list[NodeName]:
        """Return, once, the nodes that came to another pool, or to none, or changed otherwise."""
        moved, self._moved = sorted(self._moved), set()
        return moved

    def take_squeezed(self) -> list[NodeName]:
        """Return, once, the nodes where not all may have room, or be let in, that are expected."""
        squeezed, self._squeezed = sorted(self._squeezed), set()
        return squeezed

    def members(self, pool: PoolName) -> list[Node]:
        """Return the nodes of a pool, by name."""
        return [self._nodes[name] for name in sorted(self._home) if self._home[name] == pool]

    def offer(self, node: NodeName) -> Amounts:
        """Return what a node of a pool offers to all that Fairgate releases."""
        return self._room.get(node, {})

    def whole(self, name: NodeName) -> Amounts:
        """Return what a node of a pool would offer if nothing else ran there."""
        return sold(self._nodes[name], self.pools[self._home[name]])

    def labels_of(self, node: NodeName) -> Mapping[str, str]:
        """Return the labels of a node, none if it is unknown."""
        known = self._nodes.get(node)
        return {} if known is None else known.labels

    def home_of(self, node: NodeName) -> PoolName | None:
        """Return the pool that a node belongs to."""
        return self._home.get(node)

    def scale(self) -> Scale:
        """Return the size of the cluster that shares are measured against."""
        extents = {name: self.extent(name) for name in self._capacity}
        return self._tariff.scale(extents, self.pools, self._managed)

    def serving(self, pod: Pod, tenant: Tenant | None) -> tuple[PoolName, ...]:
        """Return the pools that could serve a pod; whether there is room is not asked.

        By name; if it says what memory it needs, those with the smallest devices first.
        """
        return self._serving.pools(pod, tenant)

    def forget_answers(self) -> None:
        """Forget what was worked out for pods, many of which are gone."""
        self._serving.forget()
        self.reach.forget()

    @property
    def answers(self) -> int:
        """How many different terms of pods are remembered."""
        return len(self._serving)

    def take_rerouted(self) -> set[Terms]:
        """Return, once, the terms that other pools can serve than before."""
        return self._serving.take_rerouted()

    def _reroute(self) -> None:
        """Note whom other pools serve, unless `settle` is to ask that of all pods anyway."""
        if self.settled:
            self._serving.reroute()

    def pool_of(self, pod: Pod, tenant: Tenant | None) -> PoolName | None:
        """Return the pool whose capacity a pod that is not held uses; None: none of ours."""
        if pod.node is not None and pod.node in self._nodes:
            return self._home.get(pod.node)
        if pod.pool in self.pools:
            return pod.pool
        serving = self.serving(pod, tenant)
        return serving[0] if serving else None

    def carry(self, node: NodeName, demand: Amounts, sign: int) -> None:
        """Note that a node carries a released pod, or with sign -1 no more."""
        add_to(self._taken.setdefault(node, {}), demand, sign)
        if node in self._nodes and not self._nodes[node].ready:
            self._recount(node)

    def forget_carried(self) -> None:
        """Start counting anew what the nodes carry."""
        nodes, self._taken = list(self._taken), {}
        for node in nodes:
            if node in self._nodes:
                self._recount(node)

    def settle(self) -> None:
        """Decide anew which node belongs to which pool, if pools or nodes came or changed.

        Nothing may be asked of Pools that was not settled after its last change.
        """
        if self.settled:
            return
        self.settled = True
        self.version += 1
        self._moved.clear()
        self._squeezed |= self._home.keys() | self._nodes.keys()
        self.reach.begin(self.pools)
        self.makes.forget()
        self._home.clear()
        self._room.clear()
        self._capacity = {name: {} for name in self.pools}
        self._tariff.clear()
        self.mix.supply.clear()
        self.floors = {
            n: Nodes(p.placement, self.mix, n, p.topology) for n, p in self.pools.items()
        }
        self._claims.clear()
        for name in self._nodes:
            self._claims[name] = claims = self._claims_on(name)
            if claims:
                self._home[name] = claims[0]
                self._recount(name)
        self._overlapping = self._overlaps()
        self._serving.begin(self.pools, self._overlapping)

    def _rehome(self, name: NodeName) -> None:
        """A node came, went or changed its labels: settle that node alone, if that is enough."""
        if not self.settled:
            return
        self.makes.forget()
        before, claims = self._claims.pop(name, ()), self._claims_on(name)
        moved = before[:1] != claims[:1]
        if moved and before:  # else its floor must not forget what is taken there
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
        """Return the pools that select a node, by name; it belongs to the first."""
        node = self._nodes.get(name)
        if node is None:
            return ()
        pools = sorted(self.pools.items())
        return tuple(n for n, p in pools if has_all(node.labels, p.selector.items()))

    def _overlaps(self) -> frozenset[PoolName]:
        return frozenset(pool for claims in self._claims.values() for pool in claims[1:])

    def _recount(self, name: NodeName) -> None:
        """Correct a pool's capacity by one node."""
        home = self._home.get(name)
        if not self.settled or home is None:
            return  # `settle` counts every node
        node = self._nodes[name]
        self.reach.put(node, home)
        room = self._offer(node, self.pools[home])
        sizes = self._tariff.put(node, home, room, self.pools[home].gpu_memory)
        sizes = {**sizes, **node.fractions}
        self.floors[home].put(name, room, sizes, node.ready, node.labels)
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
            # Nothing more fits there, and what still runs there takes nothing from the others.
            return dict(self._taken.get(node.name, {}))
        offer = sold(node, pool)
        for demand in self._guests.get(node.name, {}).values():
            for resource, value in demand.items():
                offer[resource] = offer.get(resource, 0) - value
        # Who takes more than there is takes it from this node alone, not from the pool.
        return {resource: max(0, value) for resource, value in offer.items()}


def add_to(total: dict[Resource, int], demand: Amounts, sign: int) -> None:
    """Add a demand to a total, or with sign -1 take it away."""
    for resource, value in demand.items():
        total[resource] = total.get(resource, 0) + sign * value
