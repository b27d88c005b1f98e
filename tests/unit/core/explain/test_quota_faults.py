"""Quotas without their full effect."""

from __future__ import annotations

from app.core.engine import Engine
from app.core.events import TenantObserved
from app.core.explain.quota_faults import QuotaFaults, quota_faults
from app.core.fairshare.tenants import TenantDirectory
from app.core.model import Millis, PoolName, Quota, Resource, Tenant, TenantName
from app.core.quantities import ManagedResources

GPU = Resource("nvidia.com/gpu")
H100 = PoolName("h100")


def tenant(name: str, guarantee: int = 0, parent: str | None = None, pool: str = H100) -> Tenant:
    above = TenantName(parent) if parent is not None else None
    quotas = {PoolName(pool): Quota(guarantee={GPU: guarantee})} if guarantee else {}
    return Tenant(TenantName(name), Millis(0), parent=above, quotas=quotas)


def faults(checked: Tenant, *others: Tenant) -> QuotaFaults | None:
    tenancy = TenantDirectory()
    for each in (checked, *others):
        tenancy.add_tenant(each)
    return quota_faults(checked, tenancy, {H100})


def test_a_pool_that_does_not_exist_is_found() -> None:
    assert faults(tenant("a", 8, pool="h10")) == QuotaFaults((PoolName("h10"),), ())
    assert faults(tenant("a", 8)) is None


def test_each_tenant_above_must_guarantee_as_much() -> None:
    child = tenant("child", 8, "parent")
    assert faults(child, tenant("parent", 8)) is None
    assert faults(child, tenant("parent", 8, "top"), tenant("top", 16)) is None
    short = QuotaFaults((), ((H100, TenantName("parent")),))
    assert faults(child, tenant("parent")) == short
    assert faults(child, tenant("parent", 7)) == short
    above = faults(child, tenant("parent", 8, "top"), tenant("top", 4))
    assert above == QuotaFaults((), ((H100, TenantName("top")),))


def test_the_view_of_a_tenant_has_its_faults() -> None:
    engine = Engine(ManagedResources([GPU]))
    engine.handle(TenantObserved(Millis(0), tenant("a", 8)))
    found = engine.queries.view().tenants[TenantName("a")]
    assert found.quota_faults == QuotaFaults((H100,), ())
