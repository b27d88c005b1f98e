"""Racks on a real API server: the stock scheduler binds pods as Fairgate assigned them."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from app.core.errors import ClusterError
from app.devcluster.cluster import LocalCluster
from tests.support.cluster_driver import GPU, Object, Stage, gates, name_of, pod, until

EXAMPLE = Path(__file__).parents[2] / "docs/examples/gang-in-one-rack.yaml"
RACK, KIND = "example.com/rack", "example.com/kind"
SIZES = {"r1": 8, "r2": 8, "r3": 4}
"""Nodes of each rack, with 8 devices each."""


def node(name: str, gpus: int = 8, **labels: str) -> Object:
    room = {"cpu": "64", "memory": "256Gi", "pods": "110", GPU: str(gpus)}
    written = {"kubernetes.io/hostname": name, "type": "kwok"}
    written |= {f"example.com/{key}": value for key, value in labels.items()}
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name, "labels": written},
        "status": {"capacity": room, "allocatable": room},
    }


def pool(name: str, **spec: object) -> Object:
    return {
        "apiVersion": "fairgate.io/v1alpha1",
        "kind": "Pool",
        "metadata": {"name": name},
        "spec": {"nodeSelector": {KIND: name}, **spec},
    }


@pytest.fixture(scope="module")
def rack_nodes(fairgate_cluster: LocalCluster) -> Iterator[None]:
    """Three racks in one pool, a pool of separate nodes that packs, and one that spreads."""
    nodes = [
        node(f"{rack}-{number}", kind="racked", rack=rack)
        for rack, size in SIZES.items()
        for number in range(size)
    ]
    nodes += [node(f"{k}-{number}", kind=k) for k in ("packed", "loose") for number in range(8)]
    pools = [
        pool("racked", topology=[RACK]),
        pool("packed"),
        pool("loose", placement="spread"),
    ]
    stage = Stage(fairgate_cluster)
    names = [name_of(each) for each in nodes]
    try:
        stage.apply("default", *nodes, *pools)
        until("the nodes are ready", lambda: set(names) <= ready(stage))
        yield
    finally:
        stage.cluster.kubectl("delete", "pool", *map(name_of, pools), "--ignore-not-found")
        stage.cluster.kubectl("delete", "node", *names, "--ignore-not-found")


@pytest.fixture
def racks(rack_nodes: None, stage: Stage) -> Stage:
    return stage


def ready(stage: Stage) -> set[str]:
    return {
        name_of(each)
        for each in stage.get("nodes")["items"]
        if any(
            c["type"] == "Ready" and c["status"] == "True"
            for c in each["status"].get("conditions", ())
        )
        if not each["spec"].get("taints")
    }


def asking(name: str, gpus: int = 1, *, kind: str = "racked", **annotations: str) -> Object:
    item = pod(name, gpus, nodeSelector={KIND: kind})
    written = {f"fairgate.io/{key.replace('_', '-')}": text for key, text in annotations.items()}
    item["metadata"]["annotations"] = written
    return item


def gang(size: int, gpus: int, topology: str) -> list[Object]:
    more = {"gang": "train", "gang_size": str(size), "topology": topology}
    return [asking(f"m-{number}", gpus, **more) for number in range(size)]


def bound(stage: Stage, namespace: str, prefix: str = "") -> Counter[str]:
    """Return the number of pods on each node."""
    pods = [p for p in stage.pods(namespace) if name_of(p).startswith(prefix)]
    return Counter(p["spec"].get("nodeName", "") for p in pods)


def rack_of(name: str) -> str:
    return name.partition("-")[0]


def run(stage: Stage, namespace: str, *pods: Object) -> None:
    """Create pods and wait until all pods of the namespace run."""
    before = len(stage.running(namespace))
    stage.apply(namespace, *pods)
    count = before + len(pods)
    until(f"{count} pods run", lambda: len(stage.running(namespace)) == count)


def test_documented_example_runs_in_one_rack(stage: Stage) -> None:
    """It is the first test, because the example needs all racks of the cluster."""
    namespace = stage.namespace("example")
    kubectl = stage.cluster.kubectl
    for number in range(8):
        kubectl("label", "node", f"gpu-node-{number}", f"{RACK}=rack-{number // 4}")
    try:
        kubectl("apply", "-n", namespace, "-f", str(EXAMPLE))
        until("the job runs", lambda: len(stage.running(namespace)) == 4)
        numbers = {int(name.rpartition("-")[2]) // 4 for name in bound(stage, namespace)}
        assert len(numbers) == 1
    finally:
        stage.clear()
        kubectl("delete", "pool", "h100", "--ignore-not-found")
        kubectl("label", "node", "--all", f"{RACK}-")


def test_gang_of_64_is_bound_in_the_only_rack_that_fits(racks: Stage) -> None:
    namespace = racks.namespace("just")
    taken = asking("taken", 1)
    taken["spec"]["nodeSelector"][RACK] = "r1"
    run(racks, namespace, taken)
    members = gang(64, 1, f"required:{RACK}")
    racks.apply(namespace, *members[:-1])
    until("63 wait", lambda: len(racks.held(namespace)) == 63)
    racks.apply(namespace, asking("beside"), members[-1])
    until("all run", lambda: len(racks.running(namespace)) == 66)
    nodes = bound(racks, namespace, "m-")
    assert {rack_of(name) for name in nodes} == {"r2"}
    assert set(nodes.values()) == {8}
    members_seen = [p for p in racks.pods(namespace) if name_of(p).startswith("m-")]
    assert {p["spec"]["nodeSelector"][RACK] for p in members_seen} == {"r2"}


def test_gang_that_fits_no_rack_waits_until_a_rack_is_free(
    racks: Stage,
) -> None:
    namespace = racks.namespace("waits")
    for rack in SIZES:
        item = asking(f"taken-{rack}", 1)
        item["spec"]["nodeSelector"][RACK] = rack
        run(racks, namespace, item)
    racks.apply(namespace, *gang(8, 8, f"required:{RACK}"))
    small = asking("small")
    small["spec"]["nodeSelector"][RACK] = "r1"
    run(racks, namespace, small)
    assert len(racks.held(namespace)) == 8
    racks.delete(namespace, "taken-r2")
    until("the gang is released", lambda: not racks.held(namespace))
    until("it is bound", lambda: "" not in bound(racks, namespace, "m-"))
    assert {rack_of(name) for name in bound(racks, namespace, "m-")} == {"r2"}


def test_a_gang_that_must_split_takes_the_fewest_racks(racks: Stage) -> None:
    namespace = racks.namespace("split")
    taken = asking("taken", 1)
    taken["spec"]["nodeSelector"][RACK] = "r1"
    run(racks, namespace, taken)
    run(racks, namespace, *gang(10, 8, f"preferred:{RACK}"))
    split = Counter(rack_of(name) for name in bound(racks, namespace, "m-").elements())
    assert split == {"r2": 8, "r3": 2}


def test_unlike_pods_of_a_gang_are_bound_to_just_their_nodes(racks: Stage) -> None:
    """The scheduler may bind in any order. Small pods could fill a large pod's node."""
    namespace = racks.namespace("unlike")
    more = {"gang": "train", "gang_size": "20", "topology": f"required:{RACK}"}
    small = [asking(f"a-small-{number}", 1, **more) for number in range(16)]
    large = [asking(f"z-large-{number}", 4, **more) for number in range(4)]
    for item in [*small, *large]:
        item["spec"]["nodeSelector"][RACK] = "r3"
    run(racks, namespace, *small, *large)
    assert sum(bound(racks, namespace).values()) == 20
    for item in racks.pods(namespace):
        terms = item["spec"]["affinity"]["nodeAffinity"][
            "requiredDuringSchedulingIgnoredDuringExecution"
        ]["nodeSelectorTerms"]
        [expression] = [e for term in terms for e in term["matchExpressions"]]
        assert expression["values"] == [item["spec"]["nodeName"]]


