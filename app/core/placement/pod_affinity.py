"""Required pod (anti-)affinity and topology spread among released pods.

Contains the rules as state, and the search for an assignment that honours them.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

from app.core.model import Amounts, Millis, Node, NodeName, NodeSet, Pod, PoolName
from app.core.placement.assignment import Assignment
from app.core.placement.node_filter import NodeFilter, filter_allowed
from app.core.placement.node_scoring import ZERO_COST, add_costs
from app.core.placement.pool_nodes import PoolNodes
from app.core.placement.recent_cache import RecentCache
from app.core.podspec.constraints import (
    ANYWHERE,
    DistanceRuleKind,
    NodeConstraints,
    PodDistanceRule,
)
from app.core.podspec.equivalence_class import EquivalenceClass, Pins

VERSION_SLOTS = 1 << 14
"""Number of version stamps. A stamp changes when pods of one of its groups come or go."""

_SLOT = 64
"""Approximate bytes of a name in a set of names."""
PASSIVE = frozenset({DistanceRuleKind.AVOIDED, DistanceRuleKind.REFUSED, DistanceRuleKind.DEVICES})
"""Rules for a pod that does not itself belong to the group."""

MIN_CACHED_ANSWERS = 1000
"""Minimum number of cached answers of each kind."""

NodeNames = tuple[NodeName, ...]

_Places = dict[NodeName, int]
_Domains = dict[str | None, list[NodeName]]
_Where = tuple[tuple[str, ...], NodeConstraints, PoolName]
"""The labels of a node that counts, and the terms and the pool of the query."""

_Question = tuple[tuple[PodDistanceRule, ...], NodeConstraints, PoolName]


class PodPeers:
    """The nodes with pods of each group, and the nodes that the rules leave to the next pod.

    `labels_of` returns the labels of any node, also of one that is in no pool.
    """

    def __init__(
        self, node_filter: NodeFilter, labels_of: Callable[[NodeName], Mapping[str, str]]
    ) -> None:
        self._node_filter = node_filter
        self._labels_of = labels_of
        self._groups: dict[str, _Places] = {}
        self._assumed: dict[str, _Places] = {}
        """Those of `_groups` that the scheduler has not bound yet."""
        self._bound: dict[str, _Places] = {}
        self._versions = [0] * VERSION_SLOTS
        self._clock = 0
        self._domains: RecentCache[tuple[PoolName, str], tuple[int, _Domains]] = RecentCache(
            MIN_CACHED_ANSWERS
        )
        self._counting: RecentCache[
            tuple[PodDistanceRule, _Where], tuple[int, dict[NodeName, str], frozenset[str]]
        ] = RecentCache(MIN_CACHED_ANSWERS)
        self._open: RecentCache[_Question, tuple[tuple[int, int], frozenset[NodeName]]] = (
            RecentCache(MIN_CACHED_ANSWERS)
        )
        self._shared_sets: RecentCache[frozenset[NodeName], frozenset[NodeName]] = RecentCache(
            MIN_CACHED_ANSWERS
        )
        self._pins: RecentCache[tuple[frozenset[NodeName], int], tuple[NodeSet, NodeNames]] = (
            RecentCache(MIN_CACHED_ANSWERS)
        )

    def count_released_pod(
        self, spacings: tuple[PodDistanceRule, ...], node: NodeName, sign: int, *, bound: bool
    ) -> None:
        """Count a released pod on a node. `sign` -1 subtracts.

        If it is `bound`, `count_bound` counts it in the groups that others must avoid.
        """
        uncounted = {*PASSIVE, DistanceRuleKind.AVOIDS} if bound else PASSIVE
        groups = {each.group for each in spacings if each.kind not in uncounted}
        self._count(self._groups, groups, node, sign)
        if not bound:
            self._count(self._assumed, groups, node, sign)

    def count_bound(self, groups: Iterable[str], node: NodeName, sign: int) -> None:
        """Count a bound pod on a node in groups that other pods must avoid. `sign` -1 subtracts."""
        self._count(self._bound, groups, node, sign)

    def _count(
        self, where: dict[str, _Places], groups: Iterable[str], node: NodeName, sign: int
    ) -> None:
        for group in groups:
            places = where.setdefault(group, {})
            places[node] = places.get(node, 0) + sign
            if not places[node]:
                del places[node]
            if not places:
                del where[group]
            self._clock += 1
            self._versions[hash(group) % VERSION_SLOTS] = self._clock

    def reset_counts(self) -> None:
        """Reset the counts of released pods before a recount. Counts of `count_bound` stay."""
        self._clock += 1
        self._versions = [self._clock] * VERSION_SLOTS
        self._groups.clear()
        self._assumed.clear()
        self.drop_cached_answers()

    def drop_cached_answers(self) -> None:
        """Drop all cached answers. Counts stay."""
        self._domains.clear()
        self._counting.clear()
        self._open.clear()
        self._shared_sets.clear()
        self._pins.clear()

    def version_of(self, spacings: Iterable[PodDistanceRule]) -> int:
        """Return a number that grows whenever pods of a group in the rules come or go.

        It may also grow for other groups: groups share a bounded number of stamps. It also grows
        with each change of readiness taints, if a rule honors them.
        """
        return sum(
            self._versions[hash(each.group) % VERSION_SLOTS]
            + (self._node_filter.readiness_version if each.honors_taints else 0)
            for each in spacings
        )

    def may_close_nodes(self, spacings: Collection[PodDistanceRule]) -> bool:
        """Return whether the rules close any node now, or may within one plan."""
        marks = any(each.kind is DistanceRuleKind.AVOIDS for each in spacings)
        return any(
            marks or each.group in self._bound or each.group in self._groups
            if each.kind in PASSIVE
            else each.kind is not DistanceRuleKind.AVOIDS
            for each in spacings
        )

    def open_nodes(
        self,
        spacings: tuple[PodDistanceRule, ...],
        terms: NodeConstraints,
        pool: PoolName,
        beside: dict[str, _Places] | None = None,
    ) -> frozenset[NodeName]:
        """Return the nodes of a pool where a pod breaks no rule.

        `beside`: pods of each group that also count, although they are not released yet.
        """
        terms = self._node_filter.signature(terms)
        if beside:
            return self._compute_open_nodes(spacings, terms, pool, beside)
        key, seen = (
            (spacings, terms, pool),
            (self.version_of(spacings), self._node_filter.labels_version),
        )
        known = self._open.get(key)
        if known is None or known[0] != seen:
            found = self._compute_open_nodes(spacings, terms, pool, {})
            same = self._shared_sets.get(found)  # most groups have the same open nodes
            if same is None:
                same = self._shared_sets.store(found, found, _SLOT * len(found))
            known = self._open.store(key, (seen, same), _size(spacings))
        return known[1]

    def allowed_nodes(
        self,
        spacings: tuple[PodDistanceRule, ...],
        terms: NodeConstraints,
        pool: PoolName,
        pin: NodeSet,
    ) -> NodeNames:
        """Return the nodes of `open_nodes` that a pin allows, by name. Equal results are one
        object.
        """
        open = self.open_nodes(spacings, terms, pool)
        key = (open, id(pin))
        known = self._pins.get(key)
        if known is None or known[0] is not pin:
            names = filter_allowed(pin, open)
            known = self._pins.store(key, (pin, names), _SLOT * (len(names) + len(open)))
        return known[1]

    def _compute_open_nodes(
        self,
        spacings: tuple[PodDistanceRule, ...],
        terms: NodeConstraints,
        pool: PoolName,
        beside: dict[str, _Places],
    ) -> frozenset[NodeName]:
        even = tuple(
            sorted({each.topology_key for each in spacings if each.kind is DistanceRuleKind.EVEN})
        )
        found: set[NodeName] | None = None
        avoided: dict[str, set[str | None]] = {}
        for each in spacings:
            if each.kind is DistanceRuleKind.AVOIDS:
                continue
            there = self._count_by_node(each.group, beside)
            if each.kind is DistanceRuleKind.AVOIDED:
                avoided.setdefault(each.topology_key, set()).update(
                    self._occupied_domains(each.topology_key, there)
                )
                continue
            domains = self._nodes_by_domain(pool, each.topology_key)
            match each.kind:
                case DistanceRuleKind.APART:
                    taken = self._occupied_domains(each.topology_key, there)
                    left = [names for domain, names in domains.items() if domain not in taken]
                case DistanceRuleKind.REFUSED | DistanceRuleKind.DEVICES:
                    left = [[n for n in names if n not in there] for names in domains.values()]
                case DistanceRuleKind.CLOSE:
                    near = self._occupied_domains(each.topology_key, there) or domains.keys() - {
                        None
                    }
                    left = [names for domain, names in domains.items() if domain in near]
                case DistanceRuleKind.EVEN:
                    levels = self._count_by_domain(each, (even, terms, pool), there)
                    most = each.max_skew + _lowest(each, levels) - 1
                    left = [domains.get(d, []) for d, level in levels.items() if level <= most]
                    full = {domain for domain, level in levels.items() if level > most + 1}
                    if full & self._occupied_domains(
                        each.topology_key, self._assumed.get(each.group, {})
                    ):
                        # The scheduler bound others elsewhere than assumed, and will bind this pod
                        # elsewhere, too: perhaps in the domain that seems to be next.
                        left = []
            able = {name for names in left for name in names}
            found = able if found is None else found & able
        for key, taken in avoided.items():  # once for each key, regardless of the number of rules
            domains = self._nodes_by_domain(pool, key)
            able = {n for domain, names in domains.items() if domain not in taken for n in names}
            found = able if found is None else found & able
        if found is None:
            return frozenset(node.name for node in self._node_filter.members(pool))
        return frozenset(found)

    def _count_by_node(self, group: str, beside: dict[str, _Places]) -> _Places:
        """Return how many pods of a group are on each node."""
        there = dict(self._groups.get(group, {}))
        for more in (self._bound.get(group, {}), beside.get(group, {})):
            for name, count in more.items():
                there[name] = there.get(name, 0) + count
        return there

    def _nodes_by_domain(self, pool: PoolName, key: str) -> dict[str | None, list[NodeName]]:
        """Return the nodes of a pool by their value of a label."""
        if not self._node_filter.is_label(key):
            key = ""  # all keys that no node has share one entry
        known = self._domains.get((pool, key))
        if known is None or known[0] != self._node_filter.labels_version:
            domains: _Domains = {}
            for node in self._node_filter.members(pool):
                domains.setdefault(node.labels.get(key), []).append(node.name)
            size = _SLOT * (len(domains) + sum(map(len, domains.values())))
            known = self._domains.store(
                (pool, key), (self._node_filter.labels_version, domains), size
            )
        return known[1]

    def has_too_few_domains(
        self, spacings: tuple[PodDistanceRule, ...], count: int, among: Collection[NodeName]
    ) -> bool:
        """Return whether `count` equal pods need more domains than the nodes `among` are in.

        They do if anti-affinity lets only one of them into each domain.
        """
        keys = {each.topology_key for each in spacings if each.kind is DistanceRuleKind.APART}
        return count > 1 and any(not self._are_in_domains(key, count, among) for key in keys)

    def _are_in_domains(self, key: str, count: int, among: Collection[NodeName]) -> bool:
        """Return whether nodes are in at least `count` domains, or a node is in none."""
        found: set[str] = set()
        for name in among:
            domain = self._labels_of(name).get(key)
            if domain is None:
                return True  # any number of pods may be on a node in no domain
            found.add(domain)
            if len(found) >= count:
                return True
        return False

    def _occupied_domains(self, key: str, there: _Places) -> set[str | None]:
        """Return the domains of some nodes. A node without the label is in no domain."""
        labels = (self._labels_of(name) for name in there)
        return {found[key] for found in labels if key in found}

    def _count_by_domain(
        self, spacing: PodDistanceRule, where: _Where, there: _Places
    ) -> dict[str | None, int]:
        """Return how many pods of the group are in each domain that counts."""
        key = (spacing._replace(group="", max_skew=1, min_domains=0), where)
        version = self._node_filter.labels_version
        if spacing.honors_taints:
            version += self._node_filter.readiness_version
        known = self._counting.get(key)
        if known is None or known[0] != version:
            even, terms, pool = where
            counts = {
                node.name: node.labels[spacing.topology_key]
                for node in self._node_filter.members(pool)
                if all(each in node.labels for each in even)
                and self._is_counted(spacing, terms, node)
            }
            found = (version, counts, frozenset(counts.values()))
            size = 2 * _SLOT * (len(counts) + len(found[2]))
            known = self._counting.store(key, found, size + _size((spacing,)))
        levels: dict[str | None, int] = dict.fromkeys(known[2], 0)
        for name, count in there.items():
            if name in known[1]:
                levels[known[1][name]] += count
        return levels

    def _is_counted(self, spacing: PodDistanceRule, terms: NodeConstraints, node: Node) -> bool:
        if spacing.honors_node_affinity and not terms.matches_node(node.name, node.labels):
            return False
        if not spacing.honors_taints:
            return True
        return self._node_filter.tolerates_taints(
            terms, node.name
        ) and self._node_filter.tolerates_readiness_taints(spacing.tolerated_readiness, node)


def _size(spacings: tuple[PodDistanceRule, ...]) -> int:
    """Return the approximate bytes of a cache key with these rules."""
    return 500 + sum(200 + len(each.group) + len(each.topology_key) for each in spacings)


def _lowest(spacing: PodDistanceRule, levels: dict[str | None, int]) -> int:
    return min(levels.values(), default=0) if len(levels) >= spacing.min_domains else 0


class TentativePeers:
    """Pods of each group, including the unreleased pods of one plan."""

    def __init__(self, pod_peers: PodPeers, pool: PoolName) -> None:
        self._pod_peers = pod_peers
        self._pool = pool
        self._planned: dict[str, _Places] = {}

    def open_nodes(
        self, spacings: tuple[PodDistanceRule, ...], terms: NodeConstraints
    ) -> frozenset[NodeName]:
        """Return the nodes where the next pod breaks no rule."""
        return self._pod_peers.open_nodes(spacings, terms, self._pool, self._planned)

    def allowed_nodes(
        self, spacings: tuple[PodDistanceRule, ...], terms: NodeConstraints, pin: NodeSet
    ) -> NodeNames:
        """Return the nodes of `open_nodes` that a pin allows, by name."""
        if not self._planned:
            return self._pod_peers.allowed_nodes(spacings, terms, self._pool, pin)
        return filter_allowed(pin, self.open_nodes(spacings, terms))

    def has_too_few_domains(
        self, spacings: tuple[PodDistanceRule, ...], count: int, among: Collection[NodeName]
    ) -> bool:
        """Return whether `count` equal pods need more domains than the nodes `among` are in."""
        return self._pod_peers.has_too_few_domains(spacings, count, among)

    def add_pod(self, spacings: tuple[PodDistanceRule, ...], node: NodeName) -> None:
        """Add a pod of the plan on a node."""
        counted = (each for each in spacings if each.kind not in PASSIVE)
        for group in {each.group for each in counted}:
            places = self._planned.setdefault(group, {})
            places[node] = places.get(node, 0) + 1


def distance_rules_of(pod: Pod, *, marked: bool) -> tuple[PodDistanceRule, ...]:
    """Return every distance rule of a pod. `marked`: also the rules in which it only counts."""
    if not (pod.distance_rules or pod.excluded_by or pod.anti_affinity_terms):
        return ()
    marks = tuple(wall.counting_rule for wall in pod.anti_affinity_terms) if marked else ()
    return (*pod.distance_rules, *pod.excluded_by, *marks)


Chance = tuple[Millis, int, NodeName]
"""When a node could have capacity for a pod, the part still in use, and the name of the node."""


def find_assignment_with_rules(
    floor: PoolNodes,
    shape: EquivalenceClass,
    pins: Pins,
    withheld: Mapping[NodeName, Amounts],
    trial: TentativePeers,
) -> Assignment | None:
    """Return the node assignment of all pods of a workload, or None, like
    `PoolNodes.find_assignment`.
    """
    placed: dict[NodeName, list[Amounts]] = {}
    nodes: list[NodeName] = []
    cost = ZERO_COST
    for number, (demand, count) in enumerate(shape.request_counts):
        terms, spacings = constraints_of_part(shape, number)
        pin = pins[number] if pins else None
        # With a topology spread, a pod may open nodes for the next one.
        may_open = any(each.kind is DistanceRuleKind.EVEN for each in spacings)
        one = shape.request_counts if len(shape.request_counts) == count == 1 else ((demand, 1),)
        for left in range(count, 0, -1):
            only = pin
            if spacings:
                only = trial.allowed_nodes(spacings, terms, pin)
                if (
                    left == count
                    and not may_open
                    and trial.has_too_few_domains(spacings, count, only)
                ):
                    return None
            plan = floor.find_assignment(
                one, withheld, () if only is None else (only,), beside=placed
            )
            if plan is None:
                return None
            [node] = plan.nodes
            assert node is not None, "nodes that are there"
            nodes.append(node)
            cost = add_costs(cost, plan.cost)
            placed.setdefault(node, []).append(demand)
            trial.add_pod(spacings, node)
    return Assignment(tuple(nodes), cost)


def constraints_of_part(
    shape: EquivalenceClass, number: int
) -> tuple[NodeConstraints, tuple[PodDistanceRule, ...]]:
    """Return the node constraints and the distance rules of one part."""
    terms = shape.node_constraints[number] if shape.node_constraints else ANYWHERE
    return terms, shape.distance_rules[number] if shape.distance_rules else ()


def choose_nodes(
    chances: Sequence[Chance],
    count: int,
    terms: NodeConstraints,
    spacings: tuple[PodDistanceRule, ...],
    trial: TentativePeers,
) -> list[NodeName] | None:
    """Return the first `count` nodes of `chances` that the rules allow. None: too few."""
    if not spacings:
        return [node for _, _, node in chances[:count]] if len(chances) >= count else None
    left, nodes = list(chances), []
    for _ in range(count):
        open = trial.open_nodes(spacings, terms)
        chance = next((each for each in left if each[2] in open), None)
        if chance is None:
            return None
        left.remove(chance)
        nodes.append(chance[2])
        trial.add_pod(spacings, chance[2])
    return nodes
