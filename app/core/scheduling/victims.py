"""Value types of a reclaim: victims, and the result of a search."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass

from app.core.effects import BorrowedShares, ReclaimCause
from app.core.fairshare.tree_node import UserNode
from app.core.lifecycle.pod_record import GangKey, PodRecord
from app.core.model import Amounts, NodeName, Resource, TenantName, Uid


@dataclass(frozen=True, slots=True, eq=False)
class Victim:
    """Released pods that are evicted together. `is_broken`: part of their gang is already gone.

    A gang is one victim: all its pods that are preemptible. So are pods that share claims. Each
    further pod of an elastic gang is also a victim of its own (`is_extra_pod`).
    """

    leaf: UserNode
    pods: tuple[PodRecord, ...]
    cause: ReclaimCause
    is_broken: bool = False
    lost_device_ms: int = 0
    """Device-milliseconds that its eviction loses at most."""
    is_extra_pod: bool = False

    @property
    def gang(self) -> GangKey | None:
        """Return the gang that it belongs to; None for a pod without a gang."""
        gang = self.pods[0].gang
        return gang.key if gang is not None else None

    def freed_resources(self) -> set[Resource]:
        """Return the resources that its eviction frees."""
        return {r for t in self.pods for r, v in t.pod.demand.items() if v > 0}

    def is_on_any(self, nodes: Collection[NodeName | None]) -> bool:
        """Return whether one of its pods is on one of these nodes."""
        return any(t.allocation is not None and t.allocation.node in nodes for t in self.pods)

    @property
    def has_notice(self) -> bool:
        """Return whether an earlier leader gave a notice to any of its pods."""
        return any(t.pod.reclaim_terms.notice_ends_at is not None for t in self.pods)

    def eviction_order(self) -> tuple[bool, bool, int, int, bool, int, int, int, str]:
        """Return the sort key among the victims of one tenant.

        The rest of a broken gang comes first, because it is useless. Then come pods that an elastic
        gang can do without, the lowest priority and the lowest QoS class. Among equal ones a pod
        with a notice comes first, then the smallest loss, then the latest release.
        """
        first = self.pods[0]
        epoch, sequence = max(t.release_id for t in self.pods)
        quality = min(t.pod.qos_class for t in self.pods)
        last = (-epoch, -sequence, first.pod.uid)
        equal = (first.pod.priority, quality, not self.has_notice, self.lost_device_ms)
        return (not self.is_broken, not self.is_extra_pod, *equal, *last)


def losing_tenants(victims: Iterable[Victim]) -> frozenset[TenantName]:
    """Return the tenants that lose pods to another user. A user's own priorities cost no tenant."""
    return frozenset(v.leaf.tenant for v in victims if v.cause is not ReclaimCause.PRIORITY)


@dataclass(frozen=True, slots=True)
class ReclaimPlan:
    """The victims for a workload in a pool, and the capacity that it will use per node.

    `terminating` are pods that are already terminating there. `weighted_shares` has the comparison
    of each victim with the workload. Both shares are the same for own pods of lower priority.
    """

    victims: tuple[Victim, ...]
    capacity_by_node: dict[NodeName, Amounts]
    weighted_shares: tuple[BorrowedShares, ...]
    terminating: frozenset[Uid] = frozenset()


@dataclass(frozen=True, slots=True)
class ReclaimCheck:
    """The check of a reclaim after its notice: the victims that are still needed.

    Their causes and `weighted_shares` are those of the present state. `is_permitted`: the rules
    still allow them. `fits`: the workload would start after it.
    """

    needed: tuple[Victim, ...]
    weighted_shares: tuple[BorrowedShares, ...]
    is_permitted: bool
    fits: bool
