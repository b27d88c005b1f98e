"""Constraints of pods, nodes and pools are parsed as written."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from app.controller.status_conditions import pool_status
from app.core.audit.config_changes import spec_of
from app.core.explain.views import PoolView
from app.core.model import Millis, NodeName, Pool, PoolName, Resource
from app.core.podspec.constraints import (
    NodeSelectorRequirement,
    NodeSelectorTerm,
    Taint,
    Toleration,
)
from app.k8s_types import objects
from app.kube.convert import read_node
from app.kube.convert_constraints import read_affinity, read_taints, read_tolerations
from app.kube.convert_custom import read_pool

GPU = Resource("nvidia.com/gpu")


def affinity(*terms: dict[str, Any]) -> objects.AffinitySpec:
    required = {"nodeSelectorTerms": list(terms)}
    written = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": required}}
    return msgspec.convert(written, objects.AffinitySpec)


def one(key: str, operator: str, *values: str) -> dict[str, Any]:
    return {"key": key, "operator": operator, "values": list(values)}


NAMED = {"matchFields": [one("metadata.name", "In", "n")]}
ZONED = {"matchExpressions": [one("zone", "In", "x")]}
ZONE = NodeSelectorTerm((NodeSelectorRequirement("zone", "In", ("x",)),))
NAME = NodeSelectorTerm((), (NodeSelectorRequirement("metadata.name", "In", ("n",)),))


@pytest.mark.parametrize(
    ("terms", "only", "rest"),
    [
        ((NAMED,), ("n",), None),  # the only term that differs between pods of a DaemonSet
        ((ZONED,), None, (ZONE,)),
        ((NAMED, ZONED), None, (NAME, ZONE)),
        (({**NAMED, **ZONED},), ("n",), (NodeSelectorTerm(ZONE.expressions, NAME.fields),)),
        ((), (), None),
        (({},), (), None),
        (({"matchFields": [one("metadata.name", "NotIn", "n")]},), None, None),
    ],
)
def test_node_names_of_an_affinity_are_separated_from_its_other_terms(
    terms: tuple[dict[str, Any], ...],
    only: tuple[str, ...] | None,
    rest: tuple[NodeSelectorTerm, ...] | None,
) -> None:
    found_only, found = read_affinity(affinity(*terms))
    if only is None and rest is None:
        rest = (NodeSelectorTerm((), (NodeSelectorRequirement("metadata.name", "NotIn", ("n",)),)),)
    assert (found_only, found) == (only, rest)


def test_missing_or_preferred_affinity_requires_nothing() -> None:
    assert read_affinity(None) == (None, None)
    preferred = {"preferredDuringSchedulingIgnoredDuringExecution": []}
    written = msgspec.convert({"nodeAffinity": preferred}, objects.AffinitySpec)
    assert read_affinity(written) == (None, None)


def test_tolerations_are_read_whole_and_equal_is_the_default() -> None:
    written = [{"key": "a", "value": "b"}, {"operator": "Exists", "effect": "NoExecute"}]
    found = read_tolerations(msgspec.convert(written, list[objects.TolerationSpec]))
    assert found == (Toleration("a", "Equal", "b"), Toleration("", "Exists", "", "NoExecute"))


def test_taints_that_only_prefer_or_repeat_readiness_are_left_out() -> None:
    written = [
        {"key": "b", "effect": "NoSchedule"},
        {"key": "a", "value": "1", "effect": "NoExecute"},
        {"key": "soft", "effect": "PreferNoSchedule"},
        {"key": "node.kubernetes.io/unschedulable", "effect": "NoSchedule"},
        {"key": "node.kubernetes.io/disk-pressure", "effect": "NoSchedule"},
    ]
    found = read_taints(msgspec.convert(written, list[objects.TaintSpec]))
    pressure = Taint("node.kubernetes.io/disk-pressure")
    assert found == (Taint("a", "1", "NoExecute"), Taint("b"), pressure)
    raw = {"metadata": {"name": "n"}, "spec": {"taints": written}}
    node = read_node(msgspec.convert(raw, objects.NodeObject), Millis(0)).node
    assert node.taints == found
    assert node.readiness_taints == (Taint("node.kubernetes.io/unschedulable"),)


def test_tolerations_of_a_pool_are_read_and_audited() -> None:
    written = {"key": "a", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 60}
    document = {"metadata": {"name": "p"}, "spec": {"tolerations": [written]}}
    pool = read_pool(msgspec.convert(document, objects.PoolObject), Millis(0)).pool
    assert pool.tolerations == (Toleration("a", "Exists", "", "NoExecute", 60),)
    assert spec_of(pool)["tolerations"] == "a:NoExecute for 60 s"
    more = Pool(PoolName("p"), tolerations=(Toleration("a", "Equal"), Toleration("", "Exists")))
    assert spec_of(more)["tolerations"] == "a=, every taint"


# --- messages in the status of a pool ---


def view(**more: Any) -> PoolView:
    fields = {"nodes": 1, "generation": 3, "contested_nodes": {}, "paused": False, "exists": True}
    return PoolView({GPU: 8}, {GPU: 6}, **{**fields, **more})


def conditions(pool: PoolView, *strays: str) -> dict[str, tuple[bool, str]]:
    found = pool_status(pool, [NodeName(each) for each in strays], 0.5).conditions
    return {each.condition_type: (each.is_true, each.message) for each in found}


def test_pool_status_has_free_capacity_and_fragmentation() -> None:
    fields = pool_status(view(), (), 0.456).fields
    assert fields["free"] == {GPU: "2"}
    assert fields["fragmentation"] == "0.46"
    assert pool_status(view(), (), None).fields["fragmentation"] is None


def test_a_pool_names_the_nodes_that_another_has() -> None:
    taken = {NodeName(f"n{i}"): PoolName("first") for i in range(6)}
    found = conditions(view(contested_nodes=taken))
    assert found["Overlap"][0]
    assert "6 nodes (n0, n1, n2, n3 and 2 more) of pool first" in found["Overlap"][1]
    assert not found["Ready"][0]
    assert not conditions(view())["Overlap"][0]


def test_nodes_in_no_pool_are_reported_in_every_pool() -> None:
    assert not conditions(view())["NodesLeftOut"][0]
    holds, message = conditions(view(), "lone")["NodesLeftOut"]
    assert holds
    assert message.startswith("1 node (lone) with managed resources in no Pool")
