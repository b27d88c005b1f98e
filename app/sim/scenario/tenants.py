"""Tenants of a scenario file. Each has one namespace of the same name."""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction

from app.core.model import (
    UNMAPPED_PREFIX,
    Amounts,
    Millis,
    PoolName,
    Quota,
    Resource,
    Tenant,
    TenantName,
    UserName,
)
from app.core.quantities import format_amount
from app.sim.scenario import value_parsers
from app.sim.scenario.scenario_cluster import read_amounts
from app.sim.scenario.yaml_document import YamlMap, YamlValue

_TENANT_FIELDS = (
    "name",
    "weight",
    "parent",
    "guarantee",
    "limit",
    "quotas",
    "users",
    "pools",
    "paused",
)


class TenantsReader:
    """Reads `tenants`, and notes mistakes in the sheet.

    `offers` is the capacity of every pool; empty if unknown. `counted` are the resources that may
    have quotas.
    """

    def __init__(
        self,
        document: YamlMap,
        offers: Mapping[PoolName, Amounts],
        counted: frozenset[Resource],
    ) -> None:
        self._document = document
        self._offers = offers
        self._counted = counted
        self._tenants: dict[TenantName, tuple[Tenant, YamlMap]] = {}

    def read(self) -> tuple[Tenant, ...]:
        """Return the tenants of the document."""
        for spot in self._document.items("tenants"):
            self._read_tenant(spot)
        for tenant, record in self._tenants.values():
            if tenant.parent is not None and tenant.parent not in self._tenants:
                record.fields["parent"].add_mistake(
                    f"there is no tenant {tenant.parent}"
                    f"{value_parsers.did_you_mean(tenant.parent, self._tenants)}; "
                    "write one that is listed."
                )
        self._check_cycles()
        return tuple(tenant for tenant, _ in self._tenants.values())

    def _read_tenant(self, spot: YamlValue) -> None:
        record = spot.read_map(_TENANT_FIELDS, ("name",))
        name = TenantName(record.read("name", value_parsers.name, ""))
        if name in self._tenants:
            record.fields["name"].add_mistake(
                f"there is a tenant {name} already; give it another name."
            )
            return
        if name.startswith(UNMAPPED_PREFIX):
            record.fields["name"].add_mistake(
                f"names that begin with {UNMAPPED_PREFIX} are kept for namespaces without a "
                "tenant; write another name."
            )
        parent = record.read("parent", value_parsers.name, None)
        tenant = Tenant(
            name=name,
            created=Millis(0),
            weight=record.read("weight", value_parsers.decimal, Fraction(1)),
            parent=None if parent is None else TenantName(parent),
            namespaces=(name,),
            user_weights=_users(record),
            pools=self._pools(record),
            quotas=self._quotas(record),
            paused=record.read("paused", value_parsers.switch, False),
        )
        self._tenants[name] = tenant, record

    def _quotas(self, record: YamlMap) -> dict[PoolName, Quota]:
        quotas: dict[PoolName, Quota] = {}
        for spot in record.items("quotas"):
            quota = spot.read_map(("pool", "guarantee", "limit"), ("pool",))
            if "pool" in quota:
                pool = self._pool(quota.fields["pool"])
                if pool in quotas:
                    spot.add_mistake(f"pool {pool} has a quota already; leave one out.")
                quotas[pool] = self._quota(quota, pool)
        direct = [field for field in ("guarantee", "limit") if field in record]
        if not direct or not self._offers:
            return quotas
        if len(self._offers) != 1:
            record.fields[direct[0]].add_mistake(
                f"there are several pools; write quotas: [{{pool: .., {direct[0]}: ..}}] instead."
            )
            return quotas
        if quotas:
            record.fields["quotas"].add_mistake(
                f"{direct[0]} is written as well; leave one of them out."
            )
        (pool,) = self._offers
        return {pool: self._quota(record, pool)}

    def _quota(self, record: YamlMap, pool: PoolName) -> Quota:
        guarantee = self._amounts(record, "guarantee", pool)
        limit = self._amounts(record, "limit", pool)
        for resource, least in guarantee.items():
            most = limit.get(resource)
            if most is not None and least > most:
                record.fields["guarantee"].add_mistake(
                    f"{format_amount(resource, least)} {resource} are more than the limit of "
                    f"{format_amount(resource, most)}; lower the guarantee or raise the limit."
                )
        return Quota(guarantee, limit)

    def _amounts(self, record: YamlMap, field: str, pool: PoolName) -> dict[Resource, int]:
        entries = record.entries(field)
        offered = self._offers.get(pool, {})
        for name, spot in entries.items():
            if name not in offered and pool in self._offers:
                hint = value_parsers.did_you_mean(name, offered)
                spot.add_mistake(
                    f"pool {pool} has no {name}{hint}; name a resource of its capacity."
                )
            elif name in offered and name not in self._counted:
                spot.add_mistake(f"{name} is not managed, so no {field} counts; add it to managed.")
        return read_amounts(entries)

    def _pools(self, record: YamlMap) -> tuple[PoolName, ...]:
        """Return the pools that a tenant may use. Unknown pools are noted and left out."""
        named = [self._pool(spot) for spot in record.items("pools")]
        return tuple(pool for pool in named if pool in self._offers)

    def _pool(self, spot: YamlValue) -> PoolName:
        return known_pool(spot, self._offers)

    def _check_cycles(self) -> None:
        told: set[TenantName] = set()
        for start, (_, record) in self._tenants.items():
            walked = [start]
            while (above := self._parent(walked[-1])) is not None and above not in walked:
                walked.append(above)
            if above == start and start not in told:
                told.update(walked)
                record.fields["parent"].add_mistake(
                    f"the parents {' -> '.join([*walked, start])} are a circle; leave one out."
                )

    def _parent(self, name: TenantName) -> TenantName | None:
        found = self._tenants.get(name)
        return found[0].parent if found else None


def known_pool(spot: YamlValue, offers: Mapping[PoolName, Amounts]) -> PoolName:
    """Return the name of a pool. A name that is not in `offers` is noted, unless that is empty."""
    name = spot.read(value_parsers.name, "")
    if name and offers and name not in offers:
        hint = value_parsers.did_you_mean(name, offers)
        spot.add_mistake(f"there is no pool {name}{hint}; the pools are {', '.join(offers)}.")
    return PoolName(name)


def _users(record: YamlMap) -> dict[UserName, Fraction]:
    weights: dict[UserName, Fraction] = {}
    for spot in record.items("users"):
        user = spot.read_map(("name", "weight"), ("name",))
        name = UserName(user.read("name", value_parsers.name, ""))
        if name in weights:
            user.fields["name"].add_mistake(f"there is a user {name} already; leave one out.")
        weights[name] = user.read("weight", value_parsers.decimal, Fraction(1))
    return weights
