"""Pools and the nodes that belong to them: how much there is, and which pools can serve a pod.

Whether a workload fits now is not asked here.
"""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction

from app.core.fragmentation import Mix
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
from app.core.nodes import Nodes
from app.core.resources import ManagedResources
from app.core.scale import Scale

_Question = tuple[tuple[tuple[str, str], ...], tuple[PoolName, ...], tuple[PoolName, ...]]
"""A pod's node selector, the pools it names, and those its tenant may use."""

_EVERY_NODE = {DEFAULT_POOL: Pool(DEFAULT_POOL)}


class Pools:
    """The pools as last observed, the nodes of each, and their capacity.

    `version` changes whenever the answer of `serving` may have changed, `resized` whenever a
    capacity did.
    """

    def __init__(self, managed: ManagedResources) -> None:
        self.version = 0
        self.resized = 0
        self.settled = False
        self.floors: dict[PoolName, Nodes] = {}
        self._managed = managed
        self.mix = Mix()
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
        self._serving: dict[_Question, tuple[PoolName, ...]] = {}

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
        self._nodes[node.name] = node
        if known is None or known.labels != node.labels:
            self._rehome(node.name)
        elif known != node:
            self._recount(node.name)

    def drop_node(self, name: NodeName) -> None:
        """Forget a node; harmless if it is unknown."""
        if self._nodes.pop(name, None) is not None:
            self._rehome(name)

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

    def site(self) -> tuple[tuple[Node, ...], tuple[Bystander, ...]]:
        """Return every node, and who takes room there without being managed."""
        return tuple(self._nodes.values()), tuple(self._bystanders.values())

    def capacity(self, pool: PoolName) -> Amounts:
        """Return what a pool can carry: its ready nodes, and what still runs on the others."""
        return self._capacity.get(pool, {})

    def nodes_in(self, pool: PoolName) -> int:
        """Return how many nodes belong to a pool, ready or not."""
        return sum(home == pool for home in self._home.values())

    def open_nodes(self, pool: PoolName, only: Pin = None) -> list[NodeName]:
        """Return the ready nodes of a pool, or those of them that a pod may go to, by name."""
        names = self._home if only is None else only
        return sorted(n for n in names if self._home.get(n) == pool and self._nodes[n].ready)

    def take_moved(self) -> list[NodeName]:
        """Return, once, the nodes that came to another pool, or to none, one by one."""
        moved, self._moved = sorted(self._moved), set()
        return moved

    def take_squeezed(self) -> list[NodeName]:
        """Return, once, the nodes that may have less room than is expected to be taken there."""
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
        return _sold(self._nodes[name], self.pools[self._home[name]])

    def home_of(self, node: NodeName) -> PoolName | None:
        """Return the pool that a node belongs to."""
        return self._home.get(node)

    def scale(self) -> Scale:
        """Return the size of the cluster that shares are measured against."""
        worth = {name: pool.weights for name, pool in self.pools.items()}
        named = {resource for pool in self.pools.values() for resource in pool.weights}
        size: dict[Resource, Fraction] = {}
        for name, capacity in self._capacity.items():
            for resource, value in capacity.items():
                if value > 0 and (resource in self._managed or resource in named):
                    unit = worth.get(name, {}).get(resource, Fraction(1))
                    size[resource] = size.get(resource, Fraction(0)) + unit * value
        return Scale({r: v for r, v in size.items() if v > 0}, worth)

    def serving(self, pod: Pod, tenant: Tenant | None) -> tuple[PoolName, ...]:
        """Return the pools that could serve a pod, by name; whether there is room is not asked."""
        allowed = tenant.pools if tenant else ()
        named = pod.pools if pod.tied is None else (pod.tied,)
        question = (tuple(sorted(pod.selector.items())), named, allowed)
        answer = self._serving.get(question)
        if answer is None:
            answer = self._serving[question] = self._answer(*question)
        if pod.only is None:
            return answer
        homes = {self._home.get(name) for name in pod.only}
        return tuple(pool for pool in answer if pool in homes)

    def _answer(
        self,
        selector: tuple[tuple[str, str], ...],
        named: tuple[PoolName, ...],
        allowed: tuple[PoolName, ...],
    ) -> tuple[PoolName, ...]:
        return tuple(
            name
            for name, pool in sorted(self.pools.items())
            if (not named or name in named)
            and (not allowed or name in allowed)
            and name not in self._overlapping
            and not pool.paused
            and self._reaches(pool, dict(selector))
        )

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

    def _reaches(self, pool: Pool, selector: Mapping[str, str]) -> bool:
        wanted = {**selector, **pool.selector}
        if any(wanted[key] != value for key, value in selector.items()):
            return False
        nodes = (self._nodes[name] for name, home in self._home.items() if home == pool.name)
        return any(_matches(node.labels, selector) for node in nodes)

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
        self._serving.clear()
        self._home.clear()
        self._room.clear()
        self._capacity = {name: {} for name in self.pools}
        self.mix.supply.clear()
        self.floors = {n: Nodes(p.placement, self.mix, n) for n, p in self.pools.items()}
        self._claims.clear()
        for name in self._nodes:
            self._claims[name] = claims = self._claims_on(name)
            if claims:
                self._home[name] = claims[0]
                self._recount(name)
        self._overlapping = self._overlaps()

    def _rehome(self, name: NodeName) -> None:
        """A node came, went or changed its labels: settle that node alone, if that is enough."""
        if not self.settled:
            return
        before, claims = self._claims.pop(name, ()), self._claims_on(name)
        moved = before[:1] != claims[:1]
        if moved and before:  # else its floor must not forget what is taken there
            home = self._home.pop(name)
            add_to(self._capacity[home], self._room.pop(name, {}), -1)
            self.floors[home].drop(name)
        if name in self._nodes:
            self._claims[name] = claims
        if claims:
            self._home[name] = claims[0]
            self._recount(name)
        self.resized += 1
        if moved:
            self._moved.add(name)
            self._squeezed.add(name)
        if (
            (moved and any(self._taken.get(name, {}).values()))
            or self._overlaps() != self._overlapping
            or self._answers_changed()
        ):
            self.settled = False

    def _claims_on(self, name: NodeName) -> tuple[PoolName, ...]:
        """Return the pools that select a node, by name; it belongs to the first."""
        node = self._nodes.get(name)
        if node is None:
            return ()
        return tuple(n for n, p in sorted(self.pools.items()) if _matches(node.labels, p.selector))

    def _overlaps(self) -> frozenset[PoolName]:
        return frozenset(pool for claims in self._claims.values() for pool in claims[1:])

    def _answers_changed(self) -> bool:
        return any(self._answer(*asked) != known for asked, known in self._serving.items())

    def _recount(self, name: NodeName) -> None:
        """Correct a pool's capacity by one node."""
        home = self._home.get(name)
        if not self.settled or home is None:
            return  # `settle` counts every node
        node = self._nodes[name]
        room = self._offer(node, self.pools[home])
        self.floors[home].put(name, room, node.fractions, node.ready)
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
        offer = _sold(node, pool)
        for demand in self._guests.get(node.name, {}).values():
            for resource, value in demand.items():
                offer[resource] = offer.get(resource, 0) - value
        return offer


def _sold(node: Node, pool: Pool) -> dict[Resource, int]:
    """Return what a node would offer if nothing ran there that Fairgate does not release."""
    return {
        resource: int(value * pool.overcommit.get(resource, 1))
        for resource, value in node.allocatable.items()
    }


def _matches(labels: Mapping[str, str], selector: Mapping[str, str]) -> bool:
    return all(labels.get(key) == value for key, value in selector.items())


def add_to(total: dict[Resource, int], demand: Amounts, sign: int) -> None:
    """Add a demand to a total, or with sign -1 take it away."""
    for resource, value in demand.items():
        total[resource] = total.get(resource, 0) + sign * value
