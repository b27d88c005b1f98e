"""The tenant of a namespace.

The webhook and the leader use one rule: the oldest Tenant that names a namespace owns it. A
namespace without a Tenant is its own tenant under `default`.
"""

from __future__ import annotations

from dataclasses import dataclass

from app.core.model import DEFAULT_TENANT, UNMAPPED_PREFIX, Tenant, TenantName

MAX_DEPTH = 50
"""Maximum number of Tenants from the top level down to one. Many rules visit each one."""


@dataclass(frozen=True, slots=True)
class ParentFault:
    """A tenant or its ancestor has no valid parent. A cluster admin can apply `remedy`."""

    reason: str
    remedy: str


class TenantDirectory:
    """The observed Tenants and the owner of each namespace. The order of events does not matter."""

    def __init__(self) -> None:
        self.tenants: dict[TenantName, Tenant] = {}
        self._names_by_namespace: dict[str, set[TenantName]] = {}
        self._orphans: frozenset[TenantName] | None = None
        """Cached until a Tenant changes. The cost of a tenant is linear in its depth."""

    def add_tenant(self, tenant: Tenant) -> None:
        """Add or replace a Tenant."""
        self.drop_tenant(tenant.name)
        self.tenants[tenant.name] = tenant
        self._orphans = None
        for namespace in tenant.namespaces:
            self._names_by_namespace.setdefault(namespace, set()).add(tenant.name)

    def drop_tenant(self, name: TenantName) -> None:
        """Remove a Tenant. An unknown name is ignored."""
        known = self.tenants.pop(name, None)
        self._orphans = None
        for namespace in known.namespaces if known else ():
            claims = self._names_by_namespace[namespace]
            claims.discard(name)
            if not claims:
                del self._names_by_namespace[namespace]

    def tenant_of(self, namespace: str) -> TenantName:
        """Return the tenant that owns a namespace; never fails."""
        claims = self._names_by_namespace.get(namespace)
        if not claims:
            return TenantName(UNMAPPED_PREFIX + namespace)
        if len(claims) == 1:
            return next(iter(claims))
        return min(claims, key=lambda name: (self.tenants[name].created, name))

    def exists(self, name: TenantName) -> bool:
        """Return whether a tenant exists, as a resource or for an unmapped namespace."""
        if name.startswith(UNMAPPED_PREFIX):
            return self.tenant_of(name.removeprefix(UNMAPPED_PREFIX)) == name
        return name in self.tenants or name == DEFAULT_TENANT

    def parent_of(self, name: TenantName) -> TenantName | None:
        """Return the parent of a tenant. None at the top level.

        A parent that does not exist, leads into a cycle, or is too deep, counts as None.
        """
        tenant = self.tenants.get(name)
        if tenant is None:
            return DEFAULT_TENANT if name.startswith(UNMAPPED_PREFIX) else None
        if tenant.parent is None or name in self._find_orphans():
            return None
        return tenant.parent

    def parent_fault(self, name: TenantName) -> ParentFault | None:
        """Return why a tenant or a tenant above it has no valid parent; None if each has one."""
        orphans = self._find_orphans()
        top = self.lineage(name)[-1] if orphans else name
        if top not in orphans:
            return None
        parent = self.tenants[top].parent
        if not self._may_be_parent(parent):
            return ParentFault(
                f"the parent {parent} of tenant {top} does not exist",
                f"creating tenant {parent}, or giving tenant {top} another parent",
            )
        seen: set[TenantName | None] = set()
        while parent in self.tenants and parent not in seen:
            seen.add(parent)
            parent = self.tenants[parent].parent
        if parent in seen:
            return ParentFault(
                f"the tenants above tenant {top} form a circle",
                f"giving tenant {parent} another parent",
            )
        return ParentFault(
            f"more than {MAX_DEPTH - 1} tenants are above tenant {top}",
            f"giving tenant {top} a parent with fewer tenants above it",
        )

    def lineage(self, name: TenantName) -> list[TenantName]:
        """Return a tenant and all its ancestors, from the bottom up."""
        path = [name]
        while (above := self.parent_of(path[-1])) is not None:
            path.append(above)
        return path

    def disputed_namespaces(self, name: TenantName) -> tuple[str, ...]:
        """Return the namespaces that a Tenant names but an older Tenant owns."""
        tenant = self.tenants[name]
        return tuple(ns for ns in tenant.namespaces if self.tenant_of(ns) != name)

    def _find_orphans(self) -> frozenset[TenantName]:
        """Return the tenants that are too deep, or have a parent that does not exist or cycles."""
        if self._orphans is None:
            depths: dict[TenantName | None, int] = {}
            for name in self.tenants:
                path: dict[TenantName, None] = {}
                at: TenantName | None = name
                while at in self.tenants and at not in depths and at not in path:
                    path[at] = None
                    at = self.tenants[at].parent
                depth = MAX_DEPTH if at in path else depths.get(at, 0)
                for number, each in enumerate(reversed(path), 1):
                    depths[each] = depth + number
            self._orphans = frozenset(
                name
                for name, tenant in self.tenants.items()
                if depths[name] > MAX_DEPTH or not self._may_be_parent(tenant.parent)
            )
        return self._orphans

    def _may_be_parent(self, name: TenantName | None) -> bool:
        return name is None or name in self.tenants or name == DEFAULT_TENANT
