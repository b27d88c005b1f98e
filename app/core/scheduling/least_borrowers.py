"""Overdue reservations for large workloads that are never next, although their user borrows least.

The order adds half of the request to the score, so small workloads may always precede a large one.
`docs/decisions/0079` explains the rule.
"""

from __future__ import annotations

from collections.abc import Iterator

from app.core.fairshare.sort_key import Served
from app.core.fairshare.tree_node import TenantNode, UserNode, path_to_root
from app.core.lifecycle.pod_record import Workload
from app.core.lifecycle.pod_registry import PodRegistry
from app.core.model import Millis, PoolName
from app.core.podspec.equivalence_class import EquivalenceClass
from app.core.scheduling.reservation import (
    OVERDUE_FACTOR,
    Reservation,
    Reservations,
    TimerKey,
    timer_key_of,
)

NO_POOL = PoolName("")
"""Pool of a share to which no workload is added."""

SHORTEST_MS = 1000
"""The interval of searches if `reserveAfter` is shorter."""


class LeastBorrowers:
    """Makes reservations overdue. Call `promote_overdue` at the end of each cycle."""

    def __init__(self, registry: PodRegistry, reservations: Reservations) -> None:
        self._registry = registry
        self._reservations = reservations
        self._searched_at: Millis | None = None
        self._last_found: set[TimerKey] = set()

    def promote_overdue(self) -> None:
        """Make reservations overdue that were active, or were owed, for too long.

        The workloads to which a reservation is owed are searched once per `reserveAfter`, because a
        search visits all users with waiting work. Time without a leader or a store does not count.
        """
        usage, reservations = self._registry.usage, self._reservations
        now, after = usage.now, max(SHORTEST_MS, usage.policy.reserve_after)
        reservations.promote_overdue(now, after, self._is_owed)
        since, self._searched_at = self._searched_at, now
        if since is not None and now - since < after:
            self._searched_at = since
            return
        span = 0 if since is None else min(now - since, 2 * after)
        reservations.drop_timers_of_gone_gangs()
        unclaimed = {pool for shape in usage.tree.root.waiting_by_class for pool in shape.pools}
        found = set[TimerKey]()
        for workload, pools in list(self._find_heads(usage.tree.root, unclaimed)):
            key = timer_key_of(workload)
            found.add(key)
            owed = reservations.add_owed_time(key, span if key in self._last_found else 0)
            assert workload.leaf is not None
            if owed >= OVERDUE_FACTOR * after and self.borrows_least(workload.leaf):
                reservations.reserve_overdue(workload, pools)
        self._last_found = found

    def _is_owed(self, reservation: Reservation) -> bool:
        """Return whether a reservation of this age may keep all others off its nodes."""
        shape, pool = reservation.equivalence_class, reservation.pool
        return self.borrows_least(reservation.leaf) and self._is_open(reservation.leaf, shape, pool)

    def _is_open(self, leaf: UserNode, shape: EquivalenceClass, pool: PoolName) -> bool:
        closed = self._registry.usage.closed_pools
        return not closed.is_user_closed_out(leaf, shape, pool)

    def borrows_least(self, leaf: UserNode) -> bool:
        """Return whether no waiting sibling borrows less than a user, at any level.

        Siblings that a limit or closure blocks do not count: they could not use the capacity.
        """
        tree = self._registry.usage.tree
        for branch in path_to_root(leaf):
            if branch.parent is not None:
                own = tree.weighted_share(branch, NO_POOL, (), 0)
                waiting = self._unblocked_children(branch.parent)
                if any(tree.weighted_share(other, NO_POOL, (), 0) < own for other in waiting):
                    return False
        return True

    def _find_heads(
        self, branch: TenantNode, unclaimed: set[PoolName]
    ) -> Iterator[tuple[Workload, list[PoolName]]]:
        """Yield, for each pool, the head of the least borrowing user that the pool could hold.

        Heads within a guarantee precede it. Of equal users, the one with the oldest last release
        is first. Heads that a limit or closure blocks do not count.
        """
        for child in sorted(self._unblocked_children(branch), key=self._borrowing_order):
            if not unclaimed:
                return
            if not isinstance(child, UserNode):
                yield from self._find_heads(child, unclaimed)
            elif child.head is not None:
                queue_key, shape, _ = child.head
                pools = [
                    pool
                    for pool in shape.pools
                    if pool in unclaimed
                    and self._is_open(child, shape, pool)
                    and self._registry.usage.tree.is_within_limits(child, shape, pool)
                    and self._reservations.could_hold(shape, pool, child.account)
                ]
                workload = self._registry.find_workload(queue_key.uid)
                if pools and workload is not None:
                    unclaimed.difference_update(pools)
                    yield workload, pools

    def _unblocked_children(self, branch: TenantNode) -> Iterator[TenantNode]:
        for child in self._registry.usage.tree.ordered_children(branch):
            if child.key is not None and not child.key.is_blocked:
                yield child

    def _borrowing_order(self, branch: TenantNode) -> tuple[int, float, Served, Millis, str]:
        assert branch.key is not None
        share = self._registry.usage.tree.weighted_share(branch, NO_POOL, (), 0)
        return branch.key.band, share, *branch.key[3:]
