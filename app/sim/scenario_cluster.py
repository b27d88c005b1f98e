"""Pools and nodes of a scenario file."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from fractions import Fraction

from app.core.errors import InvalidInput
from app.core.model import (
    LABEL_POOL,
    Amounts,
    Node,
    NodeName,
    Pool,
    PoolName,
    Resource,
    Style,
)
from app.core.places.pools import Pools
from app.core.resources import PODS, ManagedResources, add
from app.sim import readers
from app.sim.opening import settled
from app.sim.sheet import Record, Spot

MOST_NODES = 100_000
PLENTY = 1_000_000
"""Pods that a node takes whose capacity does not name them."""

_NODE_FIELDS = ("name", "count", "capacity", "labels")
_POOL_FIELDS = (
    "name",
    "capacity",
    "nodes",
    "nodeSelector",
    "weights",
    "overcommit",
    "placement",
    "paused",
    "topology",
    "gpuMemory",
    "tolerations",
    "maxCapacity",
)


@dataclass(frozen=True, slots=True)
class Cluster:
    """Nodes and the Pools that select them.

    Without `pools` all nodes are the pool `default`. `stand_ins` are nodes that stand for a pool
    of which only the capacity is written; `offers` is the capacity of every pool, as written, and
    empty if there were mistakes: then nothing that refers to it can be judged.
    """

    nodes: tuple[Node, ...]
    pools: tuple[Pool, ...]
    stand_ins: frozenset[NodeName]
    offers: Mapping[PoolName, Amounts]

    @property
    def capacity(self) -> Amounts:
        """What all pools offer together."""
        total: dict[Resource, int] = {}
        for offered in self.offers.values():
            total = add(total, offered)
        return total

    def counted(self, managed: ManagedResources) -> frozenset[Resource]:
        """Return the resources that shares, guarantees and limits are about."""
        priced = {resource for pool in self.pools for resource in pool.weights}
        return frozenset(r for r in self.capacity if r in managed or r in priced)


def read_amounts(entries: Mapping[str, Spot]) -> dict[Resource, int]:
    """Return a map of resources to quantities in base units, without those that are wrong."""
    found: dict[Resource, int] = {}
    for name, spot in entries.items():
        try:
            readers.resource(name)
        except InvalidInput as error:
            spot.wrong(str(error))
        else:
            value = spot.read(readers.quantity(name), None)
            if value is not None:
                found[Resource(name)] = value
    return found


class ClusterReader:
    """Reads `pools` and `nodes`; mistakes are noted in the sheet."""

    def __init__(self, document: Record) -> None:
        self._document = document
        self._nodes: dict[NodeName, Node] = {}
        self._pools: dict[PoolName, tuple[Pool, Spot]] = {}
        self._stand_ins: set[NodeName] = set()

    def read(self) -> Cluster:
        """Return the cluster of the document."""
        document, sheet = self._document, self._document.spot.sheet
        before = sheet.mistakes
        if "pools" not in document and "nodes" not in document:
            document.spot.wrong("there are neither pools nor nodes; write one of them.")
        for spot in document.items("nodes"):
            self._read_nodes(spot, {})
        for spot in document.items("pools"):
            self._read_pool(spot)
        pools = tuple(pool for pool, _ in self._pools.values())
        room = settled(map(_as_written, self._nodes.values()), pools)
        if sheet.mistakes == before:
            self._check(room)
        offers = {name: room.capacity(name) for name in room.pools}
        known = offers if sheet.mistakes == before else {}
        return Cluster(tuple(self._nodes.values()), pools, frozenset(self._stand_ins), known)

    def _read_pool(self, spot: Spot) -> None:
        record = spot.record(_POOL_FIELDS, ("name",))
        name = PoolName(record.read("name", readers.name, ""))
        if name in self._pools:
            record.fields["name"].wrong(f"there is a pool {name} already; give it another name.")
            return
        selector = _labels(record, "nodeSelector")
        own = "capacity" in record or "nodes" in record
        if own:
            # Its nodes are its own, whatever the others select.
            selector[LABEL_POOL] = name
        if "capacity" in record and "nodes" in record:
            record.fields["nodes"].wrong("the pool has a capacity as well; leave one of them out.")
        elif "capacity" in record:
            self._stand_in(record.fields["capacity"], name, selector)
        elif not own and "nodes" not in self._document:
            spot.wrong("neither capacity nor nodes are written; write one of them.")
        for member in record.items("nodes"):
            self._read_nodes(member, selector)
        if "maxCapacity" in record:
            record.fields["maxCapacity"].wrong(
                "a simulated pool does not grow; write as capacity what it may grow to."
            )
        pool = Pool(
            name,
            selector=selector,
            weights=_factors(record, "weights"),
            overcommit=_factors(record, "overcommit"),
            placement=record.read("placement", readers.choice(Style), Style.PACK),
            topology=tuple(spot.read(readers.label, "") for spot in record.items("topology")),
            paused=record.read("paused", readers.switch, False),
        )
        self._pools[name] = pool, spot

    def _stand_in(self, capacity: Spot, pool: PoolName, labels: Mapping[str, str]) -> None:
        name = NodeName(pool)
        self._stand_ins.add(name)
        self._put(_node(name, labels, read_amounts(capacity.entries())), capacity)

    def _read_nodes(self, spot: Spot, given: Mapping[str, str]) -> None:
        record = spot.record(_NODE_FIELDS, ("name", "capacity"))
        name = record.read("name", readers.name, "")
        labels = _labels(record, "labels")
        for key, value in given.items():
            if labels.setdefault(key, value) != value:
                record.fields["labels"].wrong(
                    f"{key} is {labels[key]}, but the pool selects {value}; write the same."
                )
        capacity = read_amounts(record.entries("capacity"))
        if "count" not in record:
            self._put(_node(NodeName(name), labels, capacity), spot)
            return
        for index in range(record.read("count", readers.whole(1, MOST_NODES), 0)):
            self._put(_node(NodeName(f"{name}-{index}"), labels, capacity), spot)

    def _put(self, node: Node, spot: Spot) -> None:
        if node.name in self._nodes:
            spot.wrong(f"there is a node {node.name} already; give it another name.")
        self._nodes[node.name] = node

    def _check(self, room: Pools) -> None:
        for kind in ("pools", "nodes"):
            if kind in self._document and not self._document.items(kind):
                self._document.fields[kind].wrong("the list is empty; write at least one.")
        for pool, spot in self._pools.values():
            if pool.name in room.overlapping:
                spot.wrong(
                    "it selects nodes that belong to another pool, so nothing would be released "
                    "into it; write a nodeSelector that selects only its own."
                )
            elif not room.capacity(pool.name) and LABEL_POOL not in pool.selector:
                spot.wrong("no node has the labels it selects; correct nodeSelector or the labels.")


def _node(name: NodeName, labels: Mapping[str, str], capacity: Amounts) -> Node:
    return Node(name, labels, {PODS: PLENTY, **capacity}, ready=True)


def _as_written(node: Node) -> Node:
    """Return a node without the pods that its capacity does not name."""
    written = {r: v for r, v in node.allocatable.items() if r != PODS or v != PLENTY}
    return replace(node, allocatable=written)


def _labels(record: Record, field: str) -> dict[str, str]:
    return {key: spot.read(str, "") for key, spot in record.entries(field).items()}


def _factors(record: Record, field: str) -> dict[Resource, Fraction]:
    one = Fraction(1)
    return {
        Resource(name): spot.read(readers.positive, one)
        for name, spot in record.entries(field).items()
    }
