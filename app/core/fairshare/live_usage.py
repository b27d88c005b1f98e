"""Live usage: changes the share tree, the usage totals and the allocations together.

`PodRegistry` decides which allocation a pod has.
"""

from __future__ import annotations

import heapq
from collections.abc import Mapping
from dataclasses import dataclass, field
from fractions import Fraction

from app.core.fairshare.closed_pools import ClosedPools
from app.core.fairshare.share_tree import ShareTree
from app.core.fairshare.sort_key import Served
from app.core.fairshare.tenants import TenantDirectory
from app.core.fairshare.tree_node import TenantNode, UserNode
from app.core.fairshare.usage_totals import UsageTotals
from app.core.model import (
    Amounts,
    Millis,
    NodeName,
    NodeSet,
    PoolName,
    Resource,
    Tenant,
    TenantName,
    UserName,
)
from app.core.placement.allocations import Allocation, Allocations
from app.core.placement.pools import add_to
from app.core.podspec.constraints import ANYWHERE, NodeConstraints, PodDistanceRules
from app.core.policy import Policy
from app.core.pricing.share_units import Scale

_PLAIN = Tenant(TenantName(""), Millis(0))
"""Defaults for a tenant without a Tenant resource."""


ITSELF = UserName("")
"""Key for the tenant itself among its users. The API server allows no empty user name."""


@dataclass(frozen=True, slots=True, order=True)
class MinChargeRemainder:
    """The rest of `minCharge` for a pod that ended before it had run that long."""

    until: Millis
    number: int
    tenant: TenantName
    user: UserName
    pool: PoolName
    demand: Amounts = field(compare=False)


@dataclass(frozen=True, slots=True)
class BranchHistory:
    """The last release and the history of a branch at a time. It may be restored later."""

    served: Served
    history: Mapping[Resource, float]
    at: Millis

    def faded(self, now: Millis, half_life: Millis) -> dict[Resource, float]:
        """Return the history decayed to `now`, for a branch without later borrowing."""
        part: float = 0.5 ** (max(0, now - self.at) / half_life)
        return {resource: value * part for resource, value in self.history.items()}


