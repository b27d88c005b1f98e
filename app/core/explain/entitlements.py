"""Shares of tenants: the share by weight, and the fair share, among active siblings."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from fractions import Fraction

from app.core.fairshare.live_usage import TENANT_ITSELF
from app.core.fairshare.tenants import TenantDirectory
from app.core.fairshare.tree_node import TenantNode, UserNode, dominant_usage_share
from app.core.lifecycle.pod_registry import PodRegistry
from app.core.model import Amounts, PoolName, Quota, Tenant, TenantName, UserName
from app.core.placement.pools import Pools

Parts = dict[tuple[TenantName, UserName], Fraction]


@dataclass(frozen=True, slots=True)
class Standing:
    """A tenant in the tree. `users`: the weights of its current users."""

    parent: TenantName | None
    weight: Fraction
    users: Mapping[UserName, Fraction] = field(default_factory=dict)


def shares_by_weight(tenants: Mapping[TenantName, Standing]) -> Parts:
    """Return the share by weight of each tenant and user. All at top level sum to 1.

    Users and child tenants of one tenant are siblings. A parent that is unknown, or that closes a
    cycle, counts as None.
    """
    below: dict[TenantName | None, list[TenantName]] = {}
    for name in sorted(tenants):
        below.setdefault(_parent(name, tenants), []).append(name)
    parts: Parts = {}
    left: list[tuple[TenantName | None, Fraction]] = [(None, Fraction(1))]
    while left:
        parent, whole = left.pop()
        users = tenants[parent].users if parent is not None else {}
        children = below.get(parent, [])
        total = sum((tenants[each].weight for each in children), sum(users.values(), Fraction(0)))
        each_part = whole / total if total else Fraction(0)
        if parent is not None:
            parts |= {(parent, user): weight * each_part for user, weight in users.items()}
        for child in children:
            part = tenants[child].weight * each_part
            parts[child, TENANT_ITSELF] = part
            left.append((child, part))
    return parts


def _parent(name: TenantName, tenants: Mapping[TenantName, Standing]) -> TenantName | None:
    seen = {name}
    above = tenants[name].parent
    while above is not None and above in tenants:
        if above in seen:
            return None
        seen.add(above)
        above = tenants[above].parent
    parent = tenants[name].parent
    return parent if parent in tenants else None


@dataclass(frozen=True, slots=True)
class ClusterShare:
    """Parts of the cluster, 0 to 1: the used and the fair share."""

    used_share: float
    fair_share: float


@dataclass(frozen=True, slots=True)
class Entitlement(ClusterShare):
    """Shares of a tenant and of its users. `limit` is None if no limit is effective."""

    guarantee: float
    limit: float | None
    users: Mapping[UserName, ClusterShare]


@dataclass(frozen=True, slots=True)
class _Claim:
    """A child of a tenant that gets a part of the tenant's fair share."""

    name: TenantName | UserName
    is_user: bool
    branch: TenantNode | None
    weight: float
    guarantee: float = 0.0
    limit: float | None = None

    @property
    def is_active(self) -> bool:
        """Return whether it uses or waits, so that others get less."""
        branch = self.branch
        if branch is None:
            return False
        return bool(branch.waiting_by_class) or any(
            v for used in branch.usage.values() for v in used.values()
        )


