"""Required anti-affinity of existing pods towards other pods, one value per term.

kube-scheduler places no pod in a domain that runs a pod with a term that selects it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from app.core.podspec.constraints import DistanceRuleKind, NodeSelectorRequirement, PodDistanceRule

NAMESPACE_NAME = "kubernetes.io/metadata.name"
"""The only namespace label with a certain value: the API server writes it."""


class AntiAffinityTerm(NamedTuple):
    """A required pod anti-affinity term. Equal terms have equal `group`s.

    It selects pods by namespace and labels. The labels must meet all `rules`. The namespace must be
    in `namespaces`, or match the selector `namespace_selector` (None: no selector). `own_group`:
    the group of the distance rule between pods that all have this term; "" if the term does not
    select the pod itself.
    """

    topology_key: str
    group: str
    namespaces: frozenset[str]
    namespace_selector: tuple[NodeSelectorRequirement, ...] | None = None
    rules: tuple[NodeSelectorRequirement, ...] = ()
    own_group: str = ""

    def selects(self, namespace: str, labels: Mapping[str, str] | None) -> bool:
        """Return whether the term selects a pod of a namespace. Labels None: they are unknown.

        Namespace labels are unknown, except the name. An unknown label counts as a match: a pod
        that waits is better than a released pod without a node.
        """
        return self._selects_namespace(namespace) and (
            labels is None or all(rule.matches(labels) for rule in self.rules)
        )

    @property
    def counting_rule(self) -> PodDistanceRule:
        """Return the rule that counts a pod with this term, and restricts only other pods."""
        return PodDistanceRule(DistanceRuleKind.AVOIDS, self.topology_key, self.group)

    @property
    def exclusion_rule(self) -> PodDistanceRule:
        """Return the rule for a pod that this term selects."""
        return PodDistanceRule(DistanceRuleKind.AVOIDED, self.topology_key, self.group)

    def _selects_namespace(self, namespace: str) -> bool:
        if namespace in self.namespaces:
            return True
        name = {NAMESPACE_NAME: namespace}
        return self.namespace_selector is not None and all(
            rule.matches(name) for rule in self.namespace_selector if rule.key == NAMESPACE_NAME
        )


def is_same_exclusion(spacing: PodDistanceRule, wall: AntiAffinityTerm) -> bool:
    """Return whether the pod's own rule already separates it from all pods with this term."""
    return spacing.kind is DistanceRuleKind.APART and (spacing.topology_key, spacing.group) == (
        wall.topology_key,
        wall.own_group,
    )


def coarse_term(key: str, namespaces: frozenset[str], *, everywhere: bool) -> AntiAffinityTerm:
    """Return a term that selects every pod of some namespaces, or of all namespaces."""
    named = "*" if everywhere else ",".join(sorted(namespaces))
    group = f"every pod of {named} by {key}"
    return AntiAffinityTerm(key, group, namespaces, () if everywhere else None)
