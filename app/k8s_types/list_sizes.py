"""Counts the list entries of a pod, for the limits of `core.podspec.size_limits`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from app.core.podspec.size_limits import ListLengths
from app.core.well_known import USER_KEYS
from app.k8s_types import objects


def sizes_of(pod: objects.PodObject) -> ListLengths:
    """Return the number of entries of each list of a pod. Linear in the size of the pod."""
    spec, affinity = pod.spec, pod.spec.affinity
    nodes = affinity.node_affinity if affinity else None
    required = nodes.required_during_scheduling_ignored_during_execution if nodes else None
    preferred = nodes.preferred_during_scheduling_ignored_during_execution if nodes else None
    terms = (required.node_selector_terms or ()) if required else ()
    rules = list(_rules(affinity))
    spreads = spec.topology_spread_constraints or ()
    selectors = [
        *(each.label_selector for each in rules),
        *(each.namespace_selector for each in rules),
        *(each.label_selector for each in spreads),
    ]
    containers = [*(spec.containers or ()), *(spec.init_containers or ())]
    return ListLengths(
        selector=len(spec.node_selector or ()),
        tolerations=len(spec.tolerations or ()),
        node_terms=len(terms),
        node_requirements=sum(len(each) for term in terms for each in _requirements(term)),
        node_values=sum(_values(each) for term in terms for each in _requirements(term)),
        preferences=len(preferred or ()),
        pod_terms=len(rules),
        spreads=len(spreads),
        pod_requirements=sum(map(_size, selectors)) + sum(map(_keys, (*rules, *spreads))),
        pod_values=sum(_values((each and each.match_expressions) or ()) for each in selectors)
        + sum(len(each.namespaces or ()) for each in rules),
        containers=len(containers),
        resources=sum(
            len(each.resources.limits or ()) + len(each.resources.requests or ())
            for each in containers
            if each.resources
        ),
        claims=len(spec.resource_claims or ()),
        gates=len(spec.scheduling_gates or ()),
        annotation=max(
            (len(v) for k, v in (pod.metadata.annotations or {}).items() if k in USER_KEYS),
            default=0,
        ),
    )


def _rules(affinity: objects.AffinitySpec | None) -> Iterator[objects.PodTerm]:
    if affinity is None:
        return
    for rule in (affinity.pod_affinity, affinity.pod_anti_affinity):
        if rule is not None:
            yield from rule.required_during_scheduling_ignored_during_execution or ()


def _requirements(term: objects.NodeTerm) -> Iterator[list[objects.RequirementSpec]]:
    yield term.match_expressions or []
    yield term.match_fields or []


def _values(written: Iterable[objects.RequirementSpec]) -> int:
    return sum(len(each.values or ()) for each in written)


def _size(selector: objects.LabelSelector | None) -> int:
    if selector is None:
        return 0
    return len(selector.match_labels or ()) + len(selector.match_expressions or ())


def _keys(rule: objects.PodTerm | objects.Spread) -> int:
    other = rule.mismatch_label_keys if isinstance(rule, objects.PodTerm) else None
    return len(rule.match_label_keys or ()) + len(other or ())
