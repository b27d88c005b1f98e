"""Who uses what: the tree of shares, the ledger and the placement, always changed together.

Counts only. Which pod has which place is the roster's business.
"""

from __future__ import annotations

import heapq
from collections.abc import Mapping
from dataclasses import dataclass, field
from fractions import Fraction

from app.core.asks.terms import ANYWHERE, Spacing, Terms
from app.core.fair.branch import Branch, Leaf
from app.core.fair.ledger import Ledger
from app.core.fair.order import Served
from app.core.fair.shares import Tree
from app.core.fair.tenancy import Tenancy
from app.core.model import (
    Amounts,
    Millis,
    NodeName,
    Pin,
    PoolName,
    Resource,
    Tenant,
    TenantName,
    UserName,
)
from app.core.places.placement import Placement, Stay
from app.core.places.pools import add_to
from app.core.places.scale import Scale
from app.core.policy import Policy

_PLAIN = Tenant(TenantName(""), Millis(0))
"""What holds for a tenant without a Tenant resource."""


ITSELF = UserName("")
"""Stands for a tenant itself among its users. The API server names nobody so."""


@dataclass(frozen=True, slots=True, order=True)
class Lingering:
    """Work that ended before it was held for as long as it is charged at least."""

    until: Millis
    number: int
    tenant: TenantName
    user: UserName
    pool: PoolName
    demand: Amounts = field(compare=False)


@dataclass(frozen=True, slots=True)
class Past:
    """What a branch remembered at some time. It may come back late."""

    served: Served
    history: Mapping[Resource, float]
    at: Millis

    def faded(self, now: Millis, half_life: Millis) -> dict[Resource, float]:
        """Return the history as of now, of a branch that has borrowed nothing since."""
        part: float = 0.5 ** (max(0, now - self.at) / half_life)
        return {resource: value * part for resource, value in self.history.items()}


