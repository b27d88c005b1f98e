"""Pools and users for which releases are paused, although capacity and limits would allow them.

A workload that is closed out keeps its position in the order. Other workloads go before it
meanwhile. Closures do not affect timers, and reservations only if the user is closed out for long.
"""

from __future__ import annotations

from app.core.fairshare.tree_node import UserNode
from app.core.model import PoolName, TenantName, UserName
from app.core.podspec.equivalence_class import EquivalenceClass

UserAccount = tuple[TenantName, UserName]


class ClosedPools:
    """The closed pools, and the users with closed kinds of pods."""

    def __init__(self) -> None:
        self.pools: set[PoolName] = set()
        self.excluded_users: dict[PoolName, set[UserAccount]] = {}
        """Partly closed pools: only these users are closed out. A closed pool without an entry
        closes out all users."""
        self.users_closed_for_unowned: set[UserAccount] = set()
        """Users for whom no pod without a controller is released."""
        self.users_closed_for_silent: set[UserAccount] = set()
        """Users who get no further release of pods about which the scheduler may be silent."""

    def __bool__(self) -> bool:
        """Return whether any pool or user is closed."""
        return bool(self.pools or self.users_closed_for_unowned or self.users_closed_for_silent)

    def is_open(self, leaf: UserNode, shape: EquivalenceClass, pool: PoolName) -> bool:
        """Return whether closures permit the release of a workload into a pool."""
        if pool in self.pools and pool not in self.excluded_users:
            return False
        return not self.is_user_closed_out(leaf, shape, pool)

    def is_user_closed_out(self, leaf: UserNode, shape: EquivalenceClass, pool: PoolName) -> bool:
        """Return whether a workload is closed out of a pool that may be open to other users."""
        if pool in self.pools and leaf.account in self.excluded_users.get(pool, ()):
            return True
        if not shape.is_owned and leaf.account in self.users_closed_for_unowned:
            return True
        return shape.scheduler_may_be_silent and leaf.account in self.users_closed_for_silent
