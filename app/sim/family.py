"""The tree of tenants, for sums over it and for what each is owed of the whole."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from fractions import Fraction

from app.core.model import Tenant, TenantName, UserName

ROOT: TenantName | None = None
"""Above the tenants that have no parent."""


class Family:
    """Tenants by name, each with those below and above it."""

    def __init__(self, tenants: Iterable[Tenant]) -> None:
        self._tenants = {tenant.name: tenant for tenant in tenants}
        self._children: dict[TenantName | None, list[TenantName]] = {}
        for tenant in self._tenants.values():
            self._children.setdefault(tenant.parent, []).append(tenant.name)

    def below(self, name: TenantName) -> list[TenantName]:
        """Return a tenant and all that are below it."""
        found = [name]
        for each in found:
            found += self._children.get(each, [])
        return found

    def path(self, name: TenantName) -> list[TenantName]:
        """Return a tenant and all that are above it, itself first."""
        found = [name]
        while (above := self._tenants[found[-1]].parent) is not None:
            found.append(above)
        return found

    def depth(self, name: TenantName) -> int:
        """Return how many tenants are above one."""
        return len(self.path(name)) - 1

    def in_order(self) -> list[TenantName]:
        """Return all tenants, each before its children, as written."""
        found: list[TenantName] = []
        ahead = self._children.get(ROOT, [])[::-1]
        while ahead:
            found.append(ahead.pop())
            ahead += self._children.get(found[-1], [])[::-1]
        return found

    def weights(
        self, users: Mapping[TenantName, Collection[UserName]]
    ) -> Mapping[TenantName, Fraction]:
        """Return what part of the cluster each tenant is owed for the work of its own users.

        A parent whose own users submit shares with its children as their sibling.
        """
        parts: dict[TenantName | None, Fraction] = {ROOT: Fraction(1)}
        owed: dict[TenantName, Fraction] = {}
        for above in [ROOT, *self.in_order()]:
            children = self._children.get(above, [])
            siblings = {name: self._tenants[name].weight for name in children}
            own = Fraction(0)
            if above is not None:
                weighed = self._tenants[above].user_weights
                own = sum((weighed.get(u, Fraction(1)) for u in users[above]), Fraction(0))
            whole = sum(siblings.values(), own)
            for name, weight in siblings.items():
                parts[name] = parts[above] * weight / whole if whole else Fraction(0)
            if above is not None:
                # Without children or users it still is one of those that are to be equal.
                owed[above] = parts[above] * own / whole if children and whole else parts[above]
        return owed

    def promised(self, own: Mapping[TenantName, int]) -> int:
        """Return what all guarantees together promise, given each tenant's own.

        The guarantee of a tenant covers those of its children; what they have beyond it adds up.
        """
        below = dict.fromkeys([ROOT, *self._tenants], 0)
        for name in reversed(self.in_order()):
            below[self._tenants[name].parent] += max(own.get(name, 0), below[name])
        return below[ROOT]
