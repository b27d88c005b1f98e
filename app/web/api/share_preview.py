"""Preview of the shares by weight after a change of a tenant (`dryRun`)."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from fractions import Fraction

from app.core.explain.entitlements import Standing, shares_by_weight
from app.core.explain.queries import EngineQueries
from app.core.fairshare.live_usage import TENANT_ITSELF
from app.core.model import TenantName, UserName
from app.web.api.formatting import decimal
from app.web.api.schemas import ShareChange, TenantSpecModel, TenantWritten

MOST_SHOWN = 500
_ONE = Fraction(1)


def share_changes(
    queries: EngineQueries,
    before: TenantWritten | None,
    after: TenantWritten | None,
    visible_tenants: Collection[str],
    visible_users: Collection[str] | None,
) -> list[ShareChange]:
    """Return the shares by weight that change, as if all tenants and users had requests.

    Users with a configured weight, with usage or with pending pods count. Only `visible_tenants`
    are named. Users of other tenants are not named, and of this tenant only `visible_users` (None:
    all).
    """
    now = _standings(queries)
    named = before or after
    assert named is not None, "a change of nothing"
    name = TenantName(named.name)
    busy = [each.name for each in queries.user_views(name) if each.pending or each.used]
    known = now.pop(name, None)
    old, new = dict(now), dict(now)
    if before is not None:
        old[name] = _standing(before, busy)
    elif known is not None:
        old[name] = known  # a namespace without a Tenant object
    if after is not None:
        new[name] = _standing(after, busy)
    was, will_be = shares_by_weight(old), shares_by_weight(new)
    shown = {
        (tenant, user)
        for tenant, user in was.keys() | will_be.keys()
        if (user == TENANT_ITSELF and tenant in visible_tenants)
        or (tenant == name and (visible_users is None or user in visible_users))
    }
    changed = sorted(key for key in shown if was.get(key) != will_be.get(key))
    return [
        ShareChange(
            tenant=tenant,
            user=None if user == TENANT_ITSELF else user,
            before=_text(was.get((tenant, user))),
            after=_text(will_be.get((tenant, user))),
        )
        for tenant, user in changed[:MOST_SHOWN]
    ]


def _standings(queries: EngineQueries) -> dict[TenantName, Standing]:
    """Return the current tenants. A parent without a Tenant object has weight 1."""
    found = {
        name: Standing(
            each.parent, each.weight, {u.name: u.weight for u in queries.user_views(name)}
        )
        for name, each in queries.view().tenants.items()
    }
    parents = {each.parent for each in found.values() if each.parent is not None}
    return {name: Standing(None, _ONE) for name in parents if name not in found} | found


def _standing(spec: TenantSpecModel, busy: Iterable[UserName]) -> Standing:
    users = dict.fromkeys(busy, _ONE)
    users |= {UserName(each.name): Fraction(each.weight) for each in spec.users}
    parent = TenantName(spec.parent) if spec.parent else None
    return Standing(parent, Fraction(spec.weight), users)


def _text(part: Fraction | None) -> str | None:
    return None if part is None else decimal(part)
