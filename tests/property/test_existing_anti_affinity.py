"""Anti-affinity of existing pods, against a scheduler that compares every pod with every term."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from app.core import events as ev
from app.core.model import Node, NodeName, Uid
from app.core.quantities import PODS, ManagedResources
from app.core.well_known import GATE
from app.k8s_types import objects
from app.kube.convert import Pods
from tests.support.engine_bench import GPU, NOW, Bench

HOST, ZONE = "host", "zone"
NODES = {"a": "x", "b": "x", "c": "y", "d": ""}
"""The zone of each node; "" if it has no such label."""
PER_NODE = 2
REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"

labels = st.dictionaries(st.sampled_from(["app", "tier"]), st.sampled_from("12"), max_size=2)
spaces = st.sampled_from(["red", "blue"])
selectors = st.one_of(
    labels.map(lambda found: {"matchLabels": found}),
    st.builds(
        lambda key, operator, values: {
            "matchExpressions": [{"key": key, "operator": operator, "values": values}]
        },
        st.sampled_from(["app", "tier"]),
        st.sampled_from(["In", "NotIn"]),
        st.lists(st.sampled_from("12"), min_size=1, max_size=2),
    ),
)
terms = st.fixed_dictionaries(
    {"topologyKey": st.sampled_from([HOST, ZONE, "absent"]), "labelSelector": selectors},
    optional={
        "namespaces": st.lists(spaces, min_size=1, max_size=2),
        "namespaceSelector": st.sampled_from(
            [{}, {"matchLabels": {"kubernetes.io/metadata.name": "blue"}}]
        ),
    },
)


@dataclass
class Made:
    """A pod as written: bound from the start, or held for a GPU."""

    name: str
    namespace: str
    labels: dict[str, str]
    terms: list[dict[str, Any]]
    where: str = ""

    @property
    def document(self) -> dict[str, Any]:
        spec: dict[str, Any] = {"affinity": {"podAntiAffinity": {REQUIRED: self.terms}}}
        if self.where:
            spec |= {"nodeName": self.where, "containers": [{}]}
        else:
            ask = {"resources": {"limits": {GPU: "1"}}}
            spec |= {"schedulingGates": [{"name": GATE}], "containers": [ask]}
        whole = {"uid": self.name, "name": self.name, "namespace": self.namespace}
        return {"metadata": {**whole, "labels": self.labels}, "spec": spec}


made = st.builds(
    Made,
    st.just(""),
    spaces,
    labels,
    st.lists(terms, max_size=2),
    st.sampled_from(["", "", "", *NODES]),
)


@dataclass
class Scheduler:
    """Locations of pods, and the nodes that a pod may not use, by comparing every pod and term."""

    there: dict[str, tuple[Made, str]] = field(default_factory=dict)

    def closed(self, pod: Made) -> set[str]:
        found = set()
        for other, at in self.there.values():
            for term in other.terms:
                domain = _labels(at).get(term["topologyKey"])
                if domain is not None and _selects(term, other, pod):
                    found |= {n for n in NODES if _labels(n).get(term["topologyKey"]) == domain}
        return found

    def free(self, name: str) -> int:
        return PER_NODE - sum(at == name and not pod.where for pod, at in self.there.values())


def _labels(name: str) -> dict[str, str]:
    return {HOST: name} | ({ZONE: NODES[name]} if NODES[name] else {})


def _selects(term: dict[str, Any], owner: Made, pod: Made) -> bool:
    chosen, named = term.get("namespaceSelector"), list(term.get("namespaces", ()))
    if chosen is None and not named:
        named = [owner.namespace]
    here = {"kubernetes.io/metadata.name": pod.namespace}
    wanted = pod.namespace in named or (chosen is not None and _matches(chosen, here))
    return wanted and _matches(term["labelSelector"], pod.labels)


def _matches(selector: dict[str, Any], found: dict[str, str]) -> bool:
    for key, value in selector.get("matchLabels", {}).items():
        if found.get(key) != value:
            return False
    for each in selector.get("matchExpressions", ()):
        among = found.get(each["key"]) in each["values"]
        if among is not (each["operator"] == "In"):
            return False
    return True


def _own(pod: Made, scheduler: Scheduler, name: str) -> bool:
    """Return whether a pod's own terms allow a node; Fairgate reads terms about similar pods."""
    for term in pod.terms:
        key = term["topologyKey"]
        for other, at in scheduler.there.values():
            same = _labels(at).get(key) is not None and _labels(at).get(key) == _labels(name).get(
                key
            )
            if same and _selects(term, pod, other):
                return False
    return True


@given(st.lists(made, min_size=1, max_size=10), st.data())
def test_pods_are_released_exactly_where_existing_pods_let_them(
    pods: list[Made], data: st.DataObject
) -> None:
    bench, read = Bench(*map(_node, NODES)), Pods(ManagedResources((GPU,)), frozenset())
    scheduler, held = Scheduler(), dict[str, Made]()
    for number, pod in enumerate(pods):
        pod.name = f"p{number}"
        seen = read.read(msgspec.convert(pod.document, objects.PodObject), NOW)
        assert seen is not None
        if isinstance(seen, ev.PodObserved):
            held[pod.name] = pod
        else:
            scheduler.there[pod.name] = pod, pod.where
        bench.hear(seen)
        _judge(bench, scheduler, held)
        if scheduler.there and data.draw(st.booleans()):
            gone = data.draw(st.sampled_from(sorted(scheduler.there)))
            del scheduler.there[gone]
            bench.hear(ev.PodGone(NOW, Uid(gone)))
            _judge(bench, scheduler, held)


def _judge(bench: Bench, scheduler: Scheduler, held: dict[str, Made]) -> None:
    """Check that each release is valid for the scheduler, and that no held pod could be placed."""
    for name in [name for name in bench.orders if name in held]:
        pod, where = held.pop(name), bench.orders[name].node
        assert where is not None
        assert where not in scheduler.closed(pod), (pod, where)
        scheduler.there[name] = pod, where
    for pod in held.values():
        closed = scheduler.closed(pod)
        open = [n for n in NODES if n not in closed and scheduler.free(n) > 0]
        assert not [n for n in open if _own(pod, scheduler, n)], (pod, open)


def _node(name: str) -> Node:
    return Node(NodeName(name), _labels(name), {GPU: PER_NODE, PODS: 110}, True)
