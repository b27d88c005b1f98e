"""Whom a reclaim would evict, and what it would come to. Values only."""

from __future__ import annotations

from dataclasses import dataclass

from app.core.effects import Cause
from app.core.fair.branch import Leaf
from app.core.model import Amounts, NodeName, Resource, Uid
from app.core.pods.tracked import Tracked


@dataclass(frozen=True, slots=True, eq=False)
class Victim:
    """Released work that goes whole: a pod, or the pods of a gang; `broken`: some went already."""

    leaf: Leaf
    pods: tuple[Tracked, ...]
    cause: Cause
    broken: bool = False

    def frees(self) -> set[Resource]:
        """Return the resources that it takes anything of."""
        return {r for t in self.pods for r, v in t.pod.demand.items() if v > 0}

    def order(self) -> tuple[bool, int, int, int, int, str]:
        """Return where it stands among the victims of one tenant.

        What is left of a broken gang comes first: it is of no use. Then the lowest priority, then
        the least quality of service, then the last released.
        """
        first = self.pods[0]
        epoch, sequence = max(t.stamp for t in self.pods)
        quality = min(t.pod.quality for t in self.pods)
        rank = (first.pod.priority, quality, -epoch, -sequence, first.pod.uid)
        return (not self.broken, *rank)


@dataclass(frozen=True, slots=True)
class Clearance:
    """Who is evicted for a workload in a pool, and where it will stand then.

    `awaited` are pods on the way out already, there. `compared` are, for each victim, the weighted
    shares borrowed once all is done: by its tenant, and by the tenant of the workload; for own
    work of lower priority, the same twice.
    """

    victims: tuple[Victim, ...]
    rooms: dict[NodeName, Amounts]
    compared: tuple[tuple[float, float], ...]
    awaited: frozenset[Uid] = frozenset()
