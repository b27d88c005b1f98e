"""Conversion of Tenants, Pools and the Policy to the values of the core."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import msgspec
import pytest

from app.core import events, model
from app.core.errors import InvalidInput
from app.core.policy import Mode, Policy, Reclaim, WithinQueue
from app.k8s_types import objects
from app.kube import convert_custom

AT = model.Millis(7)
GPU = model.Resource("nvidia.com/gpu")


def test_tenant() -> None:
    document = {
        "metadata": {
            "name": "team-a",
            "creationTimestamp": "1970-01-01T00:00:01Z",
            "generation": 4,
        },
        "spec": {
            "parent": "research",
            "weight": "2.5",
            "namespaces": ["a", "b"],
            "users": [{"name": "alice", "weight": "3"}, {"name": "bob"}],
            "quotas": [
                {"pool": "h100", "guarantee": {GPU: 8}, "limit": {GPU: "32", "cpu": "1500m"}},
                {"pool": "t4"},
            ],
            "pools": ["h100"],
            "maxPending": 9,
            "paused": True,
        },
        "status": {"pending": 12},
    }
    event = convert_custom.read_tenant(msgspec.convert(document, objects.TenantObject), AT)
    assert event.pending == 12
    assert event.tenant == model.Tenant(
        name=model.TenantName("team-a"),
        created=model.Millis(1000),
        weight=Fraction(5, 2),
        parent=model.TenantName("research"),
        namespaces=("a", "b"),
        user_weights={model.UserName("alice"): Fraction(3), model.UserName("bob"): Fraction(1)},
        pools=(model.PoolName("h100"),),
        quotas={
            model.PoolName("h100"): model.Quota({GPU: 8}, {GPU: 32, model.Resource("cpu"): 1500}),
            model.PoolName("t4"): model.Quota(),
        },
        max_pending=9,
        paused=True,
        generation=4,
    )


def test_pool() -> None:
    document = {
        "metadata": {"name": "h100", "generation": 2},
        "spec": {
            "nodeSelector": {"gpu": "h100"},
            "weights": {"nvidia.com/gpu": "4"},
            "overcommit": {"cpu": "1.2"},
            "placement": "spread",
            "topology": ["zone", "example.com/rack"],
            "gpuMemory": "80Gi",
            "maxCapacity": {"nvidia.com/gpu": 64, "cpu": "1500m"},
        },
        "status": {"capacity": {"nvidia.com/gpu": "8"}},
    }
    event = convert_custom.read_pool(msgspec.convert(document, objects.PoolObject), AT)
    assert event.status_capacity == {"nvidia.com/gpu": 8}
    assert event.pool == model.Pool(
        name=model.PoolName("h100"),
        selector={"gpu": "h100"},
        weights={model.Resource("nvidia.com/gpu"): Fraction(4)},
        overcommit={model.Resource("cpu"): Fraction(6, 5)},
        placement=model.PlacementStrategy.SPREAD,
        topology=("zone", "example.com/rack"),
        gpu_memory=80 * 2**30,
        max_capacity={model.Resource("nvidia.com/gpu"): 64, model.Resource("cpu"): 1500},
        generation=2,
    )


@pytest.mark.parametrize(
    ("spec", "field"),
    [
        ({"gpuMemory": "80GB"}, "gpuMemory"),
        ({"maxCapacity": {"nvidia.com/gpu": "many"}}, "maxCapacity"),
        ({"maxCapacity": {"nvidia.com/gpu": "-1"}}, "maxCapacity"),
    ],
)
def test_a_pool_that_cannot_be_read_is_named_by_the_field(
    spec: dict[str, object], field: str
) -> None:
    document = {"metadata": {"name": "p"}, "spec": spec}
    with pytest.raises(InvalidInput, match=field):
        convert_custom.read_pool(msgspec.convert(document, objects.PoolObject), AT)


@pytest.mark.parametrize("status", [{}, {"capacity": {"nvidia.com/gpu": "many"}}])
def test_missing_or_invalid_capacity_in_the_pool_status_is_unknown(
    status: dict[str, object],
) -> None:
    document = {"metadata": {"name": "p"}, "status": status}
    assert (
        convert_custom.read_pool(msgspec.convert(document, objects.PoolObject), AT).status_capacity
        is None
    )


@pytest.mark.parametrize("weight", ["", "-1", "1e9", "1/3", "nan", "two", "1" * 40])
def test_weight_that_is_no_decimal_is_refused(weight: str) -> None:
    document = {"metadata": {"name": "t"}, "spec": {"weight": weight}}
    with pytest.raises(InvalidInput, match="weight"):
        convert_custom.read_tenant(msgspec.convert(document, objects.TenantObject), AT)


@pytest.mark.parametrize(
    ("quota", "complaint"),
    [
        (
            {"guarantee": {GPU: "many"}},
            "guarantee in pool h100: resource nvidia.com/gpu: 'many' is",
        ),
        ({"limit": {GPU: -1}}, "limit in pool h100: nvidia.com/gpu is negative"),
    ],
)
def test_a_quota_that_is_no_amount_is_refused(quota: dict[str, Any], complaint: str) -> None:
    document = {"metadata": {"name": "t"}, "spec": {"quotas": [{"pool": "h100", **quota}]}}
    with pytest.raises(InvalidInput, match=complaint):
        convert_custom.read_tenant(msgspec.convert(document, objects.TenantObject), AT)


def policy(name: str = "default", **spec: Any) -> events.PolicyObserved | None:
    document = {"metadata": {"name": name, "uid": "u1"}, "spec": spec}
    return convert_custom.read_policy(msgspec.convert(document, objects.PolicyObject), AT)


def test_a_policy_is_read_whole() -> None:
    seen = policy(
        history="0.5",
        halfLife="1h30m",
        minCharge="10s",
        reserveAfter="7m",
        backfill=False,
        reclaim="fair",
        withinQueue="LowerPriority",
        minRuntime="0s",
        gangTimeout="12m",
        schedulingTimeout="20m",
        evictUnowned=True,
        maxUnbound=500,
        maxUnownedUnbound=4,
        mode="Observe",
    )
    assert seen == events.PolicyObserved(
        AT,
        Policy(
            history=Fraction(1, 2),
            half_life=model.Millis(5_400_000),
            min_charge=model.Millis(10_000),
            reserve_after=model.Millis(420_000),
            backfill=False,
            reclaim=Reclaim.FAIR,
            within_queue=WithinQueue.LOWER_PRIORITY,
            min_runtime=model.Millis(0),
            gang_timeout=model.Millis(720_000),
            scheduling_timeout=model.Millis(1_200_000),
            evict_unowned=True,
            max_unbound=500,
            max_unowned_unbound=4,
            mode=Mode.OBSERVE,
        ),
        uid="u1",
    )


def test_absent_fields_of_a_policy_are_the_defaults_of_the_core() -> None:
    assert policy() == events.PolicyObserved(AT, Policy(), has_mode=False, uid="u1")


def test_a_policy_by_another_name_does_not_count() -> None:
    assert policy("other", backfill=False) is None


def test_half_life_of_zero_counts_as_one_millisecond() -> None:
    seen = policy(halfLife="0s")
    assert seen is not None
    assert seen.policy.half_life == 1


@pytest.mark.parametrize(
    ("field", "written"),
    [
        ("history", "-1"),
        ("history", "1e9"),
        ("halfLife", ""),
        ("halfLife", "4"),
        ("minCharge", "5m1h"),
        ("reserveAfter", "1.5h"),
        ("minRuntime", "1234567s"),
        ("reclaim", "Fair"),
        ("withinQueue", "never"),
        ("gangTimeout", "later"),
        ("maxUnbound", 0),
        ("maxUnownedUnbound", -1),
        ("schedulingTimeout", "soon"),
        ("mode", "observe"),
    ],
)
def test_a_field_that_cannot_be_read_is_named(field: str, written: str) -> None:
    with pytest.raises(InvalidInput, match=f"^{field}: '{written}' is "):
        policy(**{field: written})
