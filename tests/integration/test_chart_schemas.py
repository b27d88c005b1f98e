"""The CRD schemas of Tenant, Pool and Policy: accepted values, refused values, printed columns."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator

import pytest

from app.core.errors import ClusterError
from app.devcluster.cluster import LocalCluster
from tests.support.chart import Object, make, make_ours

QUOTA = {"pool": "h100", "guarantee": {"nvidia.com/gpu": 8}, "limit": {"nvidia.com/gpu": 32}}

GOOD = [
    ("Tenant", "bare", {}),
    ("Tenant", "weightless", {"weight": "0"}),
    ("Tenant", "exponents", {"quotas": [{"pool": "p", "limit": {"nvidia.com/gpu": "1e1"}}]}),
    (
        "Tenant",
        "full",
        {
            "parent": "research",
            "weight": "2.5",
            "namespaces": ["team-a", "team-a-dev"],
            "users": [
                {"name": "alice@example.com", "weight": "0.000001"},
                {"name": "bob"},
                {"name": "...", "weight": "2"},
            ],
            "quotas": [QUOTA, {"pool": "t4", "guarantee": {"cpu": "1500m"}, "limit": {"cpu": 2}}],
            "pools": ["h100", "t4"],
            "maxPending": 500,
            "paused": True,
        },
    ),
    ("Tenant", "equal", {"quotas": [{**QUOTA, "guarantee": {"nvidia.com/gpu": "32"}}]}),
    (
        "Tenant",
        "spelled-otherwise",
        {"quotas": [{"pool": "p", "guarantee": {"cpu": 8}, "limit": {"cpu": "8000m"}}]},
    ),
    ("Tenant", "unlimited", {"quotas": [{**QUOTA, "guarantee": {"memory": "1Ti"}}]}),
    ("Pool", "bare", {}),
    (
        "Pool",
        "full",
        {
            "nodeSelector": {"nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3"},
            "weights": {"nvidia.com/gpu": "4"},
            "overcommit": {"cpu": "1.2"},
            "placement": "spread",
            "topology": ["topology.kubernetes.io/zone", "example.com/rack"],
            "gpuMemory": "80Gi",
            "tolerations": [{"key": "nvidia.com/gpu", "operator": "Exists"}],
            "maxCapacity": {"nvidia.com/gpu": 64},
            "paused": False,
        },
    ),
    ("Policy", "default", {}),
    (
        "Policy",
        "default",
        {
            "history": "0.5",
            "halfLife": "1h30m",
            "minCharge": "90s",
            "reserveAfter": "5m30s",
            "backfill": False,
            "reclaim": "off",
            "withinQueue": "LowerPriority",
            "disruptionBudgets": "Override",
            "minRuntime": "0s",
            "gangTimeout": "1h2m3s",
            "schedulingTimeout": "5m",
            "evictUnowned": True,
            "maxUnbound": 1000,
            "maxUnownedUnbound": 4,
            "mode": "Observe",
        },
    ),
]


@pytest.mark.parametrize(("kind", "name", "spec"), GOOD)
def test_good_object_is_taken_as_written(
    installed: LocalCluster, kind: str, name: str, spec: Object
) -> None:
    taken = make_ours(installed, kind, name, spec, "--dry-run=server")["spec"]
    for user in taken.get("users", ()):
        if user == {"name": "bob", "weight": "1"}:
            del user["weight"]
    assert {key: taken[key] for key in spec} == spec


def quota(guarantee: object, limit: object, resource: str = "nvidia.com/gpu") -> Object:
    return {
        "quotas": [{"pool": "p", "guarantee": {resource: guarantee}, "limit": {resource: limit}}]
    }


EXCEEDS = "the guarantee exceeds the limit"
AMOUNT = "an amount must be a quantity of 0 or more"
DOUBLE = "Duplicate value"
DECIMAL = "must be a decimal number of 0 or more"
POSITIVE = "must be a decimal number above 0"
DURATION = "must be a duration"

BAD = [
    ("Tenant", "ns.team-a", {}, "names that begin with ns."),
    ("Tenant", "t", {"parent": "t"}, "cannot be its own parent"),
    ("Tenant", "t", {"parent": "ns.team-a"}, "cannot be a parent"),
    ("Tenant", "default", {"parent": "t"}, "it has no parent"),
    ("Tenant", "t", {"weight": "-1"}, DECIMAL),
    ("Tenant", "t", {"weight": "1e3"}, DECIMAL),
    ("Tenant", "t", {"weight": ".5"}, DECIMAL),
    ("Tenant", "t", {"weight": "1/3"}, DECIMAL),
    ("Tenant", "t", {"weight": "1.0000001"}, DECIMAL),
    ("Tenant", "t", {"weight": "2\n"}, DECIMAL),
    ("Tenant", "t", {"weight": ""}, DECIMAL),
    ("Tenant", "t", {"weight": 2}, 'must be of type string: "integer"'),
    ("Tenant", "t", {"users": [{"name": "a", "weight": "heavy"}]}, DECIMAL),
    ("Tenant", "t", {"weight": "abc"}, DECIMAL),
    ("Tenant", "t", {"users": [{"weight": "1"}]}, "spec.users[0].name"),
    ("Tenant", "t", {"users": [{"name": "a"}, {"name": "a"}]}, DOUBLE),
    ("Tenant", "t", {"users": [{"name": "."}]}, "can name a user . or ..; leave it out"),
    ("Tenant", "t", {"users": [{"name": "a"}, {"name": ".."}]}, "spec.users[1].name"),
    ("Tenant", "t", {"namespaces": ["a", "a"]}, DOUBLE),
    ("Tenant", "t", {"namespaces": ["Team_A"]}, "spec.namespaces[0]"),
    ("Tenant", "t", {"quotas": [{"pool": "p"}, {"pool": "p"}]}, DOUBLE),
    ("Tenant", "t", {"quotas": [{"limit": {"cpu": 1}}]}, "spec.quotas[0].pool"),
    ("Tenant", "t", quota(9, 8), EXCEEDS),
    ("Tenant", "t", quota("1Gi", "1000M", "memory"), EXCEEDS),
    ("Tenant", "t", quota("1001m", 1, "cpu"), EXCEEDS),
    ("Tenant", "t", quota("lots", 8), AMOUNT),
    ("Tenant", "t", quota("1e10000000", 8), AMOUNT),  # to parse it would cost seconds
    ("Tenant", "t", quota(0, "1E+100"), AMOUNT),
    ("Tenant", "t", quota(-1, 8), AMOUNT),
    ("Tenant", "t", quota(0, "-1"), AMOUNT),
    ("Tenant", "t", quota(0.5, 8), "spec.quotas[0].guarantee"),
    ("Tenant", "t", {"maxPending": -1}, "spec.maxPending"),
    ("Tenant", "t", {"pools": ["h100", "h100"]}, DOUBLE),
    ("Tenant", "t", {"wieght": "2"}, 'unknown field "spec.wieght"'),
    ("Pool", "p", {"overcommit": {"cpu": "0"}}, POSITIVE),
    ("Pool", "p", {"overcommit": {"cpu": "0.000"}}, POSITIVE),
    ("Pool", "p", {"overcommit": {"cpu": "-2"}}, POSITIVE),
    ("Pool", "p", {"weights": {"nvidia.com/gpu": "0"}}, POSITIVE),
    ("Pool", "p", {"placement": "scatter"}, 'supported values: "pack", "spread"'),
    ("Pool", "p", {"gpuMemory": "big"}, "spec.gpuMemory"),
    ("Pool", "p", {"gpuMemory": 0}, "spec.gpuMemory"),
    ("Pool", "p", {"maxCapacity": {"nvidia.com/gpu": "many"}}, AMOUNT),
    ("Pool", "p", {"nodeSelector": {"a": "no spaces"}}, "spec.nodeSelector.a"),
    ("Pool", "p", {"tolerations": [{"effect": "NoSchedule"}]}, "write operator Exists"),
    ("Pool", "p", {"tolerations": [{"key": "a", "tolerationSeconds": 1}]}, "effect NoExecute"),
    ("Pool", "p", {"gpuMemory": "x"}, "spec.gpuMemory"),
    ("Pool", "p", {"topolgy": []}, 'unknown field "spec.topolgy"'),
    ("Policy", "default", {"halflife": "4h"}, 'unknown field "spec.halflife"'),
    ("Policy", "default", {"minRuntime": "5"}, DURATION),
    ("Policy", "default", {"maxUnbound": 0}, "should be greater than or equal to 1"),
    ("Policy", "default", {"maxUnownedUnbound": 0}, "should be greater than or equal to 1"),
    ("Policy", "mine", {}, "there is only one Policy; name it default"),
    ("Policy", "default", {"reclaim": "always"}, 'supported values: "off", "guarantee", "fair"'),
    ("Policy", "default", {"reclaim": False}, 'must be of type string: "boolean"'),
    ("Policy", "default", {"withinQueue": "Always"}, '"Never", "LowerPriority"'),
    ("Policy", "default", {"disruptionBudgets": "Never"}, '"Respect", "Override"'),
    ("Policy", "default", {"mode": "Dream"}, 'supported values: "Enforce", "Observe"'),
    ("Policy", "default", {"halfLife": "4 hours"}, DURATION),
    ("Policy", "default", {"halfLife": "4"}, DURATION),
    ("Policy", "default", {"halfLife": ""}, DURATION),
    ("Policy", "default", {"minRuntime": "-5m"}, DURATION),
    ("Policy", "default", {"history": "-1"}, DECIMAL),
]


@pytest.mark.parametrize(("kind", "name", "spec", "words"), BAD)
def test_bad_object_is_refused_with_a_reason(
    installed: LocalCluster, kind: str, name: str, spec: Object, words: str
) -> None:
    with pytest.raises(ClusterError) as refusal:
        make_ours(installed, kind, name, spec, "--dry-run=server")
    assert words in str(refusal.value)


@pytest.mark.parametrize(("kind", "name"), [("Tenant", "t"), ("Pool", "p"), ("Policy", "default")])
def test_object_without_spec_is_refused(installed: LocalCluster, kind: str, name: str) -> None:
    with pytest.raises(ClusterError, match="spec: Required value"):
        make(installed, "fairgate.io/v1alpha1", kind, name, {}, "--dry-run=server")


def test_bare_off_is_refused_and_explained(installed: LocalCluster) -> None:
    policy = "{apiVersion: fairgate.io/v1alpha1, kind: Policy, metadata: {name: default}}"
    spec = "spec: {reclaim: off}"
    with pytest.raises(ClusterError, match=r'spec\.reclaim: .* must be of type string: "boolean"'):
        installed.kubectl("create", "--dry-run=server", "-f", "-", stdin=f"{policy[:-1]}, {spec}}}")
    explained = " ".join(installed.kubectl("explain", "policy.spec.reclaim").split())
    assert '"off" means no (with quotes' in explained


SHOWN: dict[str, tuple[str, Object, Object]] = {
    "tenant": (
        "shown",
        {"weight": "2", "parent": "research"},
        {"share": "0.375", "used": {"nvidia.com/gpu": "3"}, "pending": 41},
    ),
    "pool": (
        "shown",
        {"paused": True},
        {
            "nodes": 2,
            "capacity": {"nvidia.com/gpu": "16"},
            "used": {"nvidia.com/gpu": "3"},
            "free": {"nvidia.com/gpu": "13"},
            "fragmentation": "0.25",
            "conditions": [
                {
                    "type": kind,
                    "status": "True",
                    "reason": reason,
                    "message": "",
                    "lastTransitionTime": "2026-01-02T03:04:05Z",
                }
                for kind, reason in (("Ready", "Paused"), ("NodesLeftOut", "NotSelected"))
            ],
        },
    ),
    "policy": (
        "default",
        {"mode": "Enforce", "reclaim": "off", "reserveAfter": "5m30s"},
        {"observedGeneration": 1},
    ),
}
"""By kind: name, spec, status."""

CELLS = {
    "tenant": {
        "WEIGHT": "2",
        "SHARE": "0.375",
        "USED": '{"nvidia.com/gpu":"3"}',
        "PENDING": "41",
        "PARENT": "research",
    },
    "pool": {
        "NODES": "2",
        "CAPACITY": '{"nvidia.com/gpu":"16"}',
        "USED": '{"nvidia.com/gpu":"3"}',
        "FREE": '{"nvidia.com/gpu":"13"}',
        "STATE": "Paused",
        "PLACEMENT": "pack",
        "FRAGMENTATION": "0.25",
        "LEFT OUT": "NotSelected",
    },
    "policy": {"MODE": "Enforce", "RECLAIM": "off", "RESERVE-AFTER": "5m30s"},
}


@pytest.fixture
def shown(installed: LocalCluster) -> Iterator[LocalCluster]:
    """One object of each kind, with a status."""
    try:
        for kind, (name, spec, status) in SHOWN.items():
            make_ours(installed, kind.title(), name, spec)
            patch = json.dumps({"status": status})
            flags = ("--subresource=status", "--type=merge", "-p", patch)
            installed.kubectl("patch", kind, name, *flags)
        yield installed
    finally:
        names = [f"{kind}/{name}" for kind, (name, _, _) in SHOWN.items()]
        installed.kubectl("delete", "--ignore-not-found", *names)


@pytest.mark.parametrize("kind", CELLS)
def test_kubectl_get_prints_the_expected_columns(shown: LocalCluster, kind: str) -> None:
    assert CELLS[kind].items() <= cells(shown, kind, SHOWN[kind][0]).items()


def test_kubectl_lists_all_kinds_at_once(shown: LocalCluster) -> None:
    listed = shown.kubectl("get", "fairgate", "-o", "name").split()
    assert {f"{kind}.fairgate.io/{name}" for kind, (name, _, _) in SHOWN.items()} <= set(listed)


def cells(cluster: LocalCluster, kind: str, name: str) -> dict[str, str]:
    """Return the printed columns of one object, value by column name."""
    table = cluster.kubectl("get", kind, name, "-o", "wide")
    head, row = table.splitlines()
    columns = [(found.start(), found[0]) for found in re.finditer(r"\S+(?: \S+)*", head)]
    ends = [start for start, _ in columns[1:]] + [None]
    return {what: row[at:end].strip() for (at, what), end in zip(columns, ends, strict=True)}