def test_single_pods_fill_one_node_after_another_in_a_packed_pool(racks: Stage) -> None:
    namespace = racks.namespace("packed")
    run(racks, namespace, *(asking(f"p-{number}", kind="packed") for number in range(16)))
    assert sorted(bound(racks, namespace).values()) == [8, 8]


def test_single_pods_take_a_node_each_where_pods_are_spread(racks: Stage) -> None:
    namespace = racks.namespace("loose")
    run(racks, namespace, *(asking(f"p-{number}", kind="loose") for number in range(16)))
    assert sorted(bound(racks, namespace).values()) == [2] * 8


def test_placement_annotation_of_a_pod_overrides_the_pool(racks: Stage) -> None:
    namespace = racks.namespace("word")
    packed = [asking(f"p-{n}", kind="loose", placement="pack") for n in range(8)]
    spread = [asking(f"s-{n}", kind="packed", placement="spread") for n in range(8)]
    run(racks, namespace, *packed, *spread)
    assert list(bound(racks, namespace, "p-").values()) == [8]
    assert list(bound(racks, namespace, "s-").values()) == [1] * 8


@pytest.mark.parametrize(
    ("annotation", "value"), [("topology", "rack"), ("placement", "tight"), ("topology", "near:x")]
)
def test_invalid_topology_annotation_causes_a_warning_only(
    racks: Stage, annotation: str, value: str
) -> None:
    namespace = racks.namespace("typo")
    item = asking("p", **{annotation: value})
    apply = ("apply", "--warnings-as-errors", "-n", namespace, "-f", "-")
    with pytest.raises(ClusterError, match=f"fairgate.io/{annotation}: '{value}' is"):
        racks.cluster.kubectl(*apply, stdin=json.dumps(item))
    until("it runs", lambda: racks.running(namespace) == ["p"])


def test_topology_level_missing_in_the_pool_is_reported_in_pod_events(racks: Stage) -> None:
    namespace = racks.namespace("level")
    racks.apply(namespace, *gang(2, 1, "required:example.com/row"))
    sentence = "one example.com/row, which spec.topology of the pool does not list"
    events = ("get", "events", "-n", namespace)
    until("they are told", lambda: sentence in racks.cluster.kubectl(*events))
    assert len(racks.held(namespace)) == 2


def test_a_pool_takes_no_label_that_is_none(racks: Stage) -> None:
    with pytest.raises(ClusterError, match="topology"):
        racks.apply("default", pool("wrong", topology=["no label"]))


def test_pods_with_affinity_of_their_own_keep_it(racks: Stage) -> None:
    namespace = racks.namespace("own")
    own = {
        "podAntiAffinity": {
            "requiredDuringSchedulingIgnoredDuringExecution": [
                {
                    "labelSelector": {"matchLabels": {"app": "y"}},
                    "topologyKey": "kubernetes.io/hostname",
                }
            ]
        }
    }
    items = [asking(f"p-{n}", kind="packed") for n in range(3)]
    for item in items:
        item["metadata"]["labels"] = {"app": "y"}
        item["spec"]["affinity"] = own
    run(racks, namespace, *items)
    for item in racks.pods(namespace):
        assert item["spec"]["affinity"]["podAntiAffinity"] == own["podAntiAffinity"]
        assert "podAffinity" not in item["spec"]["affinity"]
        assert not gates(item)
    assert sorted(bound(racks, namespace).values()) == [1, 1, 1]
