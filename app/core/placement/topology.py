"""Placement of a gang in topology domains: packing into few, or spreading over many.

`topology_domains` supplies the free capacity of each domain. The caller assigns pods to nodes.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from fractions import Fraction

from app.core.model import NodeName, PlacementStrategy
from app.core.placement.assignment import Assignment, AssignmentRequest
from app.core.placement.node_info import FreeCapacity
from app.core.placement.node_scoring import NodeState, ScoredNodes
from app.core.placement.topology_domains import (
    NO_FIGURES,
    Domain,
    Domains,
    Figures,
    Labels,
    figures_of_capacity,
    figures_of_state,
)
from app.core.podspec.equivalence_class import GangLayout

Attempt = Callable[[Collection[NodeName] | None], Assignment | None]
"""Assigns the workload to some nodes, or to any of the pool (None). Returns None if it does not
fit."""


class TopologyPacking:
    """One search for a workload.

    `kinds`: the parts of the workload, the largest first, with the number of pods. `changed`: the
    free capacity of nodes with reservations.
    """

    def __init__(
        self,
        want: AssignmentRequest,
        kinds: Sequence[tuple[ScoredNodes, int]],
        domains: Domains,
        states: Mapping[NodeName, NodeState],
        changed: Mapping[NodeName, FreeCapacity],
        style: PlacementStrategy,
        attempt: Attempt,
    ) -> None:
        self._kinds = kinds
        self._domains = domains
        self._states = states
        self._changed = changed
        self._attempt = attempt
        self._gang_layout = want.gang_layout
        self._spread = style is PlacementStrategy.SPREAD
        self._equal = len(kinds) == 1 and not any(want.pins)

    def find_assignment(self) -> Assignment | None:
        """Return the node assignment, or None."""
        span = relevant_levels(self._gang_layout, self._domains.levels)
        if span is None:
            return None
        near = self._gang_layout.topology
        head = span[:1] if near is not None and near.label in span else ()
        if self._spread:
            span = head
        for place in reversed(range(len(span))):
            labels = head if head and place == 0 else (*head, span[place])
            for domain in self._fitting_domains(labels):
                plan = self._assign_in_few_domains(
                    self._domains.nodes_by_domain(labels)[domain], span[place + 1 :]
                )
                if plan is not None:
                    return plan
        if self._gang_layout.required_topology_label:
            return None
        return self._assign_in_few_domains(None, () if self._spread else span)

    def _fitting_domains(self, labels: Labels) -> Iterator[Domain]:
        """Return the domains that could hold the whole workload, the tightest first."""
        sums = [self._sums(labels, ranking) for ranking, _ in self._kinds]
        counts = [count for _, count in self._kinds]
        mates = self._gang_domains(labels)
        found = []
        for domain, (pods, free) in sums[0].items():
            if all(s.get(domain, NO_FIGURES)[0] >= n for s, n in zip(sums, counts, strict=True)):
                left = (-free, -pods) if self._spread else (free, pods)
                found.append((domain not in mates, left, domain))
        allowed = {domain[0] for domain in self._gang_domains(labels[:1])}
        bound = bool(self._gang_layout.required_topology_label and self._gang_layout.gang_nodes)
        return (d for _, _, d in sorted(found) if not bound or d[0] in allowed)

    def _gang_domains(self, labels: Labels) -> set[Domain]:
        """Return the domains of the other pods of the gang."""
        found = {self._domains.domain_of(name, labels) for name in self._gang_layout.gang_nodes}
        return {domain for domain in found if domain is not None}

    def _sums(self, labels: Labels, ranking: ScoredNodes) -> Mapping[Domain, Figures]:
        sums = self._domains.figures_by_domain(labels, ranking, self._states)
        if not self._changed:
            return sums
        fixed = dict(sums)
        for name, room in self._changed.items():
            domain = self._domains.domain_of(name, labels)
            if domain is not None and name in self._states:
                before, after = (
                    figures_of_capacity(self._states[name].free_capacity, ranking),
                    figures_of_capacity(room, ranking),
                )
                pods, free = fixed.get(domain, NO_FIGURES)
                fixed[domain] = (pods + after[0] - before[0], free + after[1] - before[1])
        return fixed

    def _assign_in_few_domains(
        self, names: Collection[NodeName] | None, levels: Labels
    ) -> Assignment | None:
        """Assign to some nodes (None: all), in the fewest possible domains of each level."""
        fewer = names
        for level in levels:
            chosen = self._nodes_of_fewest_domains(fewer, level)
            if chosen is None:
                break
            fewer = chosen
        plan = self._attempt(fewer)
        if plan is None and fewer is not names:
            plan = self._attempt(names)
        return plan

    def _nodes_of_fewest_domains(
        self, names: Collection[NodeName] | None, level: str
    ) -> Collection[NodeName] | None:
        """Return the nodes of the fewest domains of a level that hold all pods. None: too few."""
        if names is None:
            members = self._domains.nodes_by_domain((level,))
            each = [self._sums((level,), ranking) for ranking, _ in self._kinds]
            held = {domain: [sums.get(domain, NO_FIGURES) for sums in each] for domain in each[0]}
        else:
            members, held = self._figures_among(names, level)
        for number, (_, count) in enumerate(self._kinds):
            if sum(sums[number][0] for sums in held.values()) < count:
                return None
        mates = self._gang_domains((level,))
        if self._equal:
            chosen = _fewest_equal({d: s[0] for d, s in held.items()}, self._kinds[0][1], mates)
            return frozenset(name for domain in chosen for name in members[domain])
        return self._fewest_unequal(members, held, mates)

    def _figures_among(
        self, names: Collection[NodeName], level: str
    ) -> tuple[dict[Domain, list[NodeName]], dict[Domain, list[Figures]]]:
        """Return the given nodes by domain of a level, and how many pods of each kind fit there."""
        members: dict[Domain, list[NodeName]] = {}
        held: dict[Domain, list[Figures]] = {}
        for name in names:
            domain, state = self._domains.domain_of(name, (level,)), self._states.get(name)
            if domain is None or state is None:
                continue
            members.setdefault(domain, []).append(name)
            sums = held.setdefault(domain, [NO_FIGURES] * len(self._kinds))
            for number, (ranking, _) in enumerate(self._kinds):
                changed = self._changed.get(name)
                part = (
                    figures_of_state(state, ranking)
                    if changed is None
                    else figures_of_capacity(changed, ranking)
                )
                sums[number] = (sums[number][0] + part[0], sums[number][1] + part[1])
        return members, held

    def _fewest_unequal(
        self,
        members: Mapping[Domain, Collection[NodeName]],
        held: Mapping[Domain, list[Figures]],
        mates: set[Domain],
    ) -> Collection[NodeName] | None:
        """Return nearly the fewest domains for unequal pods, those that fit most kinds first."""

        def place(domain: Domain) -> tuple[bool, Fraction, Domain]:
            kinds = zip(held[domain], self._kinds, strict=True)
            part = min(Fraction(sums[0], count) for sums, (_, count) in kinds)
            return domain not in mates, -part, domain

        names: set[NodeName] = set()
        left = [count for _, count in self._kinds]
        for domain in sorted(held, key=place):
            names |= set(members.get(domain, ()))
            left = [n - sums[0] for n, sums in zip(left, held[domain], strict=True)]
            if all(n <= 0 for n in left) and self._attempt(names) is not None:
                return names
        return None


def relevant_levels(manner: GangLayout, levels: Labels) -> Labels | None:
    """Return the levels of a pool that matter for a workload. None: it cannot use the pool."""
    if manner.topology is not None and manner.topology.label in levels:
        return levels[levels.index(manner.topology.label) :]
    return None if manner.required_topology_label else levels


def domain_nodes(domains: Domains, manner: GangLayout) -> list[Collection[NodeName]] | None:
    """Return the nodes of each domain that a confined workload may use, in a fixed order.

    None: it may use any node. If other pods of its gang run, only their domain counts. If their
    nodes are in no domain, the list is empty.
    """
    label = manner.required_topology_label
    if not label:
        return None
    if label not in domains.levels:
        return []
    found = domains.nodes_by_domain((label,))
    mates = {domains.domain_of(name, (label,)) for name in manner.gang_nodes}
    theirs = (domain for domain in sorted(found) if not manner.gang_nodes or domain in mates)
    return [found[domain] for domain in theirs]


def _fewest_equal(held: Mapping[Domain, Figures], count: int, mates: set[Domain]) -> list[Domain]:
    """Return the fewest domains that fit `count` pods. The last domain is the tightest one."""

    def place(domain: Domain) -> tuple[bool, int, int, Domain]:
        pods, free = held[domain]
        return domain not in mates, -pods, free, domain

    order = sorted(held, key=place)
    chosen: list[Domain] = []
    while held[order[len(chosen)]][0] < count:
        domain = order[len(chosen)]
        chosen.append(domain)
        count -= held[domain][0]
    enough = [domain for domain in order[len(chosen) :] if held[domain][0] >= count]
    tightest = min(enough, key=lambda d: (d not in mates, held[d][1], held[d][0], d))
    return [*chosen, tightest]


Fill = Callable[[Collection[NodeName], int], list[NodeName] | None]
"""Assigns a number of pods to some nodes."""

NO_DOMAIN: Domain = ()


class TopologySpreading:
    """One search. `pods_per_node`: the number of pods that fit on each open node."""

    def __init__(self, domains: Domains, pods_per_node: Mapping[NodeName, int], fill: Fill) -> None:
        self._domains = domains
        self._pods_per_node = pods_per_node
        self._fill = fill

    def find_nodes(
        self, names: Collection[NodeName], levels: Labels, count: int
    ) -> list[NodeName] | None:
        """Return the nodes for `count` pods among `names`, or None."""
        if not levels or count < 2:
            return self._fill(names, count)
        members: dict[Domain, list[NodeName]] = {}
        room: dict[Domain, int] = {}
        for name in names:
            domain = self._domains.domain_of(name, levels[:1]) or NO_DOMAIN
            members.setdefault(domain, []).append(name)
            room[domain] = room.get(domain, 0) + self._pods_per_node[name]
        found: list[NodeName] = []
        for domain, part in sorted(spread_pods(room, count).items()):
            nodes = self.find_nodes(frozenset(members[domain]), levels[1:], part)
            if nodes is None:
                return None
            found += nodes
        return found if len(found) == count else None


def spread_pods(room: Mapping[Domain, int], count: int) -> dict[Domain, int]:
    """Return the number of pods per domain: as even as possible, with most free capacity first."""
    parts: dict[Domain, int] = {}
    line = [(0, -left, domain) for domain, left in room.items() if left > 0]
    heapq.heapify(line)
    while line and count:
        part, _, domain = heapq.heappop(line)
        parts[domain] = part + 1
        count -= 1
        if part + 1 < room[domain]:
            heapq.heappush(line, (part + 1, part + 1 - room[domain], domain))
    return parts
