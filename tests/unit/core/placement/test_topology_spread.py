"""Topology spread counts the same nodes and pods as kube-scheduler."""

from __future__ import annotations

from dataclasses import replace

import msgspec
import pytest

from app.core.model import Millis, Node, Pool, PoolName
from app.core.podspec.constraints import PodDistanceRule, Toleration
from app.k8s_types import objects
from app.kube.convert import read_node
from app.kube.convert_constraints import read_distance_rules
from tests.support.engine_bench import Bench
from tests.support.placement_bench import asks

HOST = "kubernetes.io/hostname"
CORDONED = {"key": "node.kubernetes.io/unschedulable", "effect": "NoSchedule"}
NOT_READY = {"key": "node.kubernetes.io/not-ready", "effect": "NoSchedule"}
UNREACHABLE = {"key": "node.kubernetes.io/unreachable", "effect": "NoExecute"}
DEFAULT_TOLERATIONS = [
    {"key": each["key"], "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 300}
    for each in (NOT_READY, UNREACHABLE)
]


def node(name: str, *taints: dict[str, str], ready: bool = True) -> Node:
    raw = {
        "metadata": {"name": name, "labels": {HOST: name}},
        "spec": {"unschedulable": CORDONED in taints, "taints": taints},
        "status": {
            "conditions": [{"type": "Ready", "status": str(ready)}],
            "allocatable": {"nvidia.com/gpu": "8", "pods": "110"},
        },
    }
    return read_node(msgspec.convert(raw, objects.NodeObject), Millis(1)).node


def spread(
    taints: str = "Honor", domains: int = 1, tolerations: list[dict[str, object]] | None = None
) -> tuple[PodDistanceRule, ...]:
    """Return the topology spread by host of a pod."""
    constraint = {
        "topologyKey": HOST,
        "maxSkew": 1,
        "minDomains": domains,
        "whenUnsatisfiable": "DoNotSchedule",
        "labelSelector": {"matchLabels": {"app": "x"}},
        "nodeTaintsPolicy": taints,
    }
    spec = {"topologySpreadConstraints": [constraint], "tolerations": tolerations or []}
    return read_distance_rules(msgspec.convert(spec, objects.PodSpec), "team", {"app": "x"})


def release_four(bench: Bench, rules: tuple[PodDistanceRule, ...]) -> list[str]:
    """Create four pods and return the nodes to which pods are released."""
    bench.see(*(asks(f"p{i}", 1, distance_rules=rules) for i in range(4)))
    return sorted(filter(None, bench.released.values()))


@pytest.mark.parametrize(
    ("taints", "ready"),
    [((CORDONED,), True), ((NOT_READY,), False), ((NOT_READY, UNREACHABLE), False)],
)
def test_node_that_is_tainted_as_unusable_is_no_domain_of_a_rule_that_honors_taints(
    taints: tuple[dict[str, str], ...], ready: bool
) -> None:
    nodes = node("a"), node("b"), node("c", *taints, ready=ready)
    assert release_four(Bench(*nodes), spread()) == ["a", "a", "b", "b"]
    with_defaults = spread(tolerations=DEFAULT_TOLERATIONS)
    assert release_four(Bench(*nodes), with_defaults) == ["a", "a", "b", "b"]
    assert release_four(Bench(*nodes), spread("Ignore")) == ["a", "b"]


@pytest.mark.parametrize(
    "toleration",
    [{"operator": "Exists"}, {"key": CORDONED["key"], "operator": "Exists"}, CORDONED],
)
def test_cordoned_node_is_a_domain_if_the_pod_tolerates_its_taint(
    toleration: dict[str, object],
) -> None:
    nodes = node("a"), node("b"), node("c", CORDONED)
    assert release_four(Bench(*nodes), spread(tolerations=[toleration])) == ["a", "b"]


def test_cordoned_node_is_a_domain_if_its_pool_tolerates_its_taint() -> None:
    pool = Pool(PoolName("g"), tolerations=(Toleration(CORDONED["key"], "Exists"),))
    nodes = node("a"), node("b"), node("c", CORDONED)
    assert release_four(Bench(*nodes, pools=(pool,)), spread()) == ["a", "b"]


def test_cordoned_node_does_not_count_among_the_minimum_of_domains() -> None:
    bench = Bench(node("a"), node("b"), node("c", CORDONED))
    assert release_four(bench, spread(domains=3)) == ["a", "b"]


def test_readiness_taint_that_comes_or_goes_later_is_noticed() -> None:
    """The node controller writes the taint after the node is cordoned."""
    cordoned = replace(node("c", CORDONED), readiness_taints=())
    bench = Bench(node("a"), node("b"), cordoned)
    assert release_four(bench, spread()) == ["a", "b"]
    bench.put(node("c", CORDONED))
    assert sorted(filter(None, bench.released.values())) == ["a", "a", "b", "b"]
    bench = Bench(node("a"), node("b"), node("c", CORDONED))
    bench.see(*(asks(f"p{i}", 1, distance_rules=spread()) for i in range(2)))
    bench.put(cordoned)
    bench.see(asks("last", 1, distance_rules=spread()))
    assert sorted(bench.released) == ["p0", "p1"]
    bench.put(node("c"))
    assert bench.released["last"] == "c"


def test_readiness_taint_alone_starts_no_new_search_without_such_rules() -> None:
    cordoned = replace(node("c", CORDONED), readiness_taints=())
    bench = Bench(node("a"), cordoned)
    bench.see(*(asks(f"p{i}", 8) for i in range(2)))
    placement = bench.engine._placement
    rules = spread("Ignore")
    before = placement.pools_version, placement.pod_peers.version_of(rules)
    bench.put(node("c", CORDONED))
    assert (placement.pools_version, placement.pod_peers.version_of(rules)) == before
    honoring = spread()
    seen = placement.pod_peers.version_of(honoring)
    bench.put(cordoned)
    assert placement.pod_peers.version_of(honoring) > seen
