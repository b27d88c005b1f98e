"""Whether the workloads of a scenario file could ever start, and those in place have room."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from app.core.model import Tenant
from app.core.resources import render
from app.sim.opening import Opening
from app.sim.scenario_cluster import Cluster
from app.sim.sheet import Record
from app.sim.work import Work


class Room:
    """The cluster when empty, and as it fills with what is in place before the start.

    Mistakes are noted in the sheet; there are none while pools and nodes are not known.
    """

    def __init__(self, cluster: Cluster, tenants: Iterable[Tenant]) -> None:
        members = tuple(tenants)
        self._known = bool(cluster.offers)
        self._empty = Opening(cluster.nodes, cluster.pools, members)
        self._filling = Opening(cluster.nodes, cluster.pools, members)
        given = [node.name in cluster.stand_ins for node in cluster.nodes]
        self._place = "pool" if all(given) else "node or pool" if any(given) else "node"

    def check(self, record: Record, work: Work) -> bool:
        """Tell whether a workload would fit if nothing else ran; note it if it would not."""
        if not (self._known and work.demand) or self._empty.holds(work):
            return True
        one = replace(work, pods=1)
        if self._empty.holds(one):
            record.fields["pods"].wrong(
                f"of the {work.pods:,} pods that start together only {self._empty.most(work):,} "
                "have room even when all is empty; write fewer, or enlarge the cluster."
            )
        else:
            self._refuse(record, one)
        return False

    def check_in_place(self, record: Record, works: Sequence[Work]) -> None:
        """Check that what is in place fits beside the rest and lasts beyond the start."""
        for work in works:
            assert work.released is not None
            if work.duration is not None and work.released + work.duration <= 0:
                record.fields["duration"].wrong(
                    f"{work.name}, released {-work.released // 1000} s before the start, would "
                    "be over by then; write a longer one."
                )
                return
            if self._known and work.demand and self._filling.seat(work) is None:
                record.spot.wrong(
                    f"{work.name} is to run before the start, but nothing has room for it; "
                    "make the pool larger or let less run."
                )
                return

    def _refuse(self, record: Record, one: Work) -> None:
        """Note what of a pod's request is too much for any node."""
        entries = record.entries("request")
        largest = self._empty.largest(one)
        excess = {r: v for r, v in one.demand.items() if v > largest.get(r, 0) and r in entries}
        for resource, asked in excess.items():
            most = render(resource, largest.get(resource, 0))
            entries[resource].wrong(
                f"no {self._place} has {render(resource, asked)}, even when it is empty, the "
                f"largest has {most}; ask for less, or write a larger {self._place}."
            )
        if not excess:
            record.fields["request"].wrong(
                f"no {self._place} has all of it together, even when it is empty; ask for less, "
                f"or write a larger {self._place}."
            )
