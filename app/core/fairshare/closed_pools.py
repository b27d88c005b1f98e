"""Pools and users for which releases are paused, although capacity and limits would allow them.

A workload that is closed out keeps its position in the order. Other workloads go before it
meanwhile. Closures do not affect reservations or their timers.
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
        self.kept_out: dict[PoolName, set[UserAccount]] = {}
        """Partly closed pools: only these users are closed out. A closed pool without an entry
        closes out all users."""
        self.unowned: set[UserAccount] = set()
        """Users for whom no pod without a controller is released."""
        self.apart: set[UserAccount] = set()
        """Users for whom no `EquivalenceClass.apart` pod is released."""

    def __bool__(self) -> bool:
        """Return whether any pool or user is closed."""
        return bool(self.pools or self.unowned or self.apart)

    def is_open(self, leaf: UserNode, shape: EquivalenceClass, pool: PoolName) -> bool:
        """Return whether closures permit the release of a workload into a pool."""
        if pool in self.pools:
            kept_out = self.kept_out.get(pool)
            if kept_out is None or leaf.account in kept_out:
                return False
        if not shape.owned and leaf.account in self.unowned:
            return False
        return not (shape.apart and leaf.account in self.apart)
