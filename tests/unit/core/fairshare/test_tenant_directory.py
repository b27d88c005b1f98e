"""The oldest Tenant that lists a namespace owns it."""

from __future__ import annotations

from itertools import pairwise

import pytest

from app.core.fairshare.tenants import TenantDirectory
from app.core.model import Millis, Tenant, TenantName


@pytest.mark.parametrize("route", [("a", "b"), ("b", "a")])
def test_namespace_that_moves_between_tenants_always_has_one_of_them(
    route: tuple[str, str],
) -> None:
    """Without a tenant, no limit applies to its waiting pods."""

    def tenant(name: str, *namespaces: str) -> Tenant:
        return Tenant(TenantName(name), created=Millis(ord(name)), namespaces=namespaces)

    old, new = route
    known, owners = TenantDirectory(), []
    for step in (tenant(old, "x"), tenant(new, "x"), tenant(old)):
        known.add_tenant(step)
        owners.append(known.tenant_of("x"))
    assert (owners[0], owners[-1]) == route
    assert sum(before != after for before, after in pairwise(owners)) == 1
