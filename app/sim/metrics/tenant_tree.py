"""Tenant tree, for sums over subtrees and for the entitled share of each tenant."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from fractions import Fraction

from app.core.model import Tenant, TenantName, UserName

ROOT: TenantName | None = None
"""Parent of the top-level tenants."""


class TenantTree:
    """Tenants by name, with their parents and children."""

    def __init__(self, tenants: Iterable[Tenant]) -> None:
        self._tenants = {tenant.name: tenant for tenant in tenants}
        self._children: dict[TenantName | None, list[TenantName]] = {}
        for tenant in self._tenants.values():
            self._children.setdefault(tenant.parent, []).append(tenant.name)

    def subtree(self, name: TenantName) -> list[TenantName]:
        """Return a tenant and all its descendants."""
        found = [name]
        for each in found:
            found += self._children.get(each, [])
        return found

    def lineage(self, name: TenantName) -> list[TenantName]:
        """Return a tenant and all its ancestors, the tenant first."""
        found = [name]
        while (above := self._tenants[found[-1]].parent) is not None:
            found.append(above)
        return found

    def depth(self, name: TenantName) -> int:
        """Return the number of ancestors of a tenant."""
        return len(self.lineage(name)) - 1

    def parents_first(self) -> list[TenantName]:
        """Return all tenants in the order given, each before its children."""
        found: list[TenantName] = []
        ahead = self._children.get(ROOT, [])[::-1]
        while ahead:
            found.append(ahead.pop())
            ahead += self._children.get(found[-1], [])[::-1]
        return found

    def entitled_parts(
        self, users: Mapping[TenantName, Collection[UserName]]
    ) -> Mapping[TenantName, Fraction]:
        """Return the part of the cluster that each tenant is entitled to for its own users.

        If a parent has users of its own, they share with its children as a sibling.
        """
        parts: dict[TenantName | None, Fraction] = {ROOT: Fraction(1)}
        owed: dict[TenantName, Fraction] = {}
        for above in [ROOT, *self.parents_first()]:
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
                # A tenant without children or users still counts in the fairness index.
                owed[above] = parts[above] * own / whole if children and whole else parts[above]
        return owed

    def sum_guarantees(self, own: Mapping[TenantName, int]) -> int:
        """Return the sum of all guarantees, given each tenant's own.

        The guarantee of a tenant covers those of its children; only their excess is added.
        """
        below = dict.fromkeys([ROOT, *self._tenants], 0)
        for name in reversed(self.parents_first()):
            below[self._tenants[name].parent] += max(own.get(name, 0), below[name])
        return below[ROOT]
