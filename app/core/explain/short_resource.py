"""Resources beside devices, such as cpu, that are short on the nodes with free devices.

The whole pool may have enough, on nodes with devices in use.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from app.core.model import Amounts, PoolName, Resource
from app.core.placement.allocations import Allocations
from app.core.podspec.equivalence_class import EquivalenceClass
from app.core.quantities import format_amount, is_device


@dataclass(frozen=True, slots=True)
class Shortage:
    """One pod's request of a resource, and the largest free amount on a node with free devices."""

    pool: PoolName
    resource: Resource
    devices: tuple[Resource, ...]
    requested: int
    largest_free: int

    def __str__(self) -> str:
        asked, most = (
            format_amount(self.resource, self.requested),
            format_amount(self.resource, self.largest_free),
        )
        return (
            f"{self.resource} is short on the nodes of pool {self.pool} with free "
            f"{', '.join(self.devices)}: {asked} asked by one pod, at most {most} free on one node"
        )


def shortages(
    shape: EquivalenceClass, pool: PoolName, placement: Allocations
) -> tuple[Shortage, ...]:
    """Return short resources if the devices alone would suffice; empty if devices are short.

    A gang that must stay in one domain is not evaluated: its devices may be in several domains.
    """
    if shape.layout.required_topology_label:
        return ()
    free = placement.free(pool)
    if any(is_device(r) and asked > free.get(r, 0) for r, asked in shape.total.items()):
        return ()  # the usual case: do not look at every node for each pod
    pins = placement.allowed_nodes_by_part(shape, pool)
    found: dict[Resource, Shortage] = {}
    for index, (demand, count) in enumerate(shape.request_counts):
        only = pins[index] if index < len(pins) else None
        nodes = [placement.free_on(pool, node) for node in placement.ready_nodes(pool, only)]
        for each in _short_resources(demand, count, nodes, pool):
            found.setdefault(each.resource, each)
    return tuple(found[r] for r in sorted(found))


def _short_resources(
    demand: Amounts, count: int, nodes: Sequence[Amounts], pool: PoolName
) -> list[Shortage]:
    devices = tuple(sorted(r for r, asked in demand.items() if is_device(r) and asked > 0))
    if not devices:
        return []
    offers = [(free, min(_fit_count(free, demand, r) for r in devices)) for free in nodes]
    offers = [(free, times) for free, times in offers if times > 0]
    if sum(times for _, times in offers) < count:
        return []
    found = []
    for r, asked in demand.items():
        if r in devices or asked <= 0:
            continue
        if sum(min(times, _fit_count(free, demand, r)) for free, times in offers) < count:
            most = max(max(0, free.get(r, 0)) for free, _ in offers)
            found.append(Shortage(pool, r, devices, asked, most))
    return found


def _fit_count(free: Amounts, demand: Amounts, r: Resource) -> int:
    return int(max(0, free.get(r, 0)) // demand[r])
