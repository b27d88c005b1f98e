"""Findings about the labels of nodes that advertise devices. Only for `fairgate nodes`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum

from app.commands.nodes.gpu_products import Product, guess, is_value, label_of
from app.core.model import Amounts, PoolName, Resource
from app.core.podspec.constraints import contains_labels
from app.core.podspec.device_fractions import is_device_fraction, prices
from app.core.quantities import ManagedResources

Labels = Mapping[str, str]


class FindingKind(Enum):
    """The kinds of findings."""

    UNLABELLED = "unlabelled"
    """It advertises devices, but no label names the product."""
    CONTRADICTED = "contradicted"
    """The product label contradicts the node's own data."""
    NO_POOL = "no-pool"
    OVERLAP = "overlap"
    ODD = "odd"
    """Its product differs from that of most nodes of its pool."""
    SILENT = "silent"
    """A label names a product, but no device is advertised."""
    UNPRICED = "unpriced"
    """It offers device fractions of unknown size."""


@dataclass(frozen=True, slots=True)
class ObservedNode:
    """A node. `offer`: its allocatable amounts. `plugin`: the product noted by the device plugin.

    `uid`: precondition for a change of the node.
    """

    name: str
    labels: Labels
    offer: Amounts
    plugin: str = ""
    uid: str = ""


@dataclass(frozen=True, slots=True)
class LabelFinding:
    """A finding about one node. `product`: the value that its label should have."""

    node: str
    trouble: FindingKind
    message: str
    label: str = ""
    product: Product | None = None
    pools: tuple[PoolName, ...] = ()


@dataclass(frozen=True, slots=True)
class Inventory:
    """All nodes, the managed resources, and the selectors of the pools by name."""

    nodes: Sequence[ObservedNode]
    managed: ManagedResources
    pools: Mapping[PoolName, Labels] = field(default_factory=dict)

    def devices(self, node: ObservedNode) -> list[Resource]:
        """Return the managed resources that a node advertises, by name."""
        return sorted(r for r, v in node.offer.items() if v > 0 and r in self.managed)

    def with_devices(self) -> list[ObservedNode]:
        """Return the nodes that advertise devices, by name."""
        found = [node for node in self.nodes if self.devices(node)]
        return sorted(found, key=lambda node: node.name)

    def pools_of(self, node: ObservedNode) -> tuple[PoolName, ...]:
        """Return the pools that select a node, by name. The node belongs to the first."""
        return tuple(
            name
            for name, wanted in sorted(self.pools.items())
            if contains_labels(node.labels, wanted.items())
        )

    def findings(self) -> list[LabelFinding]:
        """Return all findings, by node."""
        usual = self._usual_products()
        found = [each for node in self.with_devices() for each in self._node_findings(node, usual)]
        found += [each for node in self.nodes for each in self._silent(node)]
        return sorted(found, key=lambda each: (each.node, each.trouble.value))

    def _node_findings(
        self, node: ObservedNode, usual: Mapping[PoolName, str]
    ) -> Iterable[LabelFinding]:
        resources = self.devices(node)
        label = label_of(resources[0])
        written, told = node.labels.get(label, ""), guess(node.labels, node.plugin)
        if not written:
            yield self._unlabelled(node, resources, label, told)
        elif told and node.plugin and told.name != written and told.name not in written:
            text = f"label {label}={written}, but {told.source} says {told.name}"
            yield LabelFinding(
                node.name, FindingKind.CONTRADICTED, f"{text}; correct one of them.", label, told
            )
        yield from self._pool_findings(node, label, written, usual)
        known = prices(node.labels, node.offer)
        for part in [r for r in resources if is_device_fraction(r) and r not in known]:
            yield LabelFinding(
                node.name,
                FindingKind.UNPRICED,
                f"{part} is offered, but its share of a device is unknown; label the node "
                "as NVIDIA's feature discovery does (gpu.replicas, gpu.memory).",
            )

    def _unlabelled(
        self, node: ObservedNode, resources: Sequence[Resource], label: str, told: Product | None
    ) -> LabelFinding:
        hint = f"it is {told.name} by {told.source}" if told else "its product is not known"
        command = f"fairgate nodes label {node.name}" + ("" if told else " --product NAME")
        return LabelFinding(
            node.name,
            FindingKind.UNLABELLED,
            f"advertises {', '.join(resources)} without label {label}: {hint}; {command}.",
            label,
            told,
        )

    def _pool_findings(
        self, node: ObservedNode, label: str, written: str, usual: Mapping[PoolName, str]
    ) -> Iterable[LabelFinding]:
        pools = self.pools_of(node)
        if self.pools and not pools:
            near = _nearest(node, self.pools)
            text = "belongs to no pool, so nothing is released to it; " + (
                near or "write a Pool that selects it."
            )
            yield LabelFinding(node.name, FindingKind.NO_POOL, text)
        elif len(pools) > 1:
            names = ", ".join(pools)
            text = f"is selected by the pools {names}, and belongs to {pools[0]}; narrow the others"
            yield LabelFinding(node.name, FindingKind.OVERLAP, f"{text}.", pools=pools)
        most = usual.get(pools[0]) if pools else None
        if most and written and written != most:
            text = f"is {written}, but most nodes of pool {pools[0]} are {most}"
            text += "; give it a pool of its own, or correct the label."
            yield LabelFinding(node.name, FindingKind.ODD, text, label, pools=pools)

    def _silent(self, node: ObservedNode) -> Iterable[LabelFinding]:
        if self.devices(node):
            return
        for label in sorted({label_of(name) for name in ("nvidia.com/gpu", "amd.com/gpu")}):
            if product := node.labels.get(label):
                text = f"is labelled {label}={product}, but advertises no device"
                yield LabelFinding(
                    node.name, FindingKind.SILENT, f"{text}; see its device plugin.", label
                )

    def _usual_products(self) -> dict[PoolName, str]:
        """Return the product of more than half of the labelled nodes of each pool."""
        counts: dict[PoolName, Counter[str]] = {}
        for node in self.with_devices():
            product = node.labels.get(label_of(self.devices(node)[0]))
            for pool in self.pools_of(node)[:1] if product else ():
                counts.setdefault(pool, Counter())[str(product)] += 1
        usual: dict[PoolName, str] = {}
        for pool, products in counts.items():
            product, count = min(products.items(), key=lambda each: (-each[1], each[0]))
            if 2 * count > sum(products.values()):
                usual[pool] = product
        return usual


