"""What a pod says about other pods becomes rules about the distance to those of its own kind. Pure.

A rule whose selector does not match the pod itself is about others, and is not read: Fairgate does
not know the labels of every pod. Nor is one that looks into other namespaces.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from app import wire
from app.core.asks.terms import Distance, Requirement, Spacing
from app.kube.sharing import name

_WORDS = frozenset(("In", "NotIn", "Exists", "DoesNotExist"))


@dataclass(frozen=True, slots=True)
class _Self:
    """What selectors may look at of a pod."""

    namespace: str
    labels: Mapping[str, str]


def read_spacings(
    spec: wire.PodSpec, namespace: str, labels: Mapping[str, str]
) -> tuple[Spacing, ...]:
    """Return the rules of a pod that are about itself and its like; of spread, the hard ones."""
    if spec.affinity is None and not spec.topology_spread_constraints:
        return ()
    pod = _Self(namespace, labels)
    return tuple(
        sorted(
            {*_of_affinity(spec.affinity, pod), *_of_spread(spec.topology_spread_constraints, pod)},
            key=lambda each: (each.distance.name, each[1:]),
        )
    )


def _of_affinity(affinity: wire.Affinity | None, pod: _Self) -> Iterator[Spacing]:
    if affinity is None:
        return
    for distance, rule in (
        (Distance.APART, affinity.pod_anti_affinity),
        (Distance.CLOSE, affinity.pod_affinity),
    ):
        terms = rule.required_during_scheduling_ignored_during_execution if rule else None
        for term in terms or ():
            own = set(term.namespaces or (pod.namespace,)) == {pod.namespace}
            if not own or term.namespace_selector is not None or term.mismatch_label_keys:
                continue
            group = _group(term.label_selector, term.match_label_keys, pod)
            if group:
                yield Spacing(distance, name(term.topology_key), group)


def _of_spread(constraints: Iterable[wire.Spread] | None, pod: _Self) -> Iterator[Spacing]:
    for each in constraints or ():
        if each.when_unsatisfiable != "DoNotSchedule":
            continue
        group = _group(each.label_selector, each.match_label_keys, pod)
        if group:
            yield Spacing(
                Distance.EVEN,
                name(each.topology_key),
                group,
                each.max_skew,
                each.min_domains or 0,
                each.node_affinity_policy != "Ignore",
                each.node_taints_policy == "Honor",
            )


def _group(selector: wire.LabelSelector | None, also: Iterable[str] | None, pod: _Self) -> str:
    """Return the name of the group that a selector picks; "" if the pod is not of it.

    No selector picks nothing, an empty one everything. `also` are keys whose value is the pod's.
    """
    if selector is None:
        return ""
    rules = {Requirement(k, "In", (v,)) for k, v in (selector.match_labels or {}).items()}
    for each in selector.match_expressions or ():
        if each.operator not in _WORDS:
            return ""
        values = tuple(sorted(set(each.values or ())))
        rules.add(Requirement(each.key, each.operator, values))
    rules |= {Requirement(k, "In", (pod.labels[k],)) for k in also or () if k in pod.labels}
    if not all(rule.holds(pod.labels) for rule in rules):
        return ""
    return name(json.dumps([pod.namespace, *sorted(rules)]))
