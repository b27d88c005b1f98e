"""Permissions that a change of a Tenant needs; the policy fairgate-tenants has this rule in CEL.

Specs are the JSON of the resource. Two notations with the same meaning count as equal.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from app.core.errors import InvalidQuantity
from app.core.quantities import parse_amounts

TenantSpecMap = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class TenantPermission:
    """A permission on Tenants: `update` of all Tenants, of one, or of the users of one."""

    name: str = ""
    subresource: str = ""


def required_permissions(
    name: str, before: TenantSpecMap | None, after: TenantSpecMap | None
) -> tuple[TenantPermission, ...]:
    """Return all permissions that a change needs; empty if it has no effect.

    `before` is None at create, `after` at delete. Both need the permission on the parent, which
    covers the users. A namespace that a tenant gains may be another tenant's, so this needs the
    permission on all tenants.
    """
    if before is None or after is None:
        return (parent_permission(after if before is None else before),)
    old, new = normalized_spec(before), normalized_spec(after)
    found: list[TenantPermission] = []
    if not set(new.get("namespaces", ())) <= set(old.get("namespaces", ())):
        found.append(TenantPermission())
    elif _without_users(old) != _without_users(new):
        found += [parent_permission(before), parent_permission(after)]
    if old.get("users") != new.get("users"):
        found.append(TenantPermission(name, "users"))
    return tuple(dict.fromkeys(found))


def parent_permission(spec: TenantSpecMap | None) -> TenantPermission:
    """Return the permission on the parent of a tenant; at top level, on all tenants."""
    return TenantPermission(str((spec or {}).get("parent") or ""))


def normalized_spec(spec: TenantSpecMap) -> dict[str, Any]:
    """Return a normalized spec, so that specs with the same meaning are equal."""
    # `0 in (False,)` is true in Python, but a maxPending of 0 is not the same as no maxPending.
    kept = {key: value for key, value in spec.items() if value is not False}
    meant = {key: value for key, value in kept.items() if value not in (None, [], {})}
    meant["weight"] = _weight(spec.get("weight"))
    for key in ("namespaces", "pools"):
        if key in meant:
            meant[key] = sorted(map(str, meant[key]))
    if "users" in meant:
        meant["users"] = {each["name"]: _weight(each.get("weight")) for each in meant["users"]}
    if "quotas" in meant:
        meant["quotas"] = {
            each["pool"]: [_amounts(each.get(key)) for key in ("guarantee", "limit")]
            for each in meant["quotas"]
        }
    return meant


def _without_users(meant: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in meant.items() if key != "users"}


def _weight(written: Any) -> Fraction:
    # A decimal: the schema of the resource and the routes accept no other form.
    return Fraction(str(written)) if written is not None else Fraction(1)


def _amounts(written: Any) -> Any:
    try:
        return parse_amounts(written or {})
    except InvalidQuantity:
        return written  # the API server reports the error
