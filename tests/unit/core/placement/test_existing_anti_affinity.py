"""Required anti-affinity of existing pods excludes nodes. Pods without another node stay held."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import msgspec
import pytest

from app.core import events as ev
from app.core.explain.reasons import Rule
from app.core.model import Node, NodeName, Pod, Pool, PoolName, Uid, UnmanagedPod
from app.core.placement.existing_anti_affinity import MAX_TERMS
from app.core.podspec.anti_affinity_terms import AntiAffinityTerm
from app.core.podspec.constraints import DistanceRuleKind, PodDistanceRule
from app.core.podspec.disruption_budget import MOST_LABELS
from app.core.quantities import ManagedResources
from app.k8s_types import objects
from app.kube.convert import Pods
from app.kube.convert_constraints import MOST_NAMES, MOST_TERMS, read_anti_affinity, read_labels
from tests.support.engine_bench import GPU, NOW, Bench
from tests.support.placement_bench import asks
from tests.support.placement_bench import node as plain_node

HOST, ZONE = "kubernetes.io/hostname", "zone"
BLUE = {"fairgate.io/tenant": "blue"}
REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"


def node(name: str, zone: str = "z", gpus: int = 8) -> Node:
    return replace(plain_node(name, gpus=gpus), labels={HOST: name, ZONE: zone})


def term(selector: dict[str, Any] | None = None, key: str = HOST, **more: Any) -> dict[str, Any]:
    chosen = {"matchLabels": BLUE} if selector is None else selector
    return {"topologyKey": key, "labelSelector": chosen, **more}


def existing(
    name: str, where: str, *terms: dict[str, Any], namespace: str = "red"
) -> ev.UnmanagedPodObserved:
    """Return the event of a bound pod without devices, with these terms."""
    document = {
        "metadata": {"uid": name, "name": name, "namespace": namespace},
        "spec": {
            "nodeName": where,
            "containers": [{}],
            "affinity": {"podAntiAffinity": {REQUIRED: list(terms)}},
        },
    }
    read = Pods(ManagedResources((GPU,)), frozenset()).read(
        msgspec.convert(document, objects.PodObject), NOW
    )
    assert isinstance(read, ev.UnmanagedPodObserved)
    return read


EVERYWHERE: dict[str, Any] = {"namespaceSelector": {}}


def blue(name: str, gpus: int = 1, **more: Any) -> Pod:
    return asks(name, gpus, **{"labels": BLUE, "namespace": "blue", **more})


def test_pod_stays_held_if_anti_affinity_excludes_every_node() -> None:
    bench = Bench(node("a"), node("b"))
    bench.hear(existing("wall", "a", term(key=ZONE, **EVERYWHERE)))
    pods = [blue("p"), blue("q")]
    bench.see(*pods, asks("other", 1, namespace="green"))
    assert set(bench.released) == {"other"}
    why = bench.engine.queries.explain_wait(pods[0].uid)
    assert why is not None
    assert why.rule is Rule.NO_POOL
    assert "anti-affinity of existing pods" in why.text
    assert "1 pod of other namespaces" in why.text
    assert "wall" not in why.text
    bench.hear(ev.PodGone(NOW, Uid("wall")))
    assert set(bench.released) == {"other", "p", "q"}


def test_a_pod_of_the_same_namespace_is_named() -> None:
    bench = Bench(node("a"))
    bench.hear(existing("wall", "a", term({}), namespace="blue"))
    pod = blue("p")
    bench.see(pod)
    assert bench.text(pod).endswith("anti-affinity of existing pods closes nodes to it: wall")


def test_a_wall_on_a_node_of_no_pool_counts() -> None:
    pool = Pool(PoolName("gpu"), {"kind": "gpu"})
    inside = replace(node("a"), labels={HOST: "a", ZONE: "z", "kind": "gpu"})
    bench = Bench(inside, node("cpu"), pools=(pool,))
    bench.hear(existing("wall", "cpu", term(key=ZONE, **EVERYWHERE)))
    bench.see(blue("p"))
    assert bench.released == {}
    bench.put(node("cpu", zone="y"))
    assert bench.released == {"p": "a"}


def test_node_that_is_observed_after_its_pod_counts() -> None:
    bench = Bench(node("a"))
    bench.hear(existing("wall", "late", term(key=ZONE, **EVERYWHERE)))
    bench.put(node("late", gpus=0))
    bench.see(blue("p"))
    assert bench.released == {}


def test_only_the_domain_of_the_existing_pod_is_closed() -> None:
    bench = Bench(node("a", gpus=8), node("b", gpus=1))
    bench.hear(existing("wall", "a", term(**EVERYWHERE)))
    pods = [blue(f"p{n}") for n in range(3)]
    bench.see(*pods)
    assert list(bench.released.values()) == ["b"]
    held = next(pod for pod in pods if pod.name not in bench.released)
    why = bench.engine.queries.explain_wait(held.uid)
    assert why is not None
    assert why.rule is Rule.CAPACITY
    assert why.numbers["nodes of default closed by anti-affinity"] == "1"


def test_new_anti_affinity_term_holds_waiting_pods() -> None:
    bench = Bench(node("a", gpus=1))
    first, second = blue("first"), blue("second")
    bench.see(first, second)
    bench.hear(existing("wall", "a", term(**EVERYWHERE)))
    bench.gone(first)
    assert set(bench.released) == {"first"}
    bench.hear(ev.PodGone(NOW, Uid("wall")))
    assert set(bench.released) == {"first", "second"}


def test_no_pod_is_evicted_for_a_pod_that_anti_affinity_excludes() -> None:
    bench = Bench(node("a"))
    bench.hear(existing("wall", "a", term(**EVERYWHERE)))
    bench.see(asks("low", 8, namespace="blue", priority=0))
    bench.see(blue("high", 8, priority=9))
    assert (set(bench.released), bench.evicted) == ({"low"}, [])


def test_the_terms_of_a_released_pod_count_for_other_managed_pods() -> None:
    walls = read(term({"matchLabels": {"app": "b"}}), namespace="team")
    bench = Bench(node("a"))
    first = asks("has-the-term", 1, anti_affinity_terms=walls, namespace="team")
    bench.see(first)
    selected = asks("selected", 1, labels={"app": "b"}, namespace="team")
    bench.see(selected, asks("same-labels", 1, labels={"app": "b"}, namespace="elsewhere"))
    assert set(bench.released) == {"has-the-term", "same-labels"}
    bench.gone(first)
    assert "selected" in bench.released


def test_gang_pods_with_anti_affinity_to_each_other_get_different_nodes() -> None:
    walls = read(term({"matchLabels": {"app": "b"}}), namespace="team")
    gang = {"gang": "g", "gang_size": 2, "namespace": "team"}
    one, two = (
        asks("one", 1, anti_affinity_terms=walls, **gang),
        asks("two", 1, labels={"app": "b"}, **gang),
    )
    bench = Bench(node("a"))
    bench.see(one, two)
    assert bench.released == {}
    bench.put(node("b"))
    assert sorted(filter(None, bench.released.values())) == ["a", "b"]


def test_existing_pods_that_state_the_same_rule_keep_their_like_away() -> None:
    same = term({"matchLabels": {"app": "x"}})
    document = {"affinity": {"podAntiAffinity": {REQUIRED: [same]}}}
    spec, labels = msgspec.convert(document, objects.PodSpec), {"app": "x"}
    [wall] = read_anti_affinity(spec, "team", labels)
    apart = PodDistanceRule(DistanceRuleKind.APART, HOST, wall.own_group)
    pod = asks(
        "p",
        1,
        labels=labels,
        namespace="team",
        anti_affinity_terms=(wall,),
        distance_rules=(apart,),
    )
    bench = Bench(node("a"))
    taken = UnmanagedPod(Uid("u"), NodeName("a"), {}, (wall,), ("team", "u"))
    bench.hear(ev.UnmanagedPodObserved(NOW, taken))
    bench.see(pod)
    assert bench.released == {}
    bench.hear(ev.PodGone(NOW, Uid("u")))
    assert bench.released == {"p": "a"}


def test_own_anti_affinity_term_does_not_block_releases_to_future_nodes() -> None:
    walls = read(term({"matchLabels": {"app": "b"}}), namespace="team")
    pool = Pool(PoolName("gpu"), max_capacity={GPU: 16})
    bench = Bench(node("a", gpus=8), pools=(pool,))
    bench.see(*(asks(f"p{n}", 8, anti_affinity_terms=walls, namespace="team") for n in range(2)))
    assert sorted(bench.released.values(), key=str) == [None, "a"]


def test_pod_can_wait_for_new_nodes_after_the_anti_affinity_ends() -> None:
    pool = Pool(PoolName("gpu"), max_capacity={GPU: 16})
    bench = Bench(node("a"), pools=(pool,))
    first = asks("first", 8, namespace="green")
    bench.see(first)
    bench.hear(existing("wall", "a", term(**EVERYWHERE)))
    bench.see(blue("p", 8))
    assert set(bench.released) == {"first"}
    bench.hear(ev.PodGone(NOW, Uid("wall")))
    assert bench.released == {"first": "a", "p": None}


def test_pod_is_compared_with_a_term_once_while_the_terms_do_not_change(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    compared: list[str] = []
    selects = AntiAffinityTerm.selects

    def counted(wall: AntiAffinityTerm, namespace: str, labels: Mapping[str, str] | None) -> bool:
        compared.append(wall.group)
        return selects(wall, namespace, labels)

    monkeypatch.setattr(AntiAffinityTerm, "selects", counted)
    bench = Bench(node("a"))
    for number in range(20):
        bench.hear(existing(f"w{number}", "a", term({"matchLabels": {"n": str(number)}})))
    bench.hear(existing("wall", "a", term(**EVERYWHERE)))
    bench.see(blue("p"))
    shared: dict[str, str] = {}
    for number in range(50):
        bench.see(asks(f"other-{number}", 0, namespace="green", labels=shared))
    assert len(compared) == 2  # terms that select only another namespace are not parsed


def test_labels_that_change_are_judged_again() -> None:
    bench = Bench(node("a"))
    bench.hear(existing("wall", "a", term(**EVERYWHERE)))
    pod = blue("p")
    bench.see(pod)
    assert bench.released == {}
    bench.see(replace(pod, labels={}))
    assert bench.released == {"p": "a"}


def test_second_observation_of_an_excluded_pod_keeps_its_class() -> None:
    bench = Bench(node("a"))
    bench.hear(existing("wall", "a", term(**EVERYWHERE)))
    pod = blue("p")
    bench.see(pod)
    tracked = bench.engine._registry.pods[pod.uid]
    shape = tracked.equivalence_class
    bench.see(pod)
    assert tracked.equivalence_class is shape


def test_terms_of_deleted_pods_are_dropped() -> None:
    bench = Bench(node("a"))
    for number in range(3 * MAX_TERMS):
        labels = {"matchLabels": {"app": str(number)}}
        bench.hear(existing("wall", "a", term(labels)))
        bench.hear(ev.PodGone(NOW, Uid("wall")))
    walls = bench.engine._placement.existing_anti_affinity
    assert [
        walls._pods,
        walls._terms_by_namespace,
        walls._holders,
        walls._all_namespaces_terms,
    ] == [{}, {}, {}, {}]
    assert not bench.engine._placement.pod_peers._bound


def test_terms_beyond_the_most_of_a_namespace_count_as_selecting_all_of_it() -> None:
    bench = Bench(node("a"), node("b"))
    labels = [{"matchLabels": {"app": str(n)}} for n in range(MAX_TERMS + 1)]
    for number, each in enumerate(labels):
        where = "a" if number == MAX_TERMS else "elsewhere"
        bench.hear(existing(f"w{number}", where, term(each), namespace="blue"))
    walls = bench.engine._placement.existing_anti_affinity
    assert len(walls._terms_by_namespace["blue"]) == MAX_TERMS + 1
    bench.see(blue("p"), asks("other", 1, namespace="green"))
    assert bench.released["p"] == "b"  # the term beyond the bound counts only on its node
    assert "other" in bench.released


def test_terms_beyond_the_limit_leave_no_state() -> None:
    bench = Bench(node("a"))
    for number in range(MAX_TERMS):
        label = {"matchLabels": {"app": str(number)}}
        bench.hear(existing(f"w{number}", "a", term(label), namespace="blue"))
    for number in range(10):
        bench.hear(existing(f"x{number}", "a", term(namespaces=["blue", f"any{number}"])))
    assert bench.engine._placement.existing_anti_affinity._terms_by_namespace.keys() == {"blue"}


# --- fields of a pod ---


def read(*terms: dict[str, Any], namespace: str = "red", **labels: str) -> tuple[Any, ...]:
    document = {"affinity": {"podAntiAffinity": {REQUIRED: list(terms)}}}
    return read_anti_affinity(msgspec.convert(document, objects.PodSpec), namespace, labels)


def named(namespace: str) -> dict[str, Any]:
    return {"matchLabels": {"kubernetes.io/metadata.name": namespace}}


def expression(key: str, operator: str, *values: str) -> dict[str, Any]:
    return {"matchExpressions": [{"key": key, "operator": operator, "values": list(values)}]}


@pytest.mark.parametrize(
    ("each", "namespace", "selected"),
    [
        (term(), "red", True),
        (term(), "blue", False),
        (term(namespaces=["blue"]), "blue", True),
        (term(namespaces=["blue"]), "red", False),
        (term(namespaceSelector={}), "blue", True),
        (term(namespaceSelector=named("x")), "blue", False),
        (term(namespaceSelector=named("blue")), "blue", True),
        (term(namespaceSelector={"matchLabels": {"team": "x"}}), "blue", True),  # possible
        (term({}), "red", True),
        (term({"matchLabels": {"app": "x"}}), "red", False),
        (term(expression("app", "DoesNotExist")), "red", True),
        (term(expression("fairgate.io/tenant", "In", "x", "blue")), "red", True),
        (term(expression("fairgate.io/tenant", "NotIn", "x", "blue")), "red", False),
        (term({}, matchLabelKeys=["color"]), "red", False),
        (term({}, mismatchLabelKeys=["color"]), "red", True),
        (term({}, matchLabelKeys=["absent"]), "red", True),
    ],
)
def test_term_selects_the_same_pods_as_in_kube_scheduler(
    each: dict[str, Any], namespace: str, selected: bool
) -> None:
    [wall] = read(each, color="red")
    assert wall.selects(namespace, BLUE) is selected


def test_term_without_a_selector_selects_no_pod() -> None:
    assert read({"topologyKey": HOST}) == ()


def test_equal_terms_of_different_pods_share_one_group() -> None:
    assert read(term(), app="x")[0].group == read(term(), app="y")[0].group
    assert read(term())[0].group != read(term(), namespace="other")[0].group
    assert read(term())[0].group != read(term(key=ZONE))[0].group


def test_terms_beyond_the_limit_count_by_topology_key_alone() -> None:
    many = [term({"matchLabels": {"app": str(n)}}) for n in range(10 * MOST_TERMS)]
    walls = read(*many, term({"matchLabels": {"app": "last"}}, key=ZONE))
    assert len(walls) == MOST_TERMS + 2
    assert all(
        any(w.topology_key == key and w.selects("red", {}) for w in walls) for key in (HOST, ZONE)
    )
    assert not any(wall.selects("blue", {}) for wall in walls)


def test_a_term_of_absurd_size_counts_by_its_topology_key() -> None:
    values = [str(number) for number in range(2 * MOST_NAMES)]
    large = {"matchExpressions": [{"key": "app", "operator": "In", "values": values}]}
    [wall] = read(term(large))
    assert wall.selects("red", {})
    assert not wall.selects("blue", {})
    [wall] = read(term(large, namespaces=["blue"]))
    assert wall.selects("green", {})


def test_labels_that_are_too_many_to_store_count_as_selected() -> None:
    many = {str(number): "" for number in range(MOST_LABELS + 1)}
    assert read_labels(many) is None
    [wall] = read(term())
    assert wall.selects("red", None)
    assert not wall.selects("blue", None)
    assert read_labels({"a": "b"}) == {"a": "b"}


def test_reason_of_a_gang_whose_pods_avoid_each_other_names_no_scattered_capacity() -> None:
    """One node has room for both pods, but one of them must not be beside the other."""
    rules = {"podAntiAffinity": {REQUIRED: [term({"matchLabels": {"role": "worker"}})]}}
    document = {"spec": {"containers": [{}], "affinity": rules}}
    spec = msgspec.convert(document, objects.PodObject).spec
    apart = {"anti_affinity_terms": read_anti_affinity(spec, "blue", {"role": "server"})}
    bench = Bench(node("a"), node("b"))
    bench.see(blue("big", 8))
    server = blue("server", gang="g", gang_size=2, labels={"role": "server"}, **apart)
    bench.see(server, blue("worker", gang="g", gang_size=2, labels={"role": "worker"}))
    found = bench.engine.queries.explain_wait(server.uid)
    assert found is not None
    assert found.remedies[0] == "free capacity in pool default on nodes that its rules allow"
