"""Pools and nodes of a scenario file."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from fractions import Fraction

from app.core.errors import InvalidInput
from app.core.model import Amounts, Node, NodeName, PlacementStrategy, Pool, PoolName, Resource
from app.core.placement.pools import Pools
from app.core.quantities import PODS, ManagedResources, add_amounts
from app.core.well_known import LABEL_POOL
from app.sim.cluster.initial_capacity import settle_pools
from app.sim.scenario import value_parsers
from app.sim.scenario.yaml_document import YamlMap, YamlValue

MOST_NODES = 100_000
PLENTY = 1_000_000
"""Pod capacity of a node that does not specify it."""

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
class ScenarioCluster:
    """Nodes and the Pools that select them.

    All nodes form the pool `default` if there are no `pools`. `capacity_nodes` are nodes that
    represent a pool given only by its capacity. `offers` is the capacity of every pool, without
    default values. It is empty after mistakes, and then references to pools and resources are not
    checked.
    """

    nodes: tuple[Node, ...]
    pools: tuple[Pool, ...]
    capacity_nodes: frozenset[NodeName]
    offers: Mapping[PoolName, Amounts]

    @property
    def capacity(self) -> Amounts:
        """Capacity of all pools together."""
        total: dict[Resource, int] = {}
        for offered in self.offers.values():
            total = add_amounts(total, offered)
        return total

    def counted(self, managed: ManagedResources) -> frozenset[Resource]:
        """Return the resources that count for shares, guarantees and limits."""
        priced = {resource for pool in self.pools for resource in pool.weights}
        return frozenset(r for r in self.capacity if r in managed or r in priced)


def read_amounts(entries: Mapping[str, YamlValue]) -> dict[Resource, int]:
    """Return quantities in base units by resource. Invalid entries are noted and left out."""
    found: dict[Resource, int] = {}
    for name, spot in entries.items():
        try:
            value_parsers.resource(name)
        except InvalidInput as error:
            spot.add_mistake(str(error))
        else:
            value = spot.read(value_parsers.quantity(name), None)
            if value is not None:
                found[Resource(name)] = value
    return found


class ClusterReader:
    """Reads `pools` and `nodes`, and notes mistakes in the sheet."""

    def __init__(self, document: YamlMap) -> None:
        self._document = document
        self._nodes: dict[NodeName, Node] = {}
        self._pools: dict[PoolName, tuple[Pool, YamlValue]] = {}
        self._capacity_nodes: set[NodeName] = set()

    def read(self) -> ScenarioCluster:
        """Return the cluster of the document."""
        document, sheet = self._document, self._document.value.document
        before = sheet.mistake_count
        if "pools" not in document and "nodes" not in document:
            document.value.add_mistake("there are neither pools nor nodes; write one of them.")
        for spot in document.items("nodes"):
            self._read_nodes(spot, {})
        for spot in document.items("pools"):
            self._read_pool(spot)
        pools = tuple(pool for pool, _ in self._pools.values())
        room = settle_pools(map(_as_written, self._nodes.values()), pools)
        if sheet.mistake_count == before:
            self._check(room)
        offers = {name: room.capacity(name) for name in room.pools}
        known = offers if sheet.mistake_count == before else {}
        return ScenarioCluster(
            tuple(self._nodes.values()), pools, frozenset(self._capacity_nodes), known
        )

    def _read_pool(self, spot: YamlValue) -> None:
        record = spot.read_map(_POOL_FIELDS, ("name",))
        name = PoolName(record.read("name", value_parsers.name, ""))
        if name in self._pools:
            record.fields["name"].add_mistake(
                f"there is a pool {name} already; give it another name."
            )
            return
        selector = _labels(record, "nodeSelector")
        own = "capacity" in record or "nodes" in record
        if own:
            # Other pools must not select the nodes of this pool.
            selector[LABEL_POOL] = name
        if "capacity" in record and "nodes" in record:
            record.fields["nodes"].add_mistake(
                "the pool has a capacity as well; leave one of them out."
            )
        elif "capacity" in record:
            self._add_capacity_node(record.fields["capacity"], name, selector)
        elif not own and "nodes" not in self._document:
            spot.add_mistake("neither capacity nor nodes are written; write one of them.")
        for member in record.items("nodes"):
            self._read_nodes(member, selector)
        if "maxCapacity" in record:
            record.fields["maxCapacity"].add_mistake(
                "a simulated pool does not grow; write as capacity what it may grow to."
            )
        pool = Pool(
            name,
            selector=selector,
            weights=_factors(record, "weights"),
            overcommit=_factors(record, "overcommit"),
            placement=record.read(
                "placement", value_parsers.choice(PlacementStrategy), PlacementStrategy.PACK
            ),
            topology=tuple(spot.read(value_parsers.label, "") for spot in record.items("topology")),
            paused=record.read("paused", value_parsers.switch, False),
        )
        self._pools[name] = pool, spot

    def _add_capacity_node(
        self, capacity: YamlValue, pool: PoolName, labels: Mapping[str, str]
    ) -> None:
        name = NodeName(pool)
        self._capacity_nodes.add(name)
        self._add_node(_node(name, labels, read_amounts(capacity.entries())), capacity)

    def _read_nodes(self, spot: YamlValue, given: Mapping[str, str]) -> None:
        record = spot.read_map(_NODE_FIELDS, ("name", "capacity"))
        name = record.read("name", value_parsers.name, "")
        labels = _labels(record, "labels")
        for key, value in given.items():
            if labels.setdefault(key, value) != value:
                record.fields["labels"].add_mistake(
                    f"{key} is {labels[key]}, but the pool selects {value}; write the same."
                )
        capacity = read_amounts(record.entries("capacity"))
        if "count" not in record:
            self._add_node(_node(NodeName(name), labels, capacity), spot)
            return
        for index in range(record.read("count", value_parsers.whole(1, MOST_NODES), 0)):
            self._add_node(_node(NodeName(f"{name}-{index}"), labels, capacity), spot)

    def _add_node(self, node: Node, spot: YamlValue) -> None:
        if node.name in self._nodes:
            spot.add_mistake(f"there is a node {node.name} already; give it another name.")
        self._nodes[node.name] = node

    def _check(self, room: Pools) -> None:
        for kind in ("pools", "nodes"):
            if kind in self._document and not self._document.items(kind):
                self._document.fields[kind].add_mistake("the list is empty; write at least one.")
        for pool, spot in self._pools.values():
            if pool.name in room.overlapping:
                spot.add_mistake(
                    "it selects nodes that belong to another pool, so nothing would be released "
                    "into it; write a nodeSelector that selects only its own."
                )
            elif not room.capacity(pool.name) and LABEL_POOL not in pool.selector:
                spot.add_mistake(
                    "no node has the labels it selects; correct nodeSelector or the labels."
                )


def _node(name: NodeName, labels: Mapping[str, str], capacity: Amounts) -> Node:
    return Node(name, labels, {PODS: PLENTY, **capacity}, ready=True)


def _as_written(node: Node) -> Node:
    """Return a node without the default pod capacity."""
    written = {r: v for r, v in node.allocatable.items() if r != PODS or v != PLENTY}
    return replace(node, allocatable=written)


def _labels(record: YamlMap, field: str) -> dict[str, str]:
    return {key: spot.read(str, "") for key, spot in record.entries(field).items()}


def _factors(record: YamlMap, field: str) -> dict[Resource, Fraction]:
    one = Fraction(1)
    return {
        Resource(name): spot.read(value_parsers.positive, one)
        for name, spot in record.entries(field).items()
    }