@dataclass(frozen=True, slots=True)
class Labelling:
    """A label to write on one node. `product` has its value and the source of the value."""

    node: ObservedNode
    label: str
    product: Product


def labellings(
    inventory: Inventory, named: Sequence[str], product: str = ""
) -> tuple[list[Labelling], list[str]]:
    """Return the labels to write on `named` nodes (empty: all), and the nodes of unknown product.

    An existing label is never replaced. `product`: for nodes without a product in their own data.
    """
    writes: list[Labelling] = []
    unknown: list[str] = []
    for node in inventory.with_devices():
        label = label_of(inventory.devices(node)[0])
        if (named and node.name not in named) or node.labels.get(label):
            continue
        told = guess(node.labels, node.plugin)
        if told is None and is_value(product):
            told = Product(product, "--product")
        if told is None:
            unknown.append(node.name)
        else:
            writes.append(Labelling(node, label, told))
    return writes, unknown


def _nearest(node: ObservedNode, pools: Mapping[PoolName, Labels]) -> str:
    """Return which pool a node misses by the fewest labels, in words; "" without pools."""
    best: tuple[int, PoolName, list[str]] | None = None
    for name, wanted in sorted(pools.items()):
        wrong = [
            f"{key}={value} (it has {node.labels.get(key, 'none')})"
            for key, value in sorted(wanted.items())
            if node.labels.get(key) != value
        ]
        if best is None or len(wrong) < best[0]:
            best = (len(wrong), name, wrong)
    if best is None:
        return ""
    return f"pool {best[1]}, the nearest, wants {', '.join(best[2])}."
