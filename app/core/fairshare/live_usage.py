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
from app.core.podspec.constraints import ANYWHERE, NodeConstraints, PodDistanceRule
from app.core.policy import Policy
from app.core.pricing.share_units import Scale

_DEFAULT_TENANT = Tenant(TenantName(""), Millis(0))
"""Defaults for a tenant without a Tenant resource."""


TENANT_ITSELF = UserName("")
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

    last_served: Served
    history: Mapping[Resource, float]
    at: Millis

    def decayed(self, now: Millis, half_life: Millis) -> dict[Resource, float]:
        """Return the history decayed to `now`, for a branch without later borrowing."""
        part: float = 0.5 ** (max(0, now - self.at) / half_life)
        return {resource: value * part for resource, value in self.history.items()}


class LiveUsage:
    """All usage by user and pool."""

    def __init__(self, tenancy: TenantDirectory, placement: Allocations) -> None:
        self.policy = Policy()
        self.closed_pools = ClosedPools()
        self.tree = ShareTree(Scale({}, {}), self.policy, closures=self.closed_pools)
        self.totals = UsageTotals()
        self.used_by_tenant: dict[tuple[TenantName, PoolName], dict[Resource, int]] = {}
        self.now = Millis(0)
        self.saved_history: dict[TenantName, dict[UserName, BranchHistory]] = {}
        """History of branches from before the tree was rebuilt, by user. `TENANT_ITSELF` is the
        tenant.
        """
        self.existing_anti_affinity = placement.existing_anti_affinity
        """Existing pods with anti-affinity that keeps other pods off nodes."""
        self._tenancy = tenancy
        self._placement = placement
        self._remainders: list[MinChargeRemainder] = []
        self._last_remainder_number = 0

    def advance(self, now: Millis) -> None:
        """Advance the time. It never goes back."""
        if now > self.now:
            self.now = now
            while self._remainders and self._remainders[0].until <= now:
                lingering = heapq.heappop(self._remainders)
                self._count_remainder(lingering, -1, lingering.until)
            self.tree.advance(now)

    def due(self) -> Millis | None:
        """Return the time at which the next `MinChargeRemainder` ends.

        None if there is no `MinChargeRemainder`.
        """
        return self._remainders[0].until if self._remainders else None

    def start_usage(
        self,
        leaf: UserNode,
        pool: PoolName,
        demand: Amounts,
        *,
        node: NodeName | None,
        bound: bool,
        declared_end: Millis | None,
        node_names: NodeSet = None,
        node_constraints: NodeConstraints = ANYWHERE,
        distance_rules: tuple[PodDistanceRule, ...] = (),
        terminating: bool = False,
    ) -> Allocation:
        """Count a pod that starts to use a pool."""
        allocation = self._placement.allocate(
            pool,
            demand,
            node=node,
            bound=bound,
            declared_end=declared_end,
            node_names=node_names,
            node_constraints=node_constraints,
            distance_rules=distance_rules,
            terminating=terminating,
        )
        self._add_usage(leaf, pool, demand, 1)
        self.totals.add_usage(self.now, (*leaf.account, pool), demand)
        return allocation

    def mark_terminating(self, allocation: Allocation) -> None:
        """Mark a pod that uses a pool as terminating."""
        self._placement.mark_terminating(allocation)

    def reassign_assumed_pods(self, node: NodeName) -> None:
        """Move assumed pods off a node that is gone or has less free capacity."""
        self._placement.reassign_assumed_pods(node)

    def closed_node_rules(self, tenant: TenantName) -> tuple[PodDistanceRule, ...]:
        """Return the rule that keeps pods of a tenant off the nodes closed to it, if any."""
        return self._placement.closed_node_rules(tenant)

    def awaited_pool(self, allocation: Allocation | None) -> PoolName | None:
        """Return the pool from which the pod awaits a new node. None: it awaits no new node."""
        if (
            allocation is None
            or allocation.node is not None
            or not self._placement.autoscaling_capacity.declared_max_capacity(allocation.pool)
        ):
            return None
        return allocation.pool

    def has_lost_node(self, allocation: Allocation | None, aimed: NodeName | None) -> bool:
        """Return whether the node for which the pod was released does not take it any more."""
        return (
            allocation is not None
            and aimed is not None
            and self._placement.has_lost_node(allocation, aimed)
        )

    def trim_affinity_cache(self) -> None:
        """Clear the cached answers about pod affinity. Most are about deleted pods."""
        self._placement.pod_peers.drop_cached_answers()

    def may_node_return(self, aimed: NodeName | None) -> bool:
        """Return whether the node that a pod was released for still exists, ready or not."""
        return aimed is not None and self._placement.has_node(aimed)

    def assign_waiting(self) -> None:
        """Assign pods without a node to nodes that have free capacity now."""
        self._placement.assign_pods_to_new_nodes()

    def end_usage(
        self, leaf: UserNode, allocation: Allocation, *, charged_until: Millis | None = None
    ) -> None:
        """End the usage of a pod. It counts for the score until `charged_until`, a later time."""
        self._placement.remove_allocation(allocation)
        self._add_usage(leaf, allocation.pool, allocation.demand, -1)
        self.totals.add_usage(self.now, (*leaf.account, allocation.pool), allocation.demand, -1)
        if charged_until is not None:
            account = (*leaf.account, allocation.pool)
            lingering = self.add_remainder(*account, allocation.demand, charged_until)
            self._count_remainder(lingering, 1, self.now)

    def add_remainder(
        self, tenant: TenantName, user: UserName, pool: PoolName, demand: Amounts, until: Millis
    ) -> MinChargeRemainder:
        """Record that ended usage counts for the score until a later time.

        It is not counted before `reapply_lingering`: the usage itself may still be counted.
        """
        self._last_remainder_number += 1
        lingering = MinChargeRemainder(
            until, self._last_remainder_number, tenant, user, pool, demand
        )
        heapq.heappush(self._remainders, lingering)
        return lingering

    def get_or_add_user(self, name: TenantName, user: UserName) -> UserNode:
        """Return the leaf of a user. It is created on first use."""
        known = self.tree.find_user(name, user)
        if known is not None:
            return known
        tenant = self._tenancy.tenants.get(name, _DEFAULT_TENANT)
        weight = tenant.user_weights.get(user, Fraction(1))
        leaf = self.tree.get_or_add_user(
            self._get_or_add_tenant(name), user, weight.as_integer_ratio()
        )
        self._restore_saved_history(leaf, name, user)
        return leaf

    def apply_weights(self, tenant: Tenant) -> bool:
        """Apply the weights of a Tenant. Return False if this needs a new tree."""
        users = {user: weight.as_integer_ratio() for user, weight in tenant.user_weights.items()}
        own = tenant.weight.as_integer_ratio()
        if not all(map(self.tree.can_compare, (own, *users.values()))):
            return False
        branch = self.tree.tenants.get(tenant.name)
        if branch is not None:
            self.tree.set_weight(branch, own)
            for child in branch.children.values():
                if isinstance(child, UserNode):
                    self.tree.set_weight(child, users.get(UserName(child.name), (1, 1)))
        return True

    def restore_history(self, name: TenantName, user: UserName, past: BranchHistory) -> None:
        """Restore the history of a user, or with `TENANT_ITSELF` of the tenant."""
        self.saved_history.setdefault(name, {})[user] = past
        tenant = self.tree.tenants.get(name)
        branch = tenant if user == TENANT_ITSELF else self.tree.find_user(name, user)
        if branch is not None:
            branch.restore_history(past.last_served, past.history, past.at)
            self.tree.mark_served(branch, past.last_served)

    def rebuild_tree(self, scale: Scale) -> None:
        """Rebuild an empty tree from the current tenants. New branches get their history back."""
        for name, branch in self.tree.tenants.items():
            past = self.saved_history.setdefault(name, {})
            past[TENANT_ITSELF] = BranchHistory(
                branch.last_served, self.tree.decayed_history(branch), self.now
            )
            for child in branch.children.values():
                if isinstance(child, UserNode):
                    remembered = self.tree.decayed_history(child)
                    past[UserName(child.name)] = BranchHistory(
                        child.last_served, remembered, self.now
                    )
        self.totals.reset_rates(self.now)
        self._placement.clear_allocations()
        self.used_by_tenant.clear()
        tenants = self._tenancy.tenants.values()
        weights = [t.weight for t in tenants]
        weights += [weight for t in tenants for weight in t.user_weights.values()]
        quotas = [
            scale.quota_with_sides(pool, quota) for t in tenants for pool, quota in t.quotas.items()
        ]
        amounts = [value for quota in quotas for value in quota.guarantee.values()]
        finest = max([1, *(w.numerator for w in weights), *amounts])
        self.tree = ShareTree(
            scale, self.policy, finest, self._placement.fitting_pools, self.closed_pools
        )
        self.tree.advance(self.now)

    def reapply_lingering(self) -> None:
        """Count every `MinChargeRemainder` again. Call it after all pods are counted."""
        for lingering in self._remainders:
            self._count_remainder(lingering, 1, self.now)

    def is_paused(self, leaf: UserNode) -> bool:
        """Return whether a user's tenant, or one of its ancestors, is paused."""
        name: TenantName | None = leaf.tenant
        while name is not None:
            if self._tenancy.tenants.get(name, _DEFAULT_TENANT).paused:
                return True
            name = self._tenancy.parent_of(name)
        return False

    def _add_usage(self, leaf: UserNode, pool: PoolName, demand: Amounts, sign: int) -> None:
        self.tree.add_usage(leaf, pool, demand, sign)
        add_to(self.used_by_tenant.setdefault((leaf.tenant, pool), {}), demand, sign)

    def _count_remainder(self, lingering: MinChargeRemainder, sign: int, at: Millis) -> None:
        leaf = self.get_or_add_user(lingering.tenant, lingering.user)
        self.tree.add_usage(leaf, lingering.pool, lingering.demand, sign)
        self.tree.count_ended_work(leaf, lingering.pool, lingering.demand, sign)
        self.totals.add_usage(at, (*leaf.account, lingering.pool), lingering.demand, sign)

    def _get_or_add_tenant(self, name: TenantName) -> TenantNode:
        known = self.tree.tenants.get(name)
        if known is not None:
            return known
        above = self._tenancy.parent_of(name)
        tenant = self._tenancy.tenants.get(name, _DEFAULT_TENANT)
        parent = self._get_or_add_tenant(above) if above is not None else None
        scale = self.tree.scale
        quotas = {
            pool: scale.quota_with_sides(pool, quota) for pool, quota in tenant.quotas.items()
        }
        branch = self.tree.get_or_add_tenant(name, parent, tenant.weight.as_integer_ratio(), quotas)
        self._restore_saved_history(branch, name)
        return branch

    def _restore_saved_history(
        self, branch: TenantNode, name: TenantName, user: UserName = TENANT_ITSELF
    ) -> None:
        """Restore the history of a new branch from before the tree was rebuilt."""
        past = self.saved_history.get(name, {}).get(user)
        if past is not None:
            branch.restore_history(past.last_served, past.history, past.at)
