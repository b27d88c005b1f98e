"""The tenant of a namespace.

The webhook and the leader use one rule: the oldest Tenant that names a namespace owns it. A
namespace without a Tenant is its own tenant under `default`.
"""

from __future__ import annotations

from app.core.model import DEFAULT_TENANT, UNMAPPED_PREFIX, Tenant, TenantName


class TenantDirectory:
    """The observed Tenants and the owner of each namespace. The order of events does not matter."""

    def __init__(self) -> None:
        self.tenants: dict[TenantName, Tenant] = {}
        self._claims: dict[str, set[TenantName]] = {}

    def add_tenant(self, tenant: Tenant) -> None:
        """Add or replace a Tenant."""
        self.drop(tenant.name)
        self.tenants[tenant.name] = tenant
        for namespace in tenant.namespaces:
            self._claims.setdefault(namespace, set()).add(tenant.name)

    def drop(self, name: TenantName) -> None:
        """Remove a Tenant. An unknown name is ignored."""
        known = self.tenants.pop(name, None)
        for namespace in known.namespaces if known else ():
            claims = self._claims[namespace]
            claims.discard(name)
            if not claims:
                del self._claims[namespace]

    def tenant_of(self, namespace: str) -> TenantName:
        """Return the tenant that owns a namespace; never fails."""
        claims = self._claims.get(namespace)
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

        A parent that does not exist, or that would close a cycle, counts as None.
        """
        tenant = self.tenants.get(name)
        if tenant is None:
            return DEFAULT_TENANT if name.startswith(UNMAPPED_PREFIX) else None
        seen = {name}
        above = tenant.parent
        while above is not None and above in self.tenants:
            if above in seen:
                return None
            seen.add(above)
            above = self.tenants[above].parent
        exists = tenant.parent in self.tenants or tenant.parent == DEFAULT_TENANT
        return tenant.parent if exists else None

    def lineage(self, name: TenantName) -> list[TenantName]:
        """Return a tenant and all its ancestors, from the bottom up."""
        path = [name]
        while (above := self.parent_of(path[-1])) is not None:
            path.append(above)
        return path

    def disputed(self, name: TenantName) -> tuple[str, ...]:
        """Return the namespaces that a Tenant names but an older Tenant owns."""
        tenant = self.tenants[name]
        return tuple(ns for ns in tenant.namespaces if self.tenant_of(ns) != name)