class Usage:
    """All that is used, by whom and where."""

    def __init__(self, tenancy: Tenancy, placement: Placement) -> None:
        self.policy = Policy()
        self.tree = Tree(Scale({}, {}), self.policy)
        self.ledger = Ledger()
        self.used: dict[tuple[TenantName, PoolName], dict[Resource, int]] = {}
        self.now = Millis(0)
        self.past: dict[TenantName, dict[UserName, Past]] = {}
        """What branches remembered before the tree was made anew; tenants as ITSELF."""
        self._tenancy = tenancy
        self._placement = placement
        self._lingering: list[Lingering] = []
        self._ended = 0

    def advance(self, now: Millis) -> None:
        """Let time pass; it never goes back."""
        if now > self.now:
            self.now = now
            while self._lingering and self._lingering[0].until <= now:
                lingering = heapq.heappop(self._lingering)
                self._linger(lingering, -1, lingering.until)
            self.tree.advance(now)

    def due(self) -> Millis | None:
        """Return when something ends to count by time alone."""
        return self._lingering[0].until if self._lingering else None

    def enter(
        self,
        leaf: Leaf,
        pool: PoolName,
        demand: Amounts,
        *,
        node: NodeName | None,
        bound: bool,
        ends: Millis | None,
        only: Pin = None,
        terms: Terms = ANYWHERE,
        spacings: tuple[Spacing, ...] = (),
        leaving: bool = False,
    ) -> Stay:
        """A pod of a user begins to use a pool."""
        stay = self._placement.enter(
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
        return stay

    def part(self, stay: Stay) -> None:
        """A pod that uses a pool is on its way out."""
        self._placement.part(stay)

    def reconsider(self, node: NodeName) -> None:
        """A node is gone, or has less room: expect elsewhere whom it cannot take any more."""
        self._placement.reconsider(node)

    def awaited(self, stay: Stay | None) -> PoolName | None:
        """Return the pool whose new nodes somebody waits for who has none; None: no pool's."""
        if stay is None or stay.node is not None or not self._placement.beyond.most(stay.pool):
            return None
        return stay.pool

    def lost(self, stay: Stay | None, aimed: NodeName | None) -> bool:
        """Tell whether somebody was released for a node that takes them no more."""
        return stay is not None and aimed is not None and self._placement.lost(stay, aimed)

    def land(self) -> None:
        """Expect on nodes whom none had room for, if some have now."""
        self._placement.land()

    def leave(self, leaf: Leaf, stay: Stay, *, charged_until: Millis | None = None) -> None:
        """A pod uses it no more; for the score it may count until a later time."""
        self._placement.leave(stay)
        self._count(leaf, stay.pool, stay.demand, -1)
        self.ledger.use(self.now, (*leaf.account, stay.pool), stay.demand, -1)
        if charged_until is not None and charged_until > self.now:
            self._ended += 1
            lingering = Lingering(charged_until, self._ended, *leaf.account, stay.pool, stay.demand)
            heapq.heappush(self._lingering, lingering)
            self._linger(lingering, 1, self.now)

    def leaf(self, name: TenantName, user: UserName) -> Leaf:
        """Return the leaf of a user, made on first use."""
        known = self.tree.find(name, user)
        if known is not None:
            return known
        tenant = self._tenancy.tenants.get(name, _PLAIN)
        weight = tenant.user_weights.get(user, Fraction(1))
        leaf = self.tree.leaf(self._branch(name), user, weight.as_integer_ratio())
        self._remind(leaf, name, user)
        return leaf

    def recall(self, name: TenantName, user: UserName, past: Past) -> None:
        """A user of a tenant remembers this, or ITSELF does."""
        self.past.setdefault(name, {})[user] = past
        tenant = self.tree.tenants.get(name)
        branch = tenant if user == ITSELF else self.tree.find(name, user)
        if branch is not None:
            branch.recall(past.served, past.history, past.at)
            self.tree.serve(branch, past.served)

    def replant(self, scale: Scale) -> None:
        """Make the tree anew and empty, with what tenants are now; the past is remembered later."""
        for name, branch in self.tree.tenants.items():
            past = self.past.setdefault(name, {})
            past[ITSELF] = Past(branch.served, self.tree.history(branch), self.now)
            for child in branch.children.values():
                if isinstance(child, Leaf):
                    remembered = self.tree.history(child)
                    past[UserName(child.name)] = Past(child.served, remembered, self.now)
        self.ledger.forget_rates(self.now)
        self._placement.forget()
        self.used.clear()
        tenants = self._tenancy.tenants.values()
        weights = [t.weight for t in tenants]
        weights += [weight for t in tenants for weight in t.user_weights.values()]
        quotas = [scale.quota(pool, quota) for t in tenants for pool, quota in t.quotas.items()]
        amounts = [value for quota in quotas for value in quota.guarantee.values()]
        finest = max([1, *(w.numerator for w in weights), *amounts])
        self.tree = Tree(scale, self.policy, finest, self._placement.fitting)
        self.tree.advance(self.now)

    def resume(self) -> None:
        """Count what lingers again. After all places were taken."""
        for lingering in self._lingering:
            self._linger(lingering, 1, self.now)

    def paused(self, leaf: Leaf) -> bool:
        """Tell whether a user's tenant, or one above it, is paused."""
        name: TenantName | None = leaf.tenant
        while name is not None:
            if self._tenancy.tenants.get(name, _PLAIN).paused:
                return True
            name = self._tenancy.parent_of(name)
        return False

    def _count(self, leaf: Leaf, pool: PoolName, demand: Amounts, sign: int) -> None:
        self.tree.use(leaf, pool, demand, sign)
        add_to(self.used.setdefault((leaf.tenant, pool), {}), demand, sign)

    def _linger(self, lingering: Lingering, sign: int, at: Millis) -> None:
        leaf = self.leaf(lingering.tenant, lingering.user)
        self.tree.use(leaf, lingering.pool, lingering.demand, sign)
        self.tree.linger(leaf, lingering.pool, lingering.demand, sign)
        self.ledger.use(at, (*leaf.account, lingering.pool), lingering.demand, sign)

    def _branch(self, name: TenantName) -> Branch:
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

    def _remind(self, branch: Branch, name: TenantName, user: UserName = ITSELF) -> None:
        """Give a new branch what it remembers from before the tree was made anew."""
        past = self.past.get(name, {}).get(user)
        if past is not None:
            branch.recall(past.served, past.history, past.at)
