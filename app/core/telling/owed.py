"""What every tenant and user is owed of the cluster, next to what they use. Reads only.

Owed is the guarantee and, by weight, a part of what nobody is guaranteed: among those siblings
who use or wait now, as if each of them asked for more. For people to look at: floats will do.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from app.core.fair.branch import Branch, Leaf, share
from app.core.fair.tenancy import Tenancy
from app.core.model import Amounts, PoolName, Quota, Tenant, TenantName, UserName
from app.core.places.pools import Pools
from app.core.pods.roster import Roster


@dataclass(frozen=True, slots=True)
class Part:
    """Parts of the cluster, 0 to 1: what is used of it, and what is owed."""

    used: float
    owed: float


@dataclass(frozen=True, slots=True)
class Owed(Part):
    """Those of a tenant and of its users; `limit` None: there is none, or it does not bind."""

    guarantee: float
    limit: float | None
    users: Mapping[UserName, Part]


@dataclass(frozen=True, slots=True)
class _Claim:
    """A child of a tenant that shares in what the tenant is owed."""

    name: TenantName | UserName
    is_user: bool
    branch: Branch | None
    weight: float
    guarantee: float = 0.0
    limit: float | None = None

    @property
    def counts(self) -> bool:
        """Tell whether it uses or waits, so that others get less."""
        branch = self.branch
        if branch is None:
            return False
        return bool(branch.shapes) or any(v for used in branch.uses.values() for v in used.values())


@dataclass(slots=True)
class _Division:
    """Divides the cluster, tenant by tenant, from the top."""

    roster: Roster
    tenancy: Tenancy
    pools: Pools
    owed: dict[TenantName, Owed] = field(default_factory=dict)

    def run(self) -> dict[TenantName, Owed]:
        below: dict[TenantName | None, list[TenantName]] = {}
        for name in sorted({*self.tenancy.tenants, *self.roster.usage.tree.tenants}):
            below.setdefault(self.tenancy.parent_of(name), []).append(name)
        due: list[tuple[TenantName | None, float]] = [(None, 1.0)]
        while due:
            parent, whole = due.pop()
            claims = [self._tenant(name) for name in below.get(parent, ())]
            claims += self._users(parent)
            parts = list(zip(claims, _divide(claims, whole), strict=True))
            for claim, part in parts:
                if not claim.is_user:
                    name = TenantName(claim.name)
                    self.owed[name] = Owed(
                        self._used(claim), part, claim.guarantee, claim.limit, {}
                    )
                    due.append((name, part))
            if parent is not None:
                users = {
                    UserName(claim.name): Part(self._used(claim), part)
                    for claim, part in parts
                    if claim.is_user
                }
                own = self.owed[parent]
                self.owed[parent] = Owed(own.used, own.owed, own.guarantee, own.limit, users)
        return self.owed

    def _tenant(self, name: TenantName) -> _Claim:
        tenant: Tenant | None = self.tenancy.tenants.get(name)
        branch = self.roster.usage.tree.tenants.get(name)
        if tenant is None:
            return _Claim(name, False, branch, 1.0)
        scale = self.roster.usage.tree.scale
        quotas = {pool: scale.quota(pool, quota) for pool, quota in tenant.quotas.items()}
        guarantees = {pool: quota.guarantee for pool, quota in quotas.items()}
        limit = self._limit(quotas)
        return _Claim(name, False, branch, float(tenant.weight), self._part(guarantees), limit)

    def _users(self, parent: TenantName | None) -> list[_Claim]:
        branch = self.roster.usage.tree.tenants.get(parent) if parent is not None else None
        children = branch.children.values() if branch is not None else ()
        return [
            _Claim(UserName(leaf.name), True, leaf, leaf.weight[0] / leaf.weight[1])
            for leaf in children
            if isinstance(leaf, Leaf)
        ]

    def _used(self, claim: _Claim) -> float:
        if claim.branch is None:
            return 0.0
        used, whole = share(claim.branch, self.roster.usage.tree.scale)
        return used / whole

    def _part(self, amounts: Mapping[PoolName, Amounts]) -> float:
        """Return the dominant share that amounts of pools are."""
        scale = self.roster.usage.tree.scale
        parts: dict[str, int] = {}
        for pool, used in amounts.items():
            for column, grains in scale.measured(pool, used).items():
                parts[column] = parts.get(column, 0) + grains
        return max(parts.values(), default=0) / scale.whole

    def _limit(self, quotas: Mapping[PoolName, Quota]) -> float | None:
        """Return the most that limits leave of the cluster; None: all of it."""
        scale = self.roster.usage.tree.scale
        most: dict[str, int] = {}
        for pool in self.pools.pools:
            limits = quotas[pool].limit if pool in quotas else {}
            there = self.pools.capacity(pool)
            left = {r: min(value, limits.get(r, value)) for r, value in there.items()}
            for column, grains in scale.measured(pool, left).items():
                most[column] = most.get(column, 0) + grains
        largest = max(most.values(), default=scale.whole) / scale.whole
        return largest if largest < 1 else None


def owed(roster: Roster, tenancy: Tenancy, pools: Pools) -> Mapping[TenantName, Owed]:
    """Return what every tenant is owed that is known, and its users with work."""
    return _Division(roster, tenancy, pools).run()


def _divide(claims: list[_Claim], whole: float) -> list[float]:
    """Return what each is owed; who has no work now, as if they alone came to have some."""
    active = [claim.counts for claim in claims]
    weight = sum(c.weight for c, counts in zip(claims, active, strict=True) if counts)
    pledged = sum(c.guarantee for c, counts in zip(claims, active, strict=True) if counts)
    parts = []
    for claim, counts in zip(claims, active, strict=True):
        among = weight if counts else weight + claim.weight
        left = max(0.0, whole - (pledged if counts else pledged + claim.guarantee))
        part = claim.guarantee + (left * claim.weight / among if among else 0.0)
        parts.append(min(part, whole, 1.0 if claim.limit is None else claim.limit))
    return parts
