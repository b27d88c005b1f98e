"""Intern table of equivalence classes, so that each fit question is answered once per class."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from weakref import WeakValueDictionary

from app.core.model import Amounts, Millis, NodeSet, Pod, PoolName, Resource
from app.core.placement.node_filter import node_constraints_of
from app.core.placement.pod_affinity import distance_rules_of
from app.core.placement.pools import add_to
from app.core.podspec.annotations import single_pod_layout
from app.core.podspec.constraints import ANYWHERE, NodeConstraints, PodDistanceRule
from app.core.podspec.equivalence_class import EquivalenceClass, GangLayout

_Key = tuple[object, ...]

_Kind = tuple[
    frozenset[tuple[Resource, int]], NodeSet, NodeConstraints, tuple[PodDistanceRule, ...]
]
"""Properties that make pods equal: requests, pinned nodes, node constraints, distance rules."""


class EquivalenceTable:
    """All equivalence classes in use."""

    def __init__(self) -> None:
        self._known: WeakValueDictionary[_Key, EquivalenceClass] = WeakValueDictionary()
        self._alone: WeakValueDictionary[_Key, EquivalenceClass] = WeakValueDictionary()

    def __len__(self) -> int:
        """Return the number of entries. A pod without a gang has at most two."""
        return len(self._known) + len(self._alone)

    def clear(self) -> None:
        """Remove all entries."""
        self._known.clear()
        self._alone.clear()

    def class_of(
        self,
        pods: Sequence[Pod],
        pools: tuple[PoolName, ...],
        manner: GangLayout | None = None,
        *,
        is_rest: bool = False,
    ) -> EquivalenceClass:
        """Return the class of pods that are released together. `pools`: the eligible pools.

        `manner`: the layout of their gang (None: that of the first pod). `is_rest`: other pods of
        the gang are already released, so pods without a controller count as owned.
        """
        if manner is None:
            manner = single_pod_layout(pods[0].placement_strategy)
        if len(pods) == 1 and not is_rest:
            pod = pods[0]
            sized, kind = pod.gpu_memory > 0, _kind(pod, marked=False)
            stays = (pod.preemptible, pod.budget_reason)
            sort = (pod.is_owned, pod.scheduler_may_be_silent)
            known = (kind, pools, pod.max_runtime, stays, sized, manner, sort)
            shape = self._alone.get(known)
            if shape is None:
                shape = self._alone[known] = self._class_of_gang(pods, pools, manner, is_rest)
            return shape
        return self._class_of_gang(pods, pools, manner, is_rest)

    def _class_of_gang(
        self, pods: Sequence[Pod], pools: tuple[PoolName, ...], manner: GangLayout, is_rest: bool
    ) -> EquivalenceClass:
        lifetime = _longest(pods)
        keeper = min((pod.budget_reason for pod in pods if pod.budget_reason), default="")
        preemptible = all(pod.preemptible for pod in pods) and not keeper
        sized = any(pod.gpu_memory for pod in pods)
        marked = _is_marked(pods)
        each_kind = [_kind(pod, marked=marked) for pod in pods]
        counts = Counter(each_kind)
        owned, apart = (
            is_rest or all(pod.is_owned for pod in pods),
            any(pod.scheduler_may_be_silent for pod in pods),
        )
        sort = (keeper, sized, owned, apart)
        key = (frozenset(counts.items()), pools, lifetime, preemptible, manner, sort)
        shape = self._known.get(key)
        if shape is None:
            parts: list[tuple[Amounts, int]] = []
            total: dict[Resource, int] = {}
            demands = {kind[0]: pod.demand for kind, pod in zip(each_kind, pods, strict=True)}
            kinds = sorted(counts, key=_by_size, reverse=True) if len(counts) > 1 else [*counts]
            for kind in kinds:
                asked, count = kind[0], counts[kind]
                parts.append((demands[asked], count))
                add_to(total, {r: v * count for r, v in demands[asked].items()}, 1)
            pinned = any(pin is not None for _, pin, _, _ in kinds)
            stated = any(terms != ANYWHERE for _, _, terms, _ in kinds)
            spaced = any(spacings for _, _, _, spacings in kinds)
            shape = self._known[key] = EquivalenceClass(
                tuple(parts),
                total,
                pools,
                lifetime,
                preemptible,
                tuple(pin for _, pin, _, _ in kinds) if pinned else (),
                tuple(terms for _, _, terms, _ in kinds) if stated else (),
                tuple(spacings for _, _, _, spacings in kinds) if spaced else (),
                manner,
                sized,
                keeper,
                owned,
                apart,
            )
        return shape


def _kind(pod: Pod, *, marked: bool) -> _Kind:
    distances = distance_rules_of(pod, marked=marked)
    return frozenset(pod.demand.items()), pod.node_names, node_constraints_of(pod), distances


def _is_marked(pods: Sequence[Pod]) -> bool:
    """Return whether pods of one workload may close nodes to each other."""
    return len(pods) > 1 and any(pod.excluded_by for pod in pods)


def _by_size(kind: _Kind) -> tuple[list[tuple[Resource, int]], bool, tuple[str, ...], str]:
    asked, pin, terms, spacings = kind
    stated = terms != ANYWHERE or spacings
    return sorted(asked), pin is not None, pin or (), repr((terms, spacings)) if stated else ""


def _longest(pods: Sequence[Pod]) -> Millis | None:
    """Return the longest declared run time. None if any pod declares no run time."""
    times = [pod.max_runtime for pod in pods if pod.max_runtime is not None]
    return max(times) if len(times) == len(pods) else None


def sort_by_part(pods: Sequence[Pod], shape: EquivalenceClass) -> list[Pod]:
    """Return the pods in the order of the parts of their class."""
    if len(shape.request_counts) == 1:
        return list(pods)
    marked = _is_marked(pods)
    by_kind: dict[_Kind, list[Pod]] = {}
    for pod in pods:
        by_kind.setdefault(_kind(pod, marked=marked), []).append(pod)
    ordered: list[Pod] = []
    for number, (demand, _) in enumerate(shape.request_counts):
        pin = shape.node_sets[number] if shape.node_sets else None
        terms = shape.node_constraints[number] if shape.node_constraints else ANYWHERE
        spacings = shape.distance_rules[number] if shape.distance_rules else ()
        kind = (frozenset(demand.items()), pin, terms, spacings)
        ordered += by_kind.pop(kind, ())
    return ordered
