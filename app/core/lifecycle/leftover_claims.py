"""The charges of leftover claims: allocated claims that no pod uses. `claim_holds` finds them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from app.core.fairshare.live_usage import LiveUsage
from app.core.fairshare.tenants import TenantDirectory
from app.core.fairshare.tree_node import UserNode, path_to_root
from app.core.lifecycle.claim_users import ClaimKey
from app.core.model import Amounts, NodeName, PoolName, Uid, UnmanagedPod, UserName
from app.core.placement.allocations import Allocation
from app.core.placement.pools import Pools


@dataclass(slots=True, eq=False)
class _Leftover:
    namespace: str
    user: UserName
    node: NodeName
    amounts: Amounts
    leaf: UserNode | None = None
    allocation: Allocation | None = None

    def equals(self, user: UserName, node: NodeName, amounts: Amounts) -> bool:
        """Return whether the user, the node and the amounts are equal to these."""
        return (self.user, self.node, self.amounts) == (user, node, amounts)


class LeftoverClaims:
    """Charges users for leftover claims.

    `is_recount_due` returns whether all usage is counted again soon. Until then no usage changes.
    """

    def __init__(
        self,
        usage: LiveUsage,
        pools: Pools,
        tenancy: TenantDirectory,
        is_recount_due: Callable[[], bool],
    ) -> None:
        self._usage = usage
        self._pools = pools
        self._tenancy = tenancy
        self._is_recount_due = is_recount_due
        self._claims: dict[ClaimKey, _Leftover] = {}

    def charge(self, key: ClaimKey, user: UserName, node: NodeName, amounts: Amounts) -> None:
        """Charge a user for the devices of a claim."""
        known = self._claims.get(key)
        if known is not None and known.equals(user, node, amounts):
            return
        self.drop(key)
        self._claims[key] = held = _Leftover(key[0], user, node, amounts)
        if not self._is_recount_due():
            self._account(held)

    def drop(self, key: ClaimKey) -> None:
        """End the charge of a claim. An unknown claim is ignored."""
        held = self._claims.pop(key, None)
        if held is not None:
            self._unaccount(held)

    def apply_node_move(self, node: NodeName) -> None:
        """Charge the claims of a node in the pool to which it belongs now."""
        for held in self._claims.values():
            if held.node == node:
                self._unaccount(held)
                self._account(held)

    def recount(self) -> None:
        """Charge all claims again, because all usage was cleared."""
        for held in self._claims.values():
            held.leaf = held.allocation = None
            self._account(held)

    def claims_of_pool(self, pool: PoolName) -> list[ClaimKey]:
        """Return the claims that are charged in a pool."""
        return [
            key
            for key, held in self._claims.items()
            if held.allocation is not None and held.allocation.pool == pool
        ]

    def is_over_limit(self, key: ClaimKey) -> bool:
        """Return whether a tenant that pays for a claim uses more of its devices than its limit."""
        held = self._claims.get(key)
        if held is None or held.leaf is None or held.allocation is None:
            return False
        pool, nothing_more = held.allocation.pool, tuple((r, 0, 0, ()) for r in held.amounts)
        return not all(each.is_within_limit(pool, nothing_more) for each in path_to_root(held.leaf))

    def as_unmanaged_pods(self) -> tuple[UnmanagedPod, ...]:
        """Return the devices of the claims as pods that reduce the capacity of nodes."""
        return tuple(
            UnmanagedPod(Uid(f"claim/{namespace}/{name}"), held.node, held.amounts)
            for (namespace, name), held in self._claims.items()
        )

    def _account(self, held: _Leftover) -> None:
        pool = self._pools.pool_of_node(held.node)
        if pool is None:
            return
        tenant = self._tenancy.tenant_of(held.namespace)
        held.leaf = self._usage.get_or_add_user(tenant, held.user)
        held.allocation = self._usage.start_usage(
            held.leaf, pool, held.amounts, node=held.node, bound=True, declared_end=None
        )

    def _unaccount(self, held: _Leftover) -> None:
        leaf, allocation = held.leaf, held.allocation
        held.leaf = held.allocation = None
        if leaf is not None and allocation is not None and not self._is_recount_due():
            self._usage.end_usage(leaf, allocation)