class LiveUsage:
    """All usage by user and pool."""

    def __init__(self, tenancy: TenantDirectory, placement: Allocations) -> None:
        self.policy = Policy()
        self.closures = ClosedPools()
        self.tree = ShareTree(Scale({}, {}), self.policy, closures=self.closures)
        self.ledger = UsageTotals()
        self.used: dict[tuple[TenantName, PoolName], dict[Resource, int]] = {}
        self.now = Millis(0)
        self.past: dict[TenantName, dict[UserName, BranchHistory]] = {}
        """History of branches from before the tree was rebuilt, by user. `ITSELF` is the tenant."""
        self.walls = placement.walls
        """Existing pods with anti-affinity that keeps other pods off nodes."""
        self._tenancy = tenancy
        self._placement = placement
        self._lingering: list[MinChargeRemainder] = []
        self._ended = 0

    def advance(self, now: Millis) -> None:
        """Advance the time. It never goes back."""
        if now > self.now:
            self.now = now
            while self._lingering and self._lingering[0].until <= now:
                lingering = heapq.heappop(self._lingering)
                self._linger(lingering, -1, lingering.until)
            self.tree.advance(now)

    def due(self) -> Millis | None:
        """Return the time at which the next `MinChargeRemainder` ends.

        None if there is no `MinChargeRemainder`.
        """
        return self._lingering[0].until if self._lingering else None

    def enter(
        self,
        leaf: UserNode,
        pool: PoolName,
        demand: Amounts,
        *,
        node: NodeName | None,
        bound: bool,
        ends: Millis | None,
        only: NodeSet = None,
        terms: NodeConstraints = ANYWHERE,
        spacings: tuple[PodDistanceRules, ...] = (),
        leaving: bool = False,
    ) -> Allocation:
        """Count a pod that starts to use a pool."""
        allocation = self._placement.enter(
            pool,
            demand,
            node=node,
            bound=bound,
            ends=ends,
            only=only,
            terms=terms,
            spacings=spacings,
            leaving=leaving,
        )
        self._count(leaf, pool, demand, 1)
        self.ledger.use(self.now, (*leaf.account, pool), demand)
        return allocation

    def part(self, allocation: Allocation) -> None:
        """Mark a pod that uses a pool as terminating."""
        self._placement.part(allocation)

    def reconsider(self, node: NodeName) -> None:
        """Move assumed pods off a node that is gone or has less free capacity."""
        self._placement.reconsider(node)

    def closed_to(self, tenant: TenantName) -> tuple[PodDistanceRules, ...]:
        """Return the rule that keeps pods of a tenant off the nodes closed to it, if any."""
        return self._placement.closed_to(tenant)

    def awaited(self, allocation: Allocation | None) -> PoolName | None:
        """Return the pool from which the pod awaits a new node. None: it awaits no new node."""
        if (
            allocation is None
            or allocation.node is not None
            or not self._placement.beyond.most(allocation.pool)
        ):
            return None
        return allocation.pool

    def lost(self, allocation: Allocation | None, aimed: NodeName | None) -> bool:
        """Return whether the node for which the pod was released does not take it any more."""
        return (
            allocation is not None and aimed is not None and self._placement.lost(allocation, aimed)
        )

    def trim(self) -> None:
        """Clear the cached answers about pod affinity. Most are about deleted pods."""
        self._placement.company.trim()

    def may_return(self, aimed: NodeName | None) -> bool:
        """Return whether the node that a pod was released for still exists, ready or not."""
        return aimed is not None and self._placement.is_known(aimed)

    def land(self) -> None:
        """Assign pods without a node to nodes that have free capacity now."""
        self._placement.land()

    def leave(
        self, leaf: UserNode, allocation: Allocation, *, charged_until: Millis | None = None
    ) -> None:
        """End the usage of a pod. It may count for the score until a later time."""
        self._placement.leave(allocation)
        self._count(leaf, allocation.pool, allocation.demand, -1)
        self.ledger.use(self.now, (*leaf.account, allocation.pool), allocation.demand, -1)
        if charged_until is not None and charged_until > self.now:
            self._ended += 1
            lingering = MinChargeRemainder(
                charged_until, self._ended, *leaf.account, allocation.pool, allocation.demand
            )
            heapq.heappush(self._lingering, lingering)
            self._linger(lingering, 1, self.now)

    def leaf(self, name: TenantName, user: UserName) -> UserNode:
        """Return the leaf of a user. It is created on first use."""
        known = self.tree.leaf_of(name, user)
        if known is not None:
            return known
        tenant = self._tenancy.tenants.get(name, _PLAIN)
        weight = tenant.user_weights.get(user, Fraction(1))
        leaf = self.tree.leaf(self._branch(name), user, weight.as_integer_ratio())
        self._remind(leaf, name, user)
        return leaf

    def recall(self, name: TenantName, user: UserName, past: BranchHistory) -> None:
        """Restore the history of a user, or with `ITSELF` of the tenant."""
        self.past.setdefault(name, {})[user] = past
        tenant = self.tree.tenants.get(name)
        branch = tenant if user == ITSELF else self.tree.leaf_of(name, user)
        if branch is not None:
            branch.recall(past.served, past.history, past.at)
            self.tree.serve(branch, past.served)

    def replant(self, scale: Scale) -> None:
        """Rebuild an empty tree from the current tenants. New branches get their history back."""
        for name, branch in self.tree.tenants.items():
            past = self.past.setdefault(name, {})
            past[ITSELF] = BranchHistory(branch.served, self.tree.history(branch), self.now)
            for child in branch.children.values():
                if isinstance(child, UserNode):
                    remembered = self.tree.history(child)
                    past[UserName(child.name)] = BranchHistory(child.served, remembered, self.now)
        self.ledger.forget_rates(self.now)
        self._placement.clear_allocations()
        self.used.clear()
        tenants = self._tenancy.tenants.values()
        weights = [t.weight for t in tenants]
        weights += [weight for t in tenants for weight in t.user_weights.values()]
        quotas = [scale.quota(pool, quota) for t in tenants for pool, quota in t.quotas.items()]
        amounts = [value for quota in quotas for value in quota.guarantee.values()]
        finest = max([1, *(w.numerator for w in weights), *amounts])
        self.tree = ShareTree(scale, self.policy, finest, self._placement.fitting, self.closures)
        self.tree.advance(self.now)

    def resume(self) -> None:
        """Count every `MinChargeRemainder` again. Call it after all pods are counted."""
        for lingering in self._lingering:
            self._linger(lingering, 1, self.now)

    def paused(self, leaf: UserNode) -> bool:
        """Return whether a user's tenant, or one of its ancestors, is paused."""
        name: TenantName | None = leaf.tenant
        while name is not None:
            if self._tenancy.tenants.get(name, _PLAIN).paused:
                return True
            name = self._tenancy.parent_of(name)
        return False

    def _count(self, leaf: UserNode, pool: PoolName, demand: Amounts, sign: int) -> None:
        self.tree.use(leaf, pool, demand, sign)
        add_to(self.used.setdefault((leaf.tenant, pool), {}), demand, sign)

    def _linger(self, lingering: MinChargeRemainder, sign: int, at: Millis) -> None:
        leaf = self.leaf(lingering.tenant, lingering.user)
        self.tree.use(leaf, lingering.pool, lingering.demand, sign)
        self.tree.linger(leaf, lingering.pool, lingering.demand, sign)
        self.ledger.use(at, (*leaf.account, lingering.pool), lingering.demand, sign)

    def _branch(self, name: TenantName) -> TenantNode:
        known = self.tree.tenants.get(name)
        if known is not None:
            return known
        above = self._tenancy.parent_of(name)
        tenant = self._tenancy.tenants.get(name, _PLAIN)
        parent = self._branch(above) if above is not None else None
        scale = self.tree.scale
        quotas = {pool: scale.quota(pool, quota) for pool, quota in tenant.quotas.items()}
        branch = self.tree.tenant(name, parent, tenant.weight.as_integer_ratio(), quotas)
        self._remind(branch, name)
        return branch

    def _remind(self, branch: TenantNode, name: TenantName, user: UserName = ITSELF) -> None:
        """Restore the history of a new branch from before the tree was rebuilt."""
        past = self.past.get(name, {}).get(user)
        if past is not None:
            branch.recall(past.served, past.history, past.at)
