"""Checks that workloads of a scenario can start, and that those running at the start fit."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from app.core.model import Tenant
from app.core.quantities import format_amount
from app.sim.cluster.initial_capacity import InitialCapacity
from app.sim.cluster.workload import SimulatedWorkload
from app.sim.scenario.scenario_cluster import ScenarioCluster
from app.sim.scenario.yaml_document import YamlMap


class EmptyCluster:
    """The empty cluster, and the cluster as it fills with workloads that run at the start.

    Mistakes are noted in the sheet. Checks pass while pools and nodes are unknown.
    """

    def __init__(self, cluster: ScenarioCluster, tenants: Iterable[Tenant]) -> None:
        members = tuple(tenants)
        self._known = bool(cluster.offers)
        self._empty = InitialCapacity(cluster.nodes, cluster.pools, members)
        self._remaining = InitialCapacity(cluster.nodes, cluster.pools, members)
        given = [node.name in cluster.capacity_nodes for node in cluster.nodes]
        self._place_word = "pool" if all(given) else "node or pool" if any(given) else "node"

    def check_fits(self, record: YamlMap, work: SimulatedWorkload) -> bool:
        """Return whether a workload, or its minimum, fits in the empty cluster; note it if not."""
        if work.is_elastic:
            work = replace(work, pods=work.min_pods, min_pods=0)
        if not (self._known and work.demand) or self._empty.has_capacity(work):
            return True
        one = replace(work, pods=1)
        if self._empty.has_capacity(one):
            record.fields["pods"].add_mistake(
                f"of the {work.pods:,} pods that start together only "
                f"{self._empty.max_pods(work):,} "
                "have room even when all is empty; write fewer, or enlarge the cluster."
            )
        else:
            self._record_excess(record, one)
        return False

    def check_running(self, record: YamlMap, works: Sequence[SimulatedWorkload]) -> None:
        """Check that workloads that run at the start fit together and last beyond the start."""
        for work in works:
            assert work.released is not None
            if work.duration is not None and work.released + work.duration <= 0:
                record.fields["duration"].add_mistake(
                    f"{work.name}, released {-work.released // 1000} s before the start, would "
                    "be over by then; write a longer one."
                )
                return
            if self._known and work.demand and self._remaining.place(work) is None:
                record.value.add_mistake(
                    f"{work.name} is to run before the start, but nothing has room for it; "
                    "make the pool larger or let less run."
                )
                return

    def _record_excess(self, record: YamlMap, one: SimulatedWorkload) -> None:
        """Note the requested resources that exceed the largest node."""
        entries = record.entries("request")
        largest = self._empty.largest_free(one)
        excess = {r: v for r, v in one.demand.items() if v > largest.get(r, 0) and r in entries}
        for resource, asked in excess.items():
            most = format_amount(resource, largest.get(resource, 0))
            entries[resource].add_mistake(
                f"no {self._place_word} has {format_amount(resource, asked)}, even when it is "
                "empty, the "
                f"largest has {most}; ask for less, or write a larger {self._place_word}."
            )
        if not excess:
            record.fields["request"].add_mistake(
                f"no {self._place_word} has all of it together, even when it is empty; ask for "
                f"less, or write a larger {self._place_word}."
            )
