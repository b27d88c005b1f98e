"""PodDisruptionBudgets as values: the pods that a budget covers, and whether it allows an eviction.

The rules follow the disruption controller and the Eviction API of Kubernetes 1.36.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from app.core.podspec.constraints import NodeSelectorRequirement

MOST_TERMS = 100
"""Maximum number of requirements and values in a selector that is evaluated. A larger selector
counts as selecting every pod: users write selectors, and evaluation must stay cheap."""

MOST_LABELS = 64
"""Maximum number of labels that are stored for a pod. A pod with more counts as selected by every
budget."""

_PERCENT = re.compile(r"(\d{1,5})%", re.ASCII)
_WHOLE = 100

Amount = int | str | None
"""A number of pods, a percentage such as `50%`, or None if the field is not set."""


@dataclass(frozen=True, slots=True)
class DisruptionBudget:
    """One PodDisruptionBudget.

    `selector`: None selects no pod, an empty tuple selects every pod of the namespace.
    `is_observed`: the disruption controller has seen this version. `expected_pods` and
    `disruptions_allowed`: its numbers of expected pods and of allowed disruptions.
    """

    namespace: str
    name: str
    selector: tuple[NodeSelectorRequirement, ...] | None = None
    min_available: Amount = None
    max_unavailable: Amount = None
    is_observed: bool = False
    expected_pods: int = 0
    disruptions_allowed: int = 0

    @property
    def terms(self) -> int:
        """Return how many requirements and values the selector has."""
        return sum(1 + len(each.values) for each in self.selector or ())

    def covers(self, labels: Mapping[str, str] | None) -> bool:
        """Return whether it selects a pod of its namespace. None: the pod has too many labels."""
        if self.selector is None:
            return False
        return labels is None or all(each.matches(labels) for each in self.selector)

    def blocks_eviction(self, pods: int) -> bool:
        """Return whether the budget blocks the eviction of one of `pods` covered pods.

        If more pods are covered than the controller expects, its status is old or the number is
        unknown to it. A percentage, or `maxUnavailable`, then allows fewer disruptions than its
        status states.
        """
        if _is_none(self.max_unavailable) or _is_all(self.min_available):
            return True
        if not self.is_observed or self.disruptions_allowed < 1:
            return True
        counts = self.max_unavailable is None and isinstance(self.min_available, int)
        return not counts and pods > self.expected_pods


def selects(
    match_labels: Mapping[str, str] | None, expressions: tuple[NodeSelectorRequirement, ...]
) -> tuple[NodeSelectorRequirement, ...]:
    """Return a label selector as requirements. An empty tuple if it is too large to evaluate."""
    pairs = match_labels or {}
    size = len(pairs) + len(expressions) + sum(len(each.values) for each in expressions)
    if size > MOST_TERMS:
        return ()
    return (
        *(NodeSelectorRequirement(key, "In", (value,)) for key, value in pairs.items()),
        *expressions,
    )


def _is_none(amount: Amount) -> bool:
    return amount == 0 if isinstance(amount, int) else _percent(amount) == 0


def _is_all(amount: Amount) -> bool:
    percent = None if isinstance(amount, int) else _percent(amount)
    return percent is not None and percent >= _WHOLE


def _percent(amount: str | None) -> int | None:
    found = _PERCENT.fullmatch(amount or "")
    return int(found[1]) if found else None
