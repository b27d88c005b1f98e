"""Pods with a distance rule to similar pods are released only where the scheduler allows it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import msgspec
import pytest

from app.core.model import Node, Pod, Uid
from app.core.placement.pod_affinity import MIN_CACHED_ANSWERS
from app.core.podspec.constraints import DistanceRuleKind, PodDistanceRule, Taint
from app.k8s_types import objects
from app.kube.convert_constraints import read_distance_rules
from tests.support.engine_bench import Bench
from tests.support.placement_bench import asks, near
from tests.support.placement_bench import node as plain_node

HOST, ZONE = "kubernetes.io/hostname", "zone"
APART = PodDistanceRule(DistanceRuleKind.APART, HOST, "g")
APART_BY_ZONE = PodDistanceRule(DistanceRuleKind.APART, ZONE, "g")
CLOSE = PodDistanceRule(DistanceRuleKind.CLOSE, ZONE, "g")
EVEN = PodDistanceRule(DistanceRuleKind.EVEN, ZONE, "g")


def node(name: str, zone: str = "", *taints: Taint, gpus: int = 8) -> Node:
    labels = {HOST: name} | ({ZONE: zone} if zone else {})
    made = plain_node(name, *taints, gpus=gpus)
    return replace(made, labels=labels)


def spaced(name: str, *spacings: PodDistanceRule, gpus: int = 1, **more: Any) -> Pod:
    return asks(name, gpus, distance_rules=spacings, **more)


def zones(bench: Bench) -> dict[str, int]:
    """Return the number of pods released into each zone; nodes are named by zone and number."""
    found: dict[str, int] = {}
    for where in bench.released.values():
        assert where is not None
        found[where[0]] = found.get(where[0], 0) + 1
    return found


def test_pods_with_mutual_anti_affinity_get_different_nodes() -> None:
    bench = Bench(node("a"), node("b"))
    pods = [spaced(f"p{n}", APART) for n in range(3)]
    bench.see(*pods)
    assert sorted(filter(None, bench.released.values())) == ["a", "b"]
    assert "required pod anti-affinity by kubernetes.io/hostname" in bench.text(pods[2])
    bench.see(asks("other", 1))  # it delays no other pod
    assert "other" in bench.released


def test_end_of_a_pod_frees_its_node_for_the_next_pod_of_its_group() -> None:
    bench = Bench(node("a"))
    first, second = spaced("first", APART), spaced("second", APART)
    bench.see(first, second)
    assert bench.released == {"first": "a"}
    bench.gone(first)
    assert bench.released == {"first": "a", "second": "a"}


def test_pods_of_another_group_are_no_matter() -> None:
    bench = Bench(node("a"))
    bench.see(spaced("p", APART), spaced("q", APART._replace(group="h")))
    assert bench.released == {"p": "a", "q": "a"}


def test_a_domain_is_all_nodes_of_a_label_value_and_nodes_without_it_are_in_none() -> None:
    bench = Bench(node("x1", "x"), node("x2", "x"), node("n"))
    bench.see(*(spaced(f"p{i}", APART_BY_ZONE, gpus=8) for i in range(3)))
    assert sorted(filter(None, bench.released.values())) in (["n", "x1"], ["n", "x2"])


def test_gang_with_anti_affinity_waits_for_one_node_per_pod() -> None:
    bench = Bench(*(node(name) for name in "abc"))
    bench.see(*(spaced(f"four-{i}", APART, gang="four", gang_size=4) for i in range(4)))
    assert bench.released == {}
    other = APART._replace(group="h")
    bench.see(*(spaced(f"three-{i}", other, gang="three", gang_size=3) for i in range(3)))
    assert sorted(filter(None, bench.released.values())) == ["a", "b", "c"]
    bench.put(node("d"))
    assert len(bench.released) == 7


def test_pod_without_an_allowed_node_reserves_no_capacity() -> None:
    bench = Bench(node("a", gpus=4))
    bench.see(spaced("first", APART, gpus=2))
    bench.see(spaced("second", APART, gpus=2, priority=10))
    bench.now = 3_600_000
    bench.see(asks("plain", 2))
    assert "plain" in bench.released


def test_however_many_groups_wait_each_is_judged_once() -> None:
    bench = Bench(node("a"))
    first = spaced("first", gpus=8)
    bench.see(first)
    many = range(2 * MIN_CACHED_ANSWERS + 1)
    bench.see(*(spaced(f"p{n}", APART._replace(group=f"g{n}"), gpus=8) for n in many))
    company = bench.engine._placement.pod_peers
    for _ in range(3):  # the expected number of pods, and then twice as many
        again = replace(first, uid=Uid("again"), name="again", priority=9)
        bench.gone(first)
        bench.see(again)
        first = again
    assert len(company._open) >= 2 * MIN_CACHED_ANSWERS
    assert len(company._pins) < 5  # they may all use the same nodes


def test_groups_that_are_gone_are_forgotten() -> None:
    bench = Bench(node("a"))
    for number in range(50):
        pod = spaced(f"p{number}", APART._replace(group=f"g{number}", topology_key=f"odd-{number}"))
        bench.see(pod)
        bench.gone(pod)
    company = bench.engine._placement.pod_peers
    assert len(bench.released) == 50
    assert (len(company._groups), len(company._domains)) == (0, 1)


def test_pods_spread_evenly_over_zones_as_far_as_the_skew_lets_them() -> None:
    bench = Bench(*(node(f"{z}{n}", z) for z in "xy" for n in range(4)))
    bench.see(*(spaced(f"p{i}", EVEN, gpus=8) for i in range(8)))
    assert zones(bench) == {"x": 4, "y": 4}


def test_full_zone_holds_pods_that_would_exceed_the_skew_in_another_zone() -> None:
    bench = Bench(node("x0", "x"), node("y0", "y", gpus=1))
    pods = [spaced(f"p{i}", EVEN, gpus=1) for i in range(4)]
    bench.see(*pods)
    assert zones(bench) == {"x": 2, "y": 1}  # a second pod in y does not fit, so no third in x
    bench.see(*(spaced(f"q{i}", EVEN._replace(group="h", max_skew=2), gpus=1) for i in range(3)))
    assert zones(bench) == {"x": 4, "y": 1}


def test_tainted_zone_counts_as_empty_unless_the_rule_honors_taints() -> None:
    nodes = (node("x0", "x"), node("y0", "y", Taint("t")))
    bench = Bench(*nodes)
    bench.see(*(spaced(f"p{i}", EVEN) for i in range(3)))
    assert zones(bench) == {"x": 1}
    bench = Bench(*nodes)
    bench.see(*(spaced(f"p{i}", EVEN._replace(honors_taints=True)) for i in range(3)))
    assert zones(bench) == {"x": 3}


def test_only_zones_that_the_pod_can_use_count() -> None:
    bench = Bench(node("x0", "x"), node("y0", "y"), node("n"))
    only_x = near(ZONE, "In", "x")
    bench.see(*(spaced(f"p{i}", EVEN, affinity=only_x) for i in range(3)))
    assert zones(bench) == {"x": 3}
    ignoring = EVEN._replace(honors_node_affinity=False, group="h")
    bench.see(*(spaced(f"q{i}", ignoring, affinity=only_x) for i in range(3)))
    assert zones(bench) == {"x": 4}


def test_with_too_few_domains_the_fewest_is_none() -> None:
    bench = Bench(node("x0", "x"), node("y0", "y"))
    bench.see(*(spaced(f"p{i}", EVEN._replace(min_domains=3)) for i in range(4)))
    assert zones(bench) == {"x": 1, "y": 1}


def test_pods_with_affinity_get_the_domain_of_the_first_pod() -> None:
    bench = Bench(node("x0", "x", gpus=1), node("y0", "y", gpus=2), node("n"))
    bench.see(spaced("first", CLOSE, gpus=2))
    assert bench.released == {"first": "y0"}
    bench.see(spaced("second", CLOSE, gpus=1))
    assert bench.released == {"first": "y0"}
    bench.put(node("y1", "y"))
    assert bench.released == {"first": "y0", "second": "y1"}


# --- fields of a pod ---


def read(spec: dict[str, Any], **labels: str) -> tuple[PodDistanceRule, ...]:
    return read_distance_rules(msgspec.convert(spec, objects.PodSpec), "space", labels)


def apart(**term: Any) -> dict[str, Any]:
    required = {"requiredDuringSchedulingIgnoredDuringExecution": [{"topologyKey": HOST, **term}]}
    return {"affinity": {"podAntiAffinity": required}}


APP = {"labelSelector": {"matchLabels": {"app": "x"}}}


@pytest.mark.parametrize(
    ("term", "judged"),
    [
        (APP, True),
        ({"labelSelector": {}}, True),
        ({}, False),  # an absent selector matches no pod
        ({"labelSelector": {"matchLabels": {"app": "other"}}}, False),
        ({"labelSelector": {"matchExpressions": [{"key": "app", "operator": "Exists"}]}}, True),
        ({"labelSelector": {"matchExpressions": [{"key": "no", "operator": "Exists"}]}}, False),
        ({**APP, "namespaces": ["space"]}, True),
        ({**APP, "namespaces": ["elsewhere"]}, False),
        ({**APP, "namespaceSelector": {}}, False),
        ({**APP, "mismatchLabelKeys": ["app"]}, False),
    ],
)
def test_a_rule_is_judged_if_it_is_about_the_pod_itself(term: dict[str, Any], judged: bool) -> None:
    assert bool(read(apart(**term), app="x")) is judged


def test_equivalent_selectors_are_one_group() -> None:
    [one] = read(apart(**APP), app="x")
    written = {"matchExpressions": [{"key": "app", "operator": "In", "values": ["x"]}]}
    [other] = read(apart(labelSelector=written), app="x")
    [keyed] = read(apart(labelSelector={}, matchLabelKeys=["app"]), app="x")
    assert one == other == keyed


def test_only_hard_spread_is_read_and_all_of_it() -> None:
    hard = {
        "topologyKey": ZONE,
        "maxSkew": 2,
        "minDomains": 3,
        "whenUnsatisfiable": "DoNotSchedule",
    }
    policies = {"nodeAffinityPolicy": "Ignore", "nodeTaintsPolicy": "Honor"}
    soft = {"topologyKey": HOST, "maxSkew": 1, "whenUnsatisfiable": "ScheduleAnyway"}
    spec = {"topologySpreadConstraints": [{**hard, **policies, **APP}, {**soft, **APP}]}
    [found] = read(spec, app="x")
    assert found == PodDistanceRule(DistanceRuleKind.EVEN, ZONE, found.group, 2, 3, False, True)
