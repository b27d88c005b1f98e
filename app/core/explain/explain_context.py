"""Inputs of an explanation: references to the records of an engine."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from app.core.explain.reasons import Rule, SharedReason
from app.core.fairshare.share_tree import ShareTree
from app.core.fairshare.tenants import TenantDirectory
from app.core.fairshare.tree_node import TenantNode, UserNode
from app.core.fairshare.user_queue import QueueKey
from app.core.lifecycle.pod_record import PodRecord, Workload
from app.core.lifecycle.pod_registry import PodRegistry
from app.core.model import Amounts, Millis, PoolName, TenantName, Uid, Wait
from app.core.placement.allocations import Allocations, ReservedCapacity
from app.core.placement.pools import Pools
from app.core.podspec.equivalence_class import EquivalenceClass
from app.core.scheduling.reservation import Reservations

ReservedForOthers = Callable[[PoolName, QueueKey], tuple[TenantName, ReservedCapacity] | None]
"""Returns a tenant and the capacity reserved in a pool for others than the given position."""


Position = tuple[int, int]
"""Position of a workload in its user's queue, from 1, and the length of the queue."""


@dataclass(frozen=True, slots=True, eq=False)
class SharedRow:
    """The part of a listing that queued single pods of one user and class have in common.

    `text` is the reason after "queued: POSITION of LENGTH".
    """

    request: Amounts
    pools: tuple[PoolName, ...]
    rule: Rule
    text: str


@dataclass(frozen=True, slots=True)
class ExplainContext:
    """References to the records of an engine. They are valid until something changes."""

    registry: PodRegistry
    tenancy: TenantDirectory
    pools: Pools
    placement: Allocations
    reservations: Reservations
    reserved_for_others: ReservedForOthers
    reservation_owners: frozenset[Uid] = frozenset()
    """The workloads with reserved capacity."""
    leader_state_at: Millis | None = None
    """When the leader published its reservations; None if no leader state was received."""
    verdicts: dict[tuple[UserNode, EquivalenceClass, Uid], SharedReason] = field(
        default_factory=dict
    )
    """Cache of computed verdicts."""
    shared_rows: dict[tuple[UserNode, EquivalenceClass, str, bool], SharedRow] = field(
        default_factory=dict
    )
    """Cache of listed pods by user, class, namespace, and whether an object owns the pod."""
    competitor_cache: dict[tuple[TenantNode, EquivalenceClass], bool] = field(default_factory=dict)
    """Cache: whether work below a branch would take capacity that a class awaits."""
    scores: dict[TenantNode, str] = field(default_factory=dict)
    """Cache of the scores of branches, as text."""

    @property
    def tree(self) -> ShareTree:
        """The present share tree."""
        return self.registry.usage.tree


@dataclass(frozen=True, slots=True)
class WaitingWorkload:
    """The queue position of a workload."""

    leaf: UserNode
    queue_key: QueueKey
    equivalence_class: EquivalenceClass


def workload_of(tracked: PodRecord) -> Workload:
    """Return the workload of a held pod: the pod itself, or its gang if that is complete.

    In an elastic gang, only the pods of its minimum wait as one workload.
    """
    gang = tracked.gang
    if gang is None or gang.equivalence_class is None:
        return tracked
    return tracked if gang.is_elastic and tracked.wait_reason is not Wait.TURN else gang


def queue_position_of(workload: Workload) -> WaitingWorkload | None:
    """Return the position of a workload, or None if it is in no queue."""
    leaf, queue_key, shape = workload.leaf, workload.queue_key, workload.equivalence_class
    if leaf is None or queue_key is None or shape is None:
        return None
    return WaitingWorkload(leaf, queue_key, shape)
