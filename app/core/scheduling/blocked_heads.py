"""Blocked heads: heads of queues that are next, or within a guarantee, and do not fit now."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from app.core.fairshare.decision import BlockedHead
from app.core.fairshare.sort_key import GUARANTEED
from app.core.fairshare.tree_node import TenantNode, UserNode, path_to_root
from app.core.lifecycle.pod_registry import PodRegistry
from app.core.model import PoolName, Uid
from app.core.placement.allocations import Allocations
from app.core.podspec.equivalence_class import EquivalenceClass
from app.core.scheduling.reservation import Reservations

MAX_GUARANTEED_CLASSES = 8
"""Number of equivalence classes of a tenant's heads for which borrowed pods may be sought."""


class BlockedHeads:
    """Finds blocked heads. `fits_now` returns whether the head of a user may start now."""

    def __init__(
        self,
        registry: PodRegistry,
        placement: Allocations,
        reservations: Reservations,
        fits_now: Callable[[UserNode], bool],
        on_evaluate: Callable[[Uid | None], None],
    ) -> None:
        self._registry = registry
        self._placement = placement
        self._reservations = reservations
        self._fits_now = fits_now
        self._on_evaluate = on_evaluate

    def find(self) -> list[BlockedHead]:
        """Start the reservation timer of every head that is next but does not fit. Return these.

        The next head of a pool is the first in order that the pool could ever hold. Heads within a
        guarantee, one per tenant and class, are returned too, without a timer. They end with the
        first one of the tenant that fits.
        """
        found: list[BlockedHead] = []
        root = self._registry.usage.tree.root
        unclaimed = {pool for shape in root.waiting_by_class for pool in shape.pools}
        self._collect(root, unclaimed, found)
        return found

    def _collect(
        self, branch: TenantNode, unclaimed: set[PoolName], found: list[BlockedHead]
    ) -> None:
        sought: set[EquivalenceClass] = set()
        fits = False
        for child in self._registry.usage.tree.ordered_children(branch):
            if child.key is None or child.key.is_blocked:
                return
            if not (child.may_use_guarantee or unclaimed):
                continue
            if not isinstance(child, UserNode):
                if child.may_use_guarantee or _may_use(child, unclaimed):
                    self._collect(child, unclaimed, found)
            elif child.head is not None:
                queue_key, shape, _ = child.head
                more = child.may_use_guarantee and not fits and shape not in sought
                more = more and len(sought) < MAX_GUARANTEED_CLASSES
                if not more and unclaimed.isdisjoint(shape.pools):
                    continue
                self._on_evaluate(queue_key.uid)
                holders = [p for p in shape.pools if self._could_ever_fit(child, shape, p)]
                first = not unclaimed.isdisjoint(holders)
                guaranteed = more and self._is_guaranteed(child, shape, holders)
                if not (first or guaranteed):
                    continue
                unclaimed.difference_update(holders)
                if guaranteed:
                    sought.add(shape)
                if self._fits_now(child):
                    fits = fits or guaranteed
                    continue
                found.append(BlockedHead(child, first, guaranteed))
                if first:
                    self._start_timer(queue_key.uid)

    def _start_timer(self, uid: Uid) -> None:
        workload = self._registry.find_workload(uid)
        assert workload is not None
        self._reservations.start_timer(workload, self._registry.usage.now)

    def _could_ever_fit(self, leaf: UserNode, shape: EquivalenceClass, pool: PoolName) -> bool:
        """Return whether a workload may use a pool, and would fit if the pool were empty."""
        could_hold = self._reservations.could_hold
        is_within_limits = self._registry.usage.tree.is_within_limits(leaf, shape, pool)
        return is_within_limits and could_hold(shape, pool, leaf.account)

    def _is_guaranteed(
        self, leaf: UserNode, shape: EquivalenceClass, pools: Sequence[PoolName]
    ) -> bool:
        """Return whether a guarantee of a tenant above covers its usage with this workload.

        `pools` have nodes that could hold it. A pool that grows need not have such nodes yet.
        """
        return leaf.may_use_guarantee and any(
            self.is_guaranteed_in(leaf, shape, pool)
            for pool in shape.pools
            if pool in pools or self._may_grow_for(leaf, shape, pool)
        )

    def is_guaranteed_in(self, leaf: UserNode, shape: EquivalenceClass, pool: PoolName) -> bool:
        """Return whether a guarantee in a pool covers the usage there with this workload."""
        tree = self._registry.usage.tree
        return any(
            branch.guarantees and tree.rank(branch, shape, pool).band == GUARANTEED
            for branch in path_to_root(leaf)
        )

    def _may_grow_for(self, leaf: UserNode, shape: EquivalenceClass, pool: PoolName) -> bool:
        beyond = self._placement.autoscaling_capacity
        is_within_limits = self._registry.usage.tree.is_within_limits(leaf, shape, pool)
        return is_within_limits and beyond.could_hold(shape, pool)


def _may_use(branch: TenantNode, pools: set[PoolName]) -> bool:
    return any(not pools.isdisjoint(shape.pools) for shape in branch.waiting_by_class)
