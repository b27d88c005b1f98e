"""The constraints added to a pod so that the stock scheduler picks the engine's node."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import msgspec
import pytest

from app.core.admission.hold import HoldDecision, NamespaceOwner, PodCreateRequest, decide_hold
from app.core.model import (
    Millis,
    NodeName,
    PlacementStrategy,
    Pod,
    Pool,
    PoolName,
    Resource,
    TenantName,
    TopologyConstraint,
    UserName,
)
from app.core.placement.scheduler_hints import (
    HOSTNAME,
    PREFER_USED_NODES,
    PREFERRED,
    REQUIRED,
    NodeHint,
    domain_selector_of,
    may_pack,
    node_hint_of,
    node_hint_patch,
)
from app.core.podspec.annotations import (
    annotation_warnings,
    gang_layout_of,
    named_placement,
    named_topology,
)
from app.core.podspec.equivalence_class import EquivalenceClass, GangLayout
from app.core.quantities import ManagedResources
from app.core.release_patch import release_patch
from app.core.well_known import GATE
from app.k8s_types import objects
from app.kube.convert import Pods
from app.sim.cluster.virtual_cluster import held_pod
from tests.support.json_patch import apply
from tests.support.release_orders import ORDER

GPU = Resource("nvidia.com/gpu")
MANAGED = ManagedResources([GPU])
NODE = NodeName("n-1")
HERE = {"key": HOSTNAME, "operator": "In", "values": ["host-1"]}
ELSE = {"key": "zone", "operator": "In", "values": ["a"]}
TOWARDS = {"weight": 100, "preference": {"matchExpressions": [HERE]}}
OTHER = {"weight": 1, "preference": {"matchExpressions": [ELSE]}}

Json = dict[str, Any]


def stored(affinity: Json | None) -> Json:
    limits = {"limits": {GPU: "1"}}
    spec: Json = {"schedulingGates": [{"name": GATE}], "containers": [{"resources": limits}]}
    if affinity is not None:
        spec["affinity"] = affinity
    annotations = {"fairgate.io/release": "0"}
    metadata = {"uid": "u-1", "name": "p", "namespace": "a", "annotations": annotations}
    return {"metadata": {**metadata, "labels": {}}, "spec": spec}


def read(document: Json) -> Pod:
    pod = msgspec.convert(document, objects.PodObject)
    seen = Pods(MANAGED, frozenset()).read(pod, Millis(0))
    assert seen is not None
    assert hasattr(seen, "pod")
    assert isinstance(seen.pod, Pod)
    return seen.pod


def steered(affinity: Json | None, *, exactly: bool, off: tuple[str, ...] = ()) -> Json:
    document = stored(affinity)
    steer = NodeHint("host-1", exactly, read(document).affinity_presence, off)
    released = apply(document, release_patch(replace(ORDER, node_hint=steer)))
    assert "schedulingGates" not in released["spec"]
    found = released["spec"]["affinity"]
    assert isinstance(found, dict)
    return found


@pytest.mark.parametrize(
    "before",
    [
        None,
        {},
        {"podAffinity": PREFER_USED_NODES},
        {"nodeAffinity": {}},
        {"nodeAffinity": {PREFERRED: []}},
        {"nodeAffinity": {PREFERRED: [OTHER]}},
        {"nodeAffinity": {REQUIRED: {"nodeSelectorTerms": [{"matchExpressions": [ELSE]}]}}},
    ],
)
def test_node_preference_is_added_to_existing_affinity(before: Json | None) -> None:
    after = steered(before, exactly=False)
    nodes, known = after["nodeAffinity"], (before or {}).get("nodeAffinity", {})
    assert nodes[PREFERRED] == [*known.get(PREFERRED, []), TOWARDS]
    assert nodes.get(REQUIRED) == known.get(REQUIRED)
    assert after.get("podAffinity") == (before or {}).get("podAffinity")


@pytest.mark.parametrize(
    ("before", "terms"),
    [
        (None, [{"matchExpressions": [HERE]}]),
        ({"podAffinity": {}}, [{"matchExpressions": [HERE]}]),
        ({"nodeAffinity": {PREFERRED: [OTHER]}}, [{"matchExpressions": [HERE]}]),
        (
            {
                "nodeAffinity": {
                    REQUIRED: {
                        "nodeSelectorTerms": [
                            {"matchExpressions": [ELSE]},
                            {},
                            {"matchFields": [{"key": "metadata.name", "operator": "In"}]},
                        ]
                    }
                }
            },
            [
                {"matchExpressions": [ELSE, HERE]},
                {},
                {
                    "matchFields": [{"key": "metadata.name", "operator": "In"}],
                    "matchExpressions": [HERE],
                },
            ],
        ),
    ],
)
def test_required_node_is_added_to_every_existing_term(
    before: Json | None, terms: list[Json]
) -> None:
    after = steered(before, exactly=True)
    assert after["nodeAffinity"][REQUIRED]["nodeSelectorTerms"] == terms


def shape_of(*counts: int, manner: GangLayout) -> EquivalenceClass:
    parts = tuple(({GPU: size}, count) for size, count in enumerate(counts, 1))
    return EquivalenceClass(parts, {}, (PoolName("p"),), layout=manner)


def test_node_hint_is_required_only_for_unlike_pods_of_a_required_domain() -> None:
    must, pod = GangLayout(topology=TopologyConstraint("rack", True)), held_pod("p", "t")
    labels = {HOSTNAME: "host-1", "rack": "r1"}
    alike = node_hint_of(shape_of(4, manner=must), pod, NODE, labels)
    unlike = node_hint_of(shape_of(4, 1, manner=must), pod, NODE, labels)
    loose = node_hint_of(
        shape_of(4, 1, manner=GangLayout(topology=TopologyConstraint("rack"))), pod, NODE, labels
    )
    assert [each and each.is_required for each in (alike, unlike, loose)] == [False, True, False]
    assert domain_selector_of(shape_of(4, manner=must), labels) == {"rack": "r1"}
    assert domain_selector_of(shape_of(4, manner=GangLayout()), labels) == {}


def test_pod_with_one_allowed_node_gets_no_node_hint() -> None:
    pod = replace(held_pod("p", "t"), node_names=(NODE,))
    shape = shape_of(1, manner=GangLayout())
    assert node_hint_of(shape, pod, NODE, {HOSTNAME: "host-1"}) is None
    assert node_hint_of(shape, held_pod("p", "t"), NODE, {}) is None
    assert node_hint_patch(NodeHint("host-1"))


@pytest.mark.parametrize(
    "before",
    [
        None,
        {"nodeAffinity": {PREFERRED: [OTHER]}},
        {"nodeAffinity": {REQUIRED: {"nodeSelectorTerms": [{"matchExpressions": [ELSE]}]}}},
    ],
)
def test_hosts_with_reserved_capacity_are_excluded(before: Json | None) -> None:
    away = {"key": HOSTNAME, "operator": "NotIn", "values": ["host-2", "host-3"]}
    nodes = steered(before, exactly=False, off=("host-2", "host-3"))["nodeAffinity"]
    known = (before or {}).get("nodeAffinity", {})
    [term] = nodes[REQUIRED]["nodeSelectorTerms"]
    assert term["matchExpressions"] == [*([ELSE] if REQUIRED in known else []), away]
    assert nodes[PREFERRED] == [*known.get(PREFERRED, []), TOWARDS]


def test_pod_that_waits_for_a_new_node_gets_only_excluded_hosts() -> None:
    shape, pod = shape_of(1, manner=GangLayout()), held_pod("p", "t")
    assert node_hint_of(shape, pod, None, {}) is None
    found = node_hint_of(shape, pod, None, {}, ("host-2",))
    assert found is not None
    patch = release_patch(replace(ORDER, node_hint=found))
    away = {"key": HOSTNAME, "operator": "NotIn", "values": ["host-2"]}
    affinity = apply(stored(None), patch)["spec"]["affinity"]
    must = {"nodeSelectorTerms": [{"matchExpressions": [away]}]}
    assert affinity == {"nodeAffinity": {REQUIRED: must}}


def test_chosen_node_is_never_excluded() -> None:
    shape = shape_of(1, manner=GangLayout())
    labels = {HOSTNAME: "host-1"}
    found = node_hint_of(shape, held_pod("p", "t"), NODE, labels, ("host-1", "host-2"))
    assert found is not None
    assert found.excluded_hosts == ("host-2",)


PACKED, SPREAD = Pool(PoolName("a")), Pool(PoolName("b"), placement=PlacementStrategy.SPREAD)
POOLS = {pool.name: pool for pool in (PACKED, SPREAD)}
KIND = Pool(PoolName("k"), selector={"kind": "x"})


@pytest.mark.parametrize(
    ("pools", "style", "named", "selector", "allowed", "expected"),
    [
        ({}, None, (), {}, (), True),
        ({}, PlacementStrategy.SPREAD, (), {}, (), False),
        (POOLS, None, (), {}, (), True),
        (POOLS, None, ("b",), {}, (), False),
        (POOLS, None, (), {}, ("b",), False),
        (POOLS, PlacementStrategy.SPREAD, (), {}, (), False),
        (POOLS, PlacementStrategy.PACK, ("b",), {}, (), True),
        ({"k": KIND}, None, (), {"kind": "y"}, (), False),
        ({"k": KIND}, None, (), {"kind": "x", "more": "z"}, (), True),
    ],
)
def test_a_pod_is_pulled_to_others_where_pods_are_packed(
    pools: dict[PoolName, Pool],
    style: PlacementStrategy | None,
    named: tuple[PoolName, ...],
    selector: dict[str, str],
    allowed: tuple[PoolName, ...],
    expected: bool,
) -> None:
    assert may_pack(pools, style, named, selector, allowed) is expected


@pytest.mark.parametrize(
    "before", [None, {}, {"nodeAffinity": {PREFERRED: [OTHER]}}], ids=["none", "empty", "nodes"]
)
def test_packing_preference_leaves_existing_affinity_unchanged(before: Json | None) -> None:
    candidate = PodCreateRequest("team-a", UserName("alice"), {GPU: 1}, may_pack=True)
    verdict = decide_hold(
        replace(candidate, has_affinity=before is not None),
        NamespaceOwner(TenantName("team-a")),
        MANAGED,
    )
    assert isinstance(verdict, HoldDecision)
    spec = {} if before is None else {"affinity": before}
    pod = apply({"metadata": {}, "spec": spec}, verdict.patch)
    assert pod["spec"]["affinity"] == {**(before or {}), "podAffinity": PREFER_USED_NODES}


@pytest.mark.parametrize(
    ("written", "near"),
    [
        ("required:example.com/rack", TopologyConstraint("example.com/rack", True)),
        (" preferred: rack ", TopologyConstraint("rack")),
        ("rack", None),
        ("required:", None),
        ("require:rack", None),
        ("required:-rack", None),
        ("required:UPPER/rack", None),
        ("required:a/b/c", None),
        ("", None),
    ],
)
def test_a_level_is_written_with_a_word_and_a_label(
    written: str, near: TopologyConstraint | None
) -> None:
    annotations = {"fairgate.io/topology": written}
    assert named_topology(annotations) == near
    assert (list(annotation_warnings(annotations)) == []) is (near is not None)


@pytest.mark.parametrize(
    ("written", "style"),
    [("pack", PlacementStrategy.PACK), ("spread", PlacementStrategy.SPREAD), ("Pack", None)],
)
def test_placement_annotation_is_pack_or_spread(
    written: str, style: PlacementStrategy | None
) -> None:
    annotations = {"fairgate.io/placement": written}
    assert named_placement(annotations) == style
    assert (list(annotation_warnings(annotations)) == []) is (style is not None)


def test_where_the_pods_of_a_gang_differ_the_strictest_word_holds() -> None:
    nears = [
        TopologyConstraint("a"),
        None,
        TopologyConstraint("z", True),
        TopologyConstraint("c", True),
    ]
    assert gang_layout_of([None, PlacementStrategy.SPREAD], nears, [NODE]) == GangLayout(
        PlacementStrategy.SPREAD, TopologyConstraint("c", True), (NODE,)
    )
    assert gang_layout_of([None], [None], [NODE]) == GangLayout()
