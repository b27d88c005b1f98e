"""Value types of a reclaim: victims, and the result of a search."""

from __future__ import annotations

from dataclasses import dataclass

from app.core.effects import ReclaimCause
from app.core.fairshare.tree_node import UserNode
from app.core.lifecycle.pod_record import PodRecord
from app.core.model import Amounts, NodeName, Resource, Uid


@dataclass(frozen=True, slots=True, eq=False)
class Victim:
    """A released pod or gang that is evicted whole. `broken`: part of the gang is already gone."""

    leaf: UserNode
    pods: tuple[PodRecord, ...]
    cause: ReclaimCause
    broken: bool = False

    def frees(self) -> set[Resource]:
        """Return the resources that its eviction frees."""
        return {r for t in self.pods for r, v in t.pod.demand.items() if v > 0}

    def order(self) -> tuple[bool, int, int, int, int, str]:
        """Return the sort key among the victims of one tenant.

        The rest of a broken gang comes first, because it is useless. Then come the lowest priority,
        the lowest QoS class and the latest release.
        """
        first = self.pods[0]
        epoch, sequence = max(t.stamp for t in self.pods)
        quality = min(t.pod.quality for t in self.pods)
        rank = (first.pod.priority, quality, -epoch, -sequence, first.pod.uid)
        return (not self.broken, *rank)


@dataclass(frozen=True, slots=True)
class ReclaimPlan:
    """The victims for a workload in a pool, and the capacity that it will use per node.

    `awaited` are pods that are already terminating there. `compared` are, for each victim, the
    weighted borrowed shares after the reclaim: of its tenant, and of the tenant of the workload.
    Both values are the same for own pods of lower priority.
    """

    victims: tuple[Victim, ...]
    rooms: dict[NodeName, Amounts]
    compared: tuple[tuple[float, float], ...]
    awaited: frozenset[Uid] = frozenset()
