"""CPU-only pods on nodes with devices, and the capacity they use. Only for `fairgate nodes`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from app.core.model import Amounts, Resource
from app.core.quantities import CPU, add_amounts

MEMORY = Resource("memory")
NO_POOL = ""


@dataclass(frozen=True, slots=True)
class Other:
    """A pod that requests no device, and its node. `is_node_local`: the node needs it there."""

    name: str
    node: str
    demand: Amounts
    is_node_local: bool = False


@dataclass(slots=True)
class Crowd:
    """The sum of such pods in one pool."""

    pods: int = 0
    nodes: set[str] = field(default_factory=set)
    used: dict[Resource, int] = field(default_factory=dict)
    names: list[str] = field(default_factory=list)


def sum_by_pool(others: Iterable[Other], homes: Mapping[str, str]) -> dict[str, Crowd]:
    """Return, by pool, the pods that could run elsewhere. `homes`: the pool of each node."""
    found: dict[str, Crowd] = {}
    for other in others:
        if other.is_node_local or other.node not in homes:
            continue
        crowd = found.setdefault(homes[other.node], Crowd())
        crowd.pods += 1
        crowd.nodes.add(other.node)
        crowd.names.append(other.name)
        taken = {r: v for r, v in other.demand.items() if r in (CPU, MEMORY)}
        crowd.used = add_amounts(crowd.used, taken)
    for crowd in found.values():
        crowd.names.sort()
    return dict(sorted(found.items()))
