"""The condition of a Tenant about its quotas."""

from __future__ import annotations

from dataclasses import replace

import pytest

from app.controller.status_conditions import StatusCondition, tenant_status
from app.core.explain.quota_faults import QuotaFaults
from app.core.model import PoolName, TenantName
from app.web.api.tenants import ABSENT_TENANT

H100, A100 = PoolName("h100"), PoolName("a100")
PARENT, TOP = TenantName("parent"), TenantName("top")


def condition(found: QuotaFaults | None) -> StatusCondition:
    """Return the condition of a tenant with these faults."""
    return tenant_status(replace(ABSENT_TENANT, quota_faults=found), set()).conditions[-1]


def test_messages_escape_hidden_characters() -> None:
    found = condition(QuotaFaults((PoolName("a\u202e\x1b[31m"),), ()))
    assert found.to_api()["message"].startswith(r"pool a\u202e\u001b[31m does not exist")


def test_quotas_without_a_fault_are_in_force() -> None:
    found = condition(None)
    assert (found.condition_type, found.is_true, found.reason) == ("QuotasInForce", True, "InForce")


@pytest.mark.parametrize(
    ("faults", "reason", "message"),
    [
        (QuotaFaults((H100,), ()), "PoolMissing", "pool h100 does not exist"),
        (QuotaFaults((A100, H100), ()), "PoolMissing", "pools a100, h100 do not exist"),
        (
            QuotaFaults((), ((H100, PARENT),)),
            "GuaranteeNotCovered",
            "tenant parent above it guarantees less in pool h100, so the rest of its guarantee "
            "there does not count outside that tenant",
        ),
        (
            QuotaFaults((), ((A100, PARENT), (H100, TOP))),
            "GuaranteeNotCovered",
            "tenants parent, top above it guarantee less in pools a100, h100, so the rest of its "
            "guarantee there does not count outside those tenants",
        ),
        (
            QuotaFaults((A100,), ((H100, TOP),)),
            "PoolMissing",
            "pool a100 does not exist; tenant top above it guarantees less in pool h100, so the "
            "rest of its guarantee there does not count outside that tenant",
        ),
    ],
)
def test_the_condition_names_pools_and_tenants(
    faults: QuotaFaults, reason: str, message: str
) -> None:
    found = condition(faults)
    assert (found.is_true, found.reason, found.message) == (False, reason, message)


def test_without_a_valid_parent_no_quota_is_in_force() -> None:
    fault = "the parent x of tenant a does not exist"
    found = tenant_status(replace(ABSENT_TENANT, parent_fault=fault), set()).conditions[-1]
    assert (found.condition_type, found.is_true, found.reason) == (
        "QuotasInForce",
        False,
        "ParentMissing",
    )
