"""Which tenant a namespace belongs to.

One rule for the webhook and the leader: the oldest Tenant that names a namespace has it; a
namespace nobody names is a tenant of its own under `default`.
"""

from __future__ import annotations

from app.core.model import DEFAULT_TENANT, UNMAPPED_PREFIX, Tenant, TenantName


class Tenancy:
    """The Tenants as last observed, and whose a namespace is. Order of arrival does not matter."""

    def __init__(self) -> None:
        self.tenants: dict[TenantName, Tenant] = {}
        self._claims: dict[str, set[TenantName]] = {}

    def put(self, tenant: Tenant) -> None:
        """Add a Tenant, or replace what was known of it."""
        self.drop(tenant.name)
        self.tenants[tenant.name] = tenant
        for namespace in tenant.namespaces:
            self._claims.setdefault(namespace, set()).add(tenant.name)

    def drop(self, name: TenantName) -> None:
        """Forget a Tenant; harmless if it is unknown."""
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

    def parent_of(self, name: TenantName) -> TenantName | None:
        """Return the parent of a tenant; None at the top level.

        A parent that does not exist, or that would close a circle, counts as none.
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
        """Return a tenant and all above it, from below."""
        path = [name]
        while (above := self.parent_of(path[-1])) is not None:
            path.append(above)
        return path

    def disputed(self, name: TenantName) -> tuple[str, ...]:
        """Return the namespaces a Tenant names but that an older one has."""
        tenant = self.tenants[name]
        return tuple(ns for ns in tenant.namespaces if self.tenant_of(ns) != name)