@dataclass(slots=True)
class _Division:
    """Divides the cluster among tenants, from the top down."""

    registry: PodRegistry
    tenancy: TenantDirectory
    pools: Pools
    entitlements: dict[TenantName, Entitlement] = field(default_factory=dict)

    def divide(self) -> dict[TenantName, Entitlement]:
        below: dict[TenantName | None, list[TenantName]] = {}
        for name in sorted({*self.tenancy.tenants, *self.registry.usage.tree.tenants}):
            below.setdefault(self.tenancy.parent_of(name), []).append(name)
        due: list[tuple[TenantName | None, float]] = [(None, 1.0)]
        while due:
            parent, whole = due.pop()
            claims = [self._tenant_claim(name) for name in below.get(parent, ())]
            claims += self._user_claims(parent)
            parts = list(zip(claims, _divide(claims, whole), strict=True))
            for claim, part in parts:
                if not claim.is_user:
                    name = TenantName(claim.name)
                    self.entitlements[name] = Entitlement(
                        self._used_share(claim), part, claim.guarantee, claim.limit, {}
                    )
                    due.append((name, part))
            if parent is not None:
                users = {
                    UserName(claim.name): ClusterShare(self._used_share(claim), part)
                    for claim, part in parts
                    if claim.is_user
                }
                own = self.entitlements[parent]
                self.entitlements[parent] = Entitlement(
                    own.used_share, own.fair_share, own.guarantee, own.limit, users
                )
        return self.entitlements

    def _tenant_claim(self, name: TenantName) -> _Claim:
        tenant: Tenant | None = self.tenancy.tenants.get(name)
        branch = self.registry.usage.tree.tenants.get(name)
        if tenant is None:
            return _Claim(name, False, branch, 1.0)
        scale = self.registry.usage.tree.scale
        quotas = {
            pool: scale.quota_with_sides(pool, quota) for pool, quota in tenant.quotas.items()
        }
        guarantees = {pool: quota.guarantee for pool, quota in quotas.items()}
        limit = self._share_limit(quotas)
        return _Claim(
            name, False, branch, float(tenant.weight), self._dominant_share(guarantees), limit
        )

    def _user_claims(self, parent: TenantName | None) -> list[_Claim]:
        branch = self.registry.usage.tree.tenants.get(parent) if parent is not None else None
        children = branch.children.values() if branch is not None else ()
        return [
            _Claim(UserName(leaf.name), True, leaf, leaf.weight[0] / leaf.weight[1])
            for leaf in children
            if isinstance(leaf, UserNode)
        ]

    def _used_share(self, claim: _Claim) -> float:
        if claim.branch is None:
            return 0.0
        used, whole = dominant_usage_share(claim.branch, self.registry.usage.tree.scale)
        return used / whole

    def _dominant_share(self, amounts: Mapping[PoolName, Amounts]) -> float:
        """Return the dominant share of amounts per pool."""
        scale = self.registry.usage.tree.scale
        parts: dict[str, int] = {}
        for pool, used in amounts.items():
            for column, grains in scale.usage_in_grains(pool, used).items():
                parts[column] = parts.get(column, 0) + grains
        return max(parts.values(), default=0) / scale.total_grains

    def _share_limit(self, quotas: Mapping[PoolName, Quota]) -> float | None:
        """Return the largest share that the limits permit; None if it is the whole cluster."""
        scale = self.registry.usage.tree.scale
        most: dict[str, int] = {}
        for pool in self.pools.pools:
            limits = quotas[pool].limit if pool in quotas else {}
            there = self.pools.capacity(pool)
            left = {r: min(value, limits.get(r, value)) for r, value in there.items()}
            for column, grains in scale.usage_in_grains(pool, left).items():
                most[column] = most.get(column, 0) + grains
        largest = max(most.values(), default=scale.total_grains) / scale.total_grains
        return largest if largest < 1 else None


def fair_shares(
    registry: PodRegistry, tenancy: TenantDirectory, pools: Pools
) -> Mapping[TenantName, Entitlement]:
    """Return the fair share of every known tenant, and of its users with work."""
    return _Division(registry, tenancy, pools).divide()


def _divide(claims: list[_Claim], whole: float) -> list[float]:
    """Return the fair share of each claim. An idle one counts as if it alone became active."""
    active = [claim.is_active for claim in claims]
    weight = sum(c.weight for c, counts in zip(claims, active, strict=True) if counts)
    guaranteed = sum(c.guarantee for c, counts in zip(claims, active, strict=True) if counts)
    parts = []
    for claim, counts in zip(claims, active, strict=True):
        among = weight if counts else weight + claim.weight
        left = max(0.0, whole - (guaranteed if counts else guaranteed + claim.guarantee))
        part = claim.guarantee + (left * claim.weight / among if among else 0.0)
        parts.append(min(part, whole, 1.0 if claim.limit is None else claim.limit))
    return parts
