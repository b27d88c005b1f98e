"""Which rights a change of a Tenant needs: the rule that the policy fairgate-tenants says in CEL.

Pure: asks nobody. Specs are the JSON of the resource; what is written in two ways is the same.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from app.core.errors import InvalidQuantity
from app.core.resources import amounts

Spec = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Grant:
    """A right on Tenants: `update` of all of them, of one, or of the users of one."""

    name: str = ""
    subresource: str = ""


def grants(name: str, before: Spec | None, after: Spec | None) -> tuple[Grant, ...]:
    """Return all the rights that a change needs; none: it changes nothing.

    `before` is None at create, `after` at delete: then it is for whoever governs the parent, the
    users along with the rest.
    """
    if before is None or after is None:
        return (above(after if before is None else before),)
    old, new = meaning(before), meaning(after)
    found: list[Grant] = []
    if _without_users(old) != _without_users(new):
        found += [above(before), above(after)]
    if old.get("users") != new.get("users"):
        found.append(Grant(name, "users"))
    return tuple(dict.fromkeys(found))


def above(spec: Spec | None) -> Grant:
    """Return the right on what is above a tenant; at top level, on all tenants."""
    return Grant(str((spec or {}).get("parent") or ""))


def meaning(spec: Spec) -> dict[str, Any]:
    """Return a spec so that two of them are equal if they mean the same."""
    # `0 in (False,)` is true in Python, and a maxPending of 0 is far from none.
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
    # A decimal: the resource's schema takes nothing else, and neither do the routes.
    return Fraction(str(written)) if written is not None else Fraction(1)


def _amounts(written: Any) -> Any:
    try:
        return amounts(written or {})
    except InvalidQuantity:
        return written  # the API server will say so
