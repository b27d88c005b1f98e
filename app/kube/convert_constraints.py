"""Converts affinity, taints and topology spread of pods and nodes into values of the core."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from app.core import model
from app.core.podspec.anti_affinity_terms import AntiAffinityTerm, coarse_term
from app.core.podspec.constraints import (
    ALL_READINESS_TAINTS,
    EXCLUDING_EFFECTS,
    NAME_FIELD,
    READINESS_TAINTS,
    DistanceRuleKind,
    NodeSelectorRequirement,
    NodeSelectorTerm,
    PodDistanceRule,
    RequiredAffinity,
    Taint,
    Toleration,
    tolerated_readiness_taints,
)
from app.core.podspec.disruption_budget import MOST_LABELS
from app.k8s_types import objects
from app.kube.interning import name

_WORDS = frozenset(("In", "NotIn", "Exists", "DoesNotExist"))

MOST_TERMS = 32
"""Limit of separate anti-affinity terms per pod. Further or larger terms are reduced to their
topology key, as if they selected every pod of their namespaces.
"""

MOST_NAMES = 64
"""Limit of namespaces, requirements and values in a term."""

LONGEST_LABELS = 8192
"""Maximum total length in characters of the labels of a pod that are stored."""


@dataclass(frozen=True, slots=True)
class _Self:
    """The fields of a pod that selectors match."""

    namespace: str
    labels: Mapping[str, str]


def read_distance_rules(
    spec: objects.PodSpec, namespace: str, labels: Mapping[str, str]
) -> tuple[PodDistanceRule, ...]:
    """Return the rules that select the pod itself, without soft topology spread constraints."""
    if spec.affinity is None and not spec.topology_spread_constraints:
        return ()
    pod = _Self(namespace, labels)
    return tuple(
        sorted(
            {
                *_rules_of_affinity(spec.affinity, pod),
                *_rules_of_spread(spec, pod),
            },
            key=lambda each: (each.kind.name, each[1:]),
        )
    )


def read_labels(labels: Mapping[str, str]) -> Mapping[str, str] | None:
    """Return the labels of a pod, or None if they are too many to store."""
    if len(labels) > MOST_LABELS:
        return None
    return labels if sum(map(len, (*labels, *labels.values()))) <= LONGEST_LABELS else None


def read_anti_affinity(
    spec: objects.PodSpec, namespace: str, labels: Mapping[str, str]
) -> tuple[AntiAffinityTerm, ...]:
    """Return the required anti-affinity of a pod, as it affects other pods. Linear in its size."""
    rule = spec.affinity.pod_anti_affinity if spec.affinity else None
    terms = rule.required_during_scheduling_ignored_during_execution if rule else None
    pod, found = _Self(namespace, labels), dict[str, AntiAffinityTerm]()
    rest: dict[str, bool] = {}
    for term in terms or ():
        if term.label_selector is None:
            continue  # a missing selector matches no pod
        if len(found) < MOST_TERMS and _size(term) <= MOST_NAMES:
            wall = _anti_affinity_term(term, pod)
            found[wall.group] = wall
        elif len(rest) < MOST_TERMS or term.topology_key in rest:
            others = term.namespace_selector is not None or any(
                each != namespace for each in term.namespaces or ()
            )
            rest[name(term.topology_key)] = others or rest.get(term.topology_key, False)
    large = [coarse_term(key, frozenset((namespace,)), everywhere=e) for key, e in rest.items()]
    return (*found.values(), *large)


def _anti_affinity_term(term: objects.PodTerm, pod: _Self) -> AntiAffinityTerm:
    """Return one term. Unknown operators are ignored."""
    own = frozenset(map(name, term.namespaces or ()))
    chosen = term.namespace_selector
    if not own and chosen is None:
        own = frozenset((name(pod.namespace),))
    everywhere = None if chosen is None else tuple(sorted(_rules(chosen)))
    assert term.label_selector is not None
    rules = _rules(term.label_selector)
    for keys, word in ((term.match_label_keys, "In"), (term.mismatch_label_keys, "NotIn")):
        rules |= {
            NodeSelectorRequirement(k, word, (pod.labels[k],))
            for k in keys or ()
            if k in pod.labels
        }
    like = ""
    if own == {pod.namespace} and everywhere is None and not term.mismatch_label_keys:
        like = _group(term.label_selector, term.match_label_keys, pod)
    key, ordered = name(term.topology_key), tuple(sorted(rules))
    text = json.dumps([key, sorted(own), everywhere, ordered])
    return AntiAffinityTerm(key, _digest(text), own, everywhere, ordered, like)


def _digest(text: str) -> str:
    return name(hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest())


def _rules(selector: objects.LabelSelector) -> set[NodeSelectorRequirement]:
    rules = {
        NodeSelectorRequirement(k, "In", (v,)) for k, v in (selector.match_labels or {}).items()
    }
    for each in selector.match_expressions or ():
        if each.operator in _WORDS:
            values = tuple(sorted(set(each.values or ())))
            rules.add(NodeSelectorRequirement(each.key, each.operator, values))
    return rules


def _size(term: objects.PodTerm) -> int:
    """Return the number of namespaces, requirements and values in a term."""
    size = len(term.namespaces or ()) + len(term.match_label_keys or ())
    size += len(term.mismatch_label_keys or ())
    for selector in (term.label_selector, term.namespace_selector):
        if selector is not None:
            size += len(selector.match_labels or ())
            size += sum(1 + len(each.values or ()) for each in selector.match_expressions or ())
    return size


def _rules_of_affinity(
    affinity: objects.AffinitySpec | None, pod: _Self
) -> Iterator[PodDistanceRule]:
    if affinity is None:
        return
    for distance, rule in (
        (DistanceRuleKind.APART, affinity.pod_anti_affinity),
        (DistanceRuleKind.CLOSE, affinity.pod_affinity),
    ):
        terms = rule.required_during_scheduling_ignored_during_execution if rule else None
        for term in terms or ():
            own = set(term.namespaces or (pod.namespace,)) == {pod.namespace}
            if not own or term.namespace_selector is not None or term.mismatch_label_keys:
                continue
            group = _group(term.label_selector, term.match_label_keys, pod)
            if group:
                yield PodDistanceRule(distance, name(term.topology_key), group)


def _rules_of_spread(spec: objects.PodSpec, pod: _Self) -> Iterator[PodDistanceRule]:
    borne: tuple[Taint, ...] | None = None
    for each in spec.topology_spread_constraints or ():
        if each.when_unsatisfiable != "DoNotSchedule":
            continue
        group = _group(each.label_selector, each.match_label_keys, pod)
        honors_taints = each.node_taints_policy == "Honor"
        if group and honors_taints and borne is None:
            borne = tolerated_readiness_taints(read_tolerations(spec.tolerations))
        if group:
            yield PodDistanceRule(
                DistanceRuleKind.EVEN,
                name(each.topology_key),
                group,
                each.max_skew,
                each.min_domains or 0,
                each.node_affinity_policy != "Ignore",
                honors_taints,
                borne or () if honors_taints else (),
            )


def _group(selector: objects.LabelSelector | None, also: Iterable[str] | None, pod: _Self) -> str:
    """Return the name of the group that a selector selects, "" if the pod is not in it.

    A missing selector selects no pod, an empty one selects every pod. `also` has the keys for which
    pods must have the value of this pod.
    """
    if selector is None:
        return ""
    rules = {
        NodeSelectorRequirement(k, "In", (v,)) for k, v in (selector.match_labels or {}).items()
    }
    for each in selector.match_expressions or ():
        if each.operator not in _WORDS:
            return ""
        values = tuple(sorted(set(each.values or ())))
        rules.add(NodeSelectorRequirement(each.key, each.operator, values))
    rules |= {
        NodeSelectorRequirement(k, "In", (pod.labels[k],)) for k in also or () if k in pod.labels
    }
    if not all(rule.matches(pod.labels) for rule in rules):
        return ""
    return name(json.dumps([pod.namespace, *sorted(rules)]))


def read_tolerations(written: Iterable[objects.TolerationSpec] | None) -> tuple[Toleration, ...]:
    """Return the tolerations of a pod or a pool, in their order."""
    return tuple(
        Toleration(
            name(each.key),
            each.operator or "Equal",
            each.value,
            name(each.effect),
            each.toleration_seconds,
        )
        for each in written or ()
    )


def read_taints(written: Iterable[objects.TaintSpec] | None) -> tuple[Taint, ...]:
    """Return the taints that keep pods off a node, without those that repeat its readiness."""
    return tuple(
        sorted(
            Taint(name(each.key), each.value, name(each.effect))
            for each in written or ()
            if each.effect in EXCLUDING_EFFECTS and each.key not in READINESS_TAINTS
        )
    )


def read_readiness_taints(written: Iterable[objects.TaintSpec] | None) -> tuple[Taint, ...]:
    """Return the taints that repeat the readiness of a node, without values."""
    found = {(each.key, each.effect) for each in written or ()}
    return tuple(each for each in ALL_READINESS_TAINTS if (each.key, each.effect) in found)


def read_affinity(
    affinity: objects.AffinitySpec | None,
) -> tuple[model.NodeSet, RequiredAffinity | None]:
    """Return the nodes that a required affinity names, and its other requirements.

    The DaemonSet controller names one node per pod. Its pods are otherwise equal.
    """
    nodes = affinity.node_affinity if affinity else None
    required = nodes.required_during_scheduling_ignored_during_execution if nodes else None
    if required is None:
        return None, None
    terms = read_node_terms(required)
    named: set[str] = set()
    for term in terms:  # terms are alternatives
        found = _named_nodes(term)
        if found is None and term != NodeSelectorTerm():
            return None, terms
        named |= found or set()
    only = tuple(sorted(model.NodeName(name(each)) for each in named))
    return only, None if all(map(_says_names_only, terms)) else terms


def read_node_terms(written: objects.NodeTerms) -> RequiredAffinity:
    """Return the alternatives of a node selector."""
    return tuple(_term(each) for each in written.node_selector_terms or ())


def _term(term: objects.NodeTerm) -> NodeSelectorTerm:
    return NodeSelectorTerm(_requirements(term.match_expressions), _requirements(term.match_fields))


def _requirements(
    written: Iterable[objects.RequirementSpec] | None,
) -> tuple[NodeSelectorRequirement, ...]:
    return tuple(
        NodeSelectorRequirement(name(each.key), each.operator, tuple(each.values or ()))
        for each in written or ()
    )


def _named_nodes(term: NodeSelectorTerm) -> set[str] | None:
    """Return the nodes that match all fields of a term, or None if it names no node."""
    found: set[str] | None = None
    for each in term.fields:
        if each.key == NAME_FIELD and each.operator == "In":
            found = set(each.values) if found is None else found & set(each.values)
    return found


def _says_names_only(term: NodeSelectorTerm) -> bool:
    return not term.expressions and all(
        (each.key, each.operator) == (NAME_FIELD, "In") for each in term.fields
    )
