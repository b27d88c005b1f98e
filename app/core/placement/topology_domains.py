"""Topology domains of a pool, and their free capacity.

A domain is all nodes with the same values of some labels. A node without one of the labels is in no
domain. Figures are updated from changes only.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from app.core.model import NodeName
from app.core.placement.node_info import FreeCapacity, IndexedRequest, count_fitting
from app.core.placement.node_scoring import NodeState, ScoredNodes

Labels = tuple[str, ...]
Domain = tuple[str, ...]
"""The values of some labels, in the order of the labels."""

Figures = tuple[int, int]
"""How many pods of a kind fit, and how much of their scarcest resource is free."""

NO_FIGURES: Figures = (0, 0)


class Domains:
    """The domains of the topology levels of a pool, the widest level first."""

    MOST_SUMS = 256
    """Maximum number of cached `DomainFigures` objects."""

    def __init__(self, levels: Labels = ()) -> None:
        self.levels = levels
        self._values: dict[NodeName, dict[str, str]] = {}
        self._names: dict[Labels, dict[Domain, set[NodeName]]] = {}
        self._figures: dict[tuple[Labels, IndexedRequest, int | None], DomainFigures] = {}
        self._journal: list[NodeName] = []
        self._base = 0

    def set_labels(self, name: NodeName, labels: Mapping[str, str]) -> None:
        """Add or replace the labels of a node. A label without a value counts as absent."""
        if not self.levels:
            return
        values = {level: labels[level] for level in self.levels if labels.get(level)}
        if self._values.get(name) != values:
            self.drop_node(name)
            self._values[name] = values
            for known, domains in self._names.items():
                domain = self.domain_of(name, known)
                if domain is not None:
                    domains.setdefault(domain, set()).add(name)

    def drop_node(self, name: NodeName) -> None:
        """Remove a node. An unknown name is ignored."""
        for labels, domains in self._names.items():
            domain = self.domain_of(name, labels)
            if domain is not None:
                domains[domain].discard(name)
                if not domains[domain]:
                    del domains[domain]
        if self._values.pop(name, None) is not None:
            self.record_change(name)

    def record_change(self, name: NodeName) -> None:
        """Record that the free capacity or the labels of a node changed."""
        if not self.levels:
            return
        self._journal.append(name)
        if len(self._journal) > 4 * len(self._values) + 4096:
            cut = len(self._journal) // 2
            self._base += cut
            del self._journal[:cut]

    def domain_of(self, name: NodeName, labels: Labels) -> Domain | None:
        """Return the domain of a node. None: it is in no domain."""
        values = self._values.get(name, {})
        found = tuple([values[label] for label in labels if label in values])
        return found if len(found) == len(labels) else None

    def nodes_by_domain(self, labels: Labels) -> Mapping[Domain, Collection[NodeName]]:
        """Return the nodes of every domain, open or not, unordered."""
        domains = self._names.get(labels)
        if domains is None:
            domains = self._names[labels] = {}
            for name in self._values:
                domain = self.domain_of(name, labels)
                if domain is not None:
                    domains.setdefault(domain, set()).add(name)
        return domains

    def figures_by_domain(
        self, labels: Labels, ranking: ScoredNodes, states: Mapping[NodeName, NodeState]
    ) -> Mapping[Domain, Figures]:
        """Return the figures of each domain for a kind of pod. `states`: of the open nodes."""
        key = (labels, ranking.request, ranking.scorer.scarce)
        cached = self._figures.get(key)
        if cached is None:
            if len(self._figures) >= self.MOST_SUMS:
                del self._figures[next(iter(self._figures))]
            cached = self._figures[key] = DomainFigures(labels)
        end = self._base + len(self._journal)
        if cached.read < self._base or end - cached.read > len(states):
            cached.clear()
            cached.update(self, states, ranking, states)
        else:
            cached.update(self, self._journal[cached.read - self._base :], ranking, states)
        cached.read = end
        return cached.by_domain


class DomainFigures:
    """Figures of the domains of some labels for a kind of pod. `read`: position in the journal."""

    __slots__ = ("_labels", "_node_counts", "_parts", "by_domain", "read")

    def __init__(self, labels: Labels) -> None:
        self.by_domain: dict[Domain, Figures] = {}
        self.read = -1
        self._labels = labels
        self._parts: dict[NodeName, tuple[Domain, Figures]] = {}
        self._node_counts: dict[Domain, int] = {}

    def clear(self) -> None:
        """Reset all figures."""
        self.by_domain.clear()
        self._parts.clear()
        self._node_counts.clear()

    def update(
        self,
        domains: Domains,
        names: Collection[NodeName],
        ranking: ScoredNodes,
        states: Mapping[NodeName, NodeState],
    ) -> None:
        """Count these nodes with their current states."""
        for name in names:
            known = self._parts.pop(name, None)
            if known is not None:
                self._add(*known, -1)
            state, domain = states.get(name), domains.domain_of(name, self._labels)
            if state is not None and domain is not None:
                part = figures_of_state(state, ranking)
                self._parts[name] = (domain, part)
                self._add(domain, part, 1)

    def _add(self, domain: Domain, part: Figures, sign: int) -> None:
        nodes = self._node_counts.get(domain, 0) + sign
        if not nodes:  # an autoscaler creates domains without end
            del self.by_domain[domain], self._node_counts[domain]
            return
        self._node_counts[domain] = nodes
        pods, free = self.by_domain.get(domain, NO_FIGURES)
        self.by_domain[domain] = (pods + sign * part[0], free + sign * part[1])


def figures_of_capacity(room: FreeCapacity, ranking: ScoredNodes) -> Figures:
    """Return the figures of one node with this free capacity for a kind of pod."""
    return count_fitting(room, ranking.request), free_amount(room, ranking.scorer.scarce)


def figures_of_state(state: NodeState, ranking: ScoredNodes) -> Figures:
    """Return the figures of one node in a state. The number of pods is cached."""
    return ranking.count_fitting(state), free_amount(state.free_capacity, ranking.scorer.scarce)


def free_amount(room: FreeCapacity, scarce: int | None) -> int:
    """Return the free amount of a resource by index; 0 if the index is None."""
    return 0 if scarce is None else room[0][scarce]
