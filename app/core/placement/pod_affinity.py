"""Required pod (anti-)affinity and topology spread among released pods.

Contains the rules as state, the search for an assignment that honours them, and a private cache.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Generic, TypeVar

from app.core.model import Amounts, Millis, Node, NodeName, NodeSet, Pod, PoolName
from app.core.placement.assignment import Assignment
from app.core.placement.node_filter import NodeFilter, within
from app.core.placement.node_scoring import FREE, plus
from app.core.placement.pool_nodes import PoolNodes
from app.core.podspec.constraints import (
    ANYWHERE,
    NodeConstraints,
    PodDistanceRule,
    PodDistanceRules,
)
from app.core.podspec.equivalence_class import EquivalenceClass, Pins

MOST_BYTES = 6 * 1024**2
"""Maximum estimated size in bytes of each of the two generations."""

REMEMBERED = 16
"""Factor: how many more evicted keys are remembered than entries are stored."""

Key = TypeVar("Key")
Value = TypeVar("Value")


class RecentCache(Generic[Key, Value]):
    """Two generations of recently used entries. Older entries are evicted.

    Each generation has `least` entries, or more while evicted entries are put again, so entries
    that every decision needs are not evicted. It shrinks again when few entries are requested. No
    generation exceeds `MOST_BYTES`, by the sizes passed to `store`.
    """

    __slots__ = ("_again", "_earlier", "_gone", "_least", "_most", "_now", "_size", "_used")

    def __init__(self, least: int) -> None:
        self._now: dict[Key, tuple[Value, int]] = {}
        self._earlier: dict[Key, tuple[Value, int]] = {}
        self._size = 0
        self._gone: set[int] = set()  # hashes, because keys are large; a collision is harmless
        self._least = self._most = least
        self._used = self._again = 0

    def __len__(self) -> int:
        """Return the number of entries."""
        return len(self._now) + len(self._earlier)

    def get(self, key: Key) -> Value | None:
        """Return the entry of a key. None if it is not cached."""
        found = self._now.get(key)
        if found is None and key in self._earlier:
            found = self._earlier.pop(key)
            self._used += 1
            self._keep(key, *found)
        return found[0] if found is not None else None

    def store(self, key: Key, value: Value, size: int = 0) -> Value:
        """Store a value, not None, and return it. `size`: bytes of the value and its key."""
        self._earlier.pop(key, None)
        if hash(key) in self._gone:
            self._gone.discard(hash(key))
            self._again += 1
        self._keep(key, value, size)
        return value

    def clear(self) -> None:
        """Remove all entries."""
        self._now.clear()
        self._earlier.clear()
        self._gone.clear()
        self._most = self._least
        self._used = self._again = self._size = 0

    def _keep(self, key: Key, value: Value, size: int) -> None:
        before = self._now.get(key)
        self._size += size - (before[1] if before is not None else 0)
        self._now[key] = value, size
        if len(self._now) <= self._most and self._size <= MOST_BYTES:
            return
        if self._again and self._size <= MOST_BYTES:  # the limit was too low
            self._most *= 2
        elif 4 * self._used < self._most:
            self._most = max(self._least, self._most // 2)
        if len(self._gone) > REMEMBERED * self._most:
            self._gone.clear()
        self._gone.update(map(hash, self._earlier))
        self._earlier, self._now, self._used = self._now, {}, 0
        self._again = self._size = 0


STAMPS = 1 << 14
"""Number of version stamps. A stamp changes when pods of one of its groups come or go."""

_SLOT = 64
"""Approximate bytes of a name in a set of names."""
PASSIVE = frozenset({PodDistanceRule.AVOIDED, PodDistanceRule.REFUSED, PodDistanceRule.DEVICES})
"""Rules for a pod that does not itself belong to the group."""

FEW = 1000
"""Minimum number of cached answers of each kind."""

NodeNames = tuple[NodeName, ...]

_Places = dict[NodeName, int]
_Domains = dict[str | None, list[NodeName]]
_Where = tuple[tuple[str, ...], NodeConstraints, PoolName]
"""The labels of a node that counts, and the terms and the pool of the query."""

_Question = tuple[tuple[PodDistanceRules, ...], NodeConstraints, PoolName]


class PodPeers:
    """The nodes with pods of each group, and the nodes that the rules leave to the next pod.

    `labels_of` returns the labels of any node, also of one that is in no pool.
    """

    def __init__(
        self, reach: NodeFilter, labels_of: Callable[[NodeName], Mapping[str, str]]
    ) -> None:
        self._reach = reach
        self._labels_of = labels_of
        self._groups: dict[str, _Places] = {}
        self._bound: dict[str, _Places] = {}
        self._stamps = [0] * STAMPS
        self._clock = 0
        self._domains: RecentCache[tuple[PoolName, str], tuple[int, _Domains]] = RecentCache(FEW)
        self._counting: RecentCache[
            tuple[PodDistanceRules, _Where], tuple[int, dict[NodeName, str], frozenset[str]]
        ] = RecentCache(FEW)
        self._open: RecentCache[_Question, tuple[tuple[int, int], frozenset[NodeName]]] = (
            RecentCache(FEW)
        )
        self._same: RecentCache[frozenset[NodeName], frozenset[NodeName]] = RecentCache(FEW)
        self._pins: RecentCache[tuple[frozenset[NodeName], int], tuple[NodeSet, NodeNames]] = (
            RecentCache(FEW)
        )

    def count(
        self, spacings: tuple[PodDistanceRules, ...], node: NodeName, sign: int, *, bound: bool
    ) -> None:
        """Count a released pod on a node. `sign` -1 subtracts.

        If it is `bound`, `count_bound` counts it in the groups that others must avoid.
        """
        uncounted = {*PASSIVE, PodDistanceRule.AVOIDS} if bound else PASSIVE
        groups = {each.group for each in spacings if each.distance not in uncounted}
        self._count(self._groups, groups, node, sign)

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
            self._stamps[hash(group) % STAMPS] = self._clock

    def reset_counts(self) -> None:
        """Reset the counts of released pods before a recount. Counts of `count_bound` stay."""
        self._clock += 1
        self._stamps = [self._clock] * STAMPS
        self._groups.clear()
        self.trim()

    def trim(self) -> None:
        """Drop all cached answers. Counts stay."""
        self._domains.clear()
        self._counting.clear()
        self._open.clear()
        self._same.clear()
        self._pins.clear()

    def stamp(self, spacings: Iterable[PodDistanceRules]) -> int:
        """Return a number that grows whenever pods of a group in the rules come or go.

        It may also grow for other groups: groups share a bounded number of stamps.
        """
        return sum(self._stamps[hash(each.group) % STAMPS] for each in spacings)

    def restricts(self, spacings: Collection[PodDistanceRules]) -> bool:
        """Return whether the rules close any node now, or may within one plan."""
        marks = any(each.distance is PodDistanceRule.AVOIDS for each in spacings)
        return any(
            marks or each.group in self._bound or each.group in self._groups
            if each.distance in PASSIVE
            else each.distance is not PodDistanceRule.AVOIDS
            for each in spacings
        )

    def open(
        self,
        spacings: tuple[PodDistanceRules, ...],
        terms: NodeConstraints,
        pool: PoolName,
        beside: dict[str, _Places] | None = None,
    ) -> frozenset[NodeName]:
        """Return the nodes of a pool where a pod breaks no rule.

        `beside`: pods of each group that also count, although they are not released yet.
        """
        terms = self._reach.signature(terms)
        if beside:
            return self._find(spacings, terms, pool, beside)
        key, seen = (spacings, terms, pool), (self.stamp(spacings), self._reach.edition)
        known = self._open.get(key)
        if known is None or known[0] != seen:
            found = self._find(spacings, terms, pool, {})
            same = self._same.get(found)  # most groups have the same open nodes
            if same is None:
                same = self._same.store(found, found, _SLOT * len(found))
            known = self._open.store(key, (seen, same), _size(spacings))
        return known[1]

    def pin(
        self,
        spacings: tuple[PodDistanceRules, ...],
        terms: NodeConstraints,
        pool: PoolName,
        pin: NodeSet,
    ) -> NodeNames:
        """Return the nodes of `open` that a pin allows, by name. Equal results are one object."""
        open = self.open(spacings, terms, pool)
        key = (open, id(pin))
        known = self._pins.get(key)
        if known is None or known[0] is not pin:
            names = within(pin, open)
            known = self._pins.store(key, (pin, names), _SLOT * (len(names) + len(open)))
        return known[1]

    def _find(
        self,
        spacings: tuple[PodDistanceRules, ...],
        terms: NodeConstraints,
        pool: PoolName,
        beside: dict[str, _Places],
    ) -> frozenset[NodeName]:
        even = tuple(
            sorted({each.key for each in spacings if each.distance is PodDistanceRule.EVEN})
        )
        found: set[NodeName] | None = None
        avoided: dict[str, set[str | None]] = {}
        for each in spacings:
            if each.distance is PodDistanceRule.AVOIDS:
                continue
            there = self._places(each.group, beside)
            if each.distance is PodDistanceRule.AVOIDED:
                avoided.setdefault(each.key, set()).update(self._occupied(each.key, there))
                continue
            domains = self._by_domain(pool, each.key)
            match each.distance:
                case PodDistanceRule.APART:
                    taken = self._occupied(each.key, there)
                    left = [names for domain, names in domains.items() if domain not in taken]
                case PodDistanceRule.REFUSED | PodDistanceRule.DEVICES:
                    left = [[n for n in names if n not in there] for names in domains.values()]
                case PodDistanceRule.CLOSE:
                    near = self._occupied(each.key, there) or domains.keys() - {None}
                    left = [names for domain, names in domains.items() if domain in near]
                case PodDistanceRule.EVEN:
                    levels = self._levels(each, (even, terms, pool), there)
                    most = each.skew + _lowest(each, levels) - 1
                    left = [domains.get(d, []) for d, level in levels.items() if level <= most]
            able = {name for names in left for name in names}
            found = able if found is None else found & able
        for key, taken in avoided.items():  # once for each key, regardless of the number of rules
            domains = self._by_domain(pool, key)
            able = {n for domain, names in domains.items() if domain not in taken for n in names}
            found = able if found is None else found & able
        if found is None:
            return frozenset(node.name for node in self._reach.members(pool))
        return frozenset(found)

    def _places(self, group: str, beside: dict[str, _Places]) -> _Places:
        """Return how many pods of a group are on each node."""
        there = dict(self._groups.get(group, {}))
        for more in (self._bound.get(group, {}), beside.get(group, {})):
            for name, count in more.items():
                there[name] = there.get(name, 0) + count
        return there

    def _by_domain(self, pool: PoolName, key: str) -> dict[str | None, list[NodeName]]:
        """Return the nodes of a pool by their value of a label."""
        if not self._reach.is_label(key):
            key = ""  # all keys that no node has share one entry
        known = self._domains.get((pool, key))
        if known is None or known[0] != self._reach.edition:
            domains: _Domains = {}
            for node in self._reach.members(pool):
                domains.setdefault(node.labels.get(key), []).append(node.name)
            size = _SLOT * (len(domains) + sum(map(len, domains.values())))
            known = self._domains.store((pool, key), (self._reach.edition, domains), size)
        return known[1]

    def _occupied(self, key: str, there: _Places) -> set[str | None]:
        """Return the domains of some nodes. A node without the label is in no domain."""
        labels = (self._labels_of(name) for name in there)
        return {found[key] for found in labels if key in found}

    def _levels(
        self, spacing: PodDistanceRules, where: _Where, there: _Places
    ) -> dict[str | None, int]:
        """Return how many pods of the group are in each domain that counts."""
        key = (spacing._replace(group="", skew=1, least=0), where)
        known = self._counting.get(key)
        if known is None or known[0] != self._reach.edition:
            even, terms, pool = where
            counts = {
                node.name: node.labels[spacing.key]
                for node in self._reach.members(pool)
                if all(each in node.labels for each in even) and self._counts(spacing, terms, node)
            }
            found = (self._reach.edition, counts, frozenset(counts.values()))
            size = 2 * _SLOT * (len(counts) + len(found[2]))
            known = self._counting.store(key, found, size + _size((spacing,)))
        levels: dict[str | None, int] = dict.fromkeys(known[2], 0)
        for name, count in there.items():
            if name in known[1]:
                levels[known[1][name]] += count
        return levels

    def _counts(self, spacing: PodDistanceRules, terms: NodeConstraints, node: Node) -> bool:
        if spacing.honors_terms and not terms.suits(node.name, node.labels):
            return False
        return not spacing.honors_taints or self._reach.bears(terms, node.name)


def _size(spacings: tuple[PodDistanceRules, ...]) -> int:
    """Return the approximate bytes of a cache key with these rules."""
    return 500 + sum(200 + len(each.group) + len(each.key) for each in spacings)


def _lowest(spacing: PodDistanceRules, levels: dict[str | None, int]) -> int:
    return min(levels.values(), default=0) if len(levels) >= spacing.least else 0


class TentativePeers:
    """Pods of each group, including the unreleased pods of one plan."""

    def __init__(self, company: PodPeers, pool: PoolName) -> None:
        self._company = company
        self._pool = pool
        self._beside: dict[str, _Places] = {}

    def open(
        self, spacings: tuple[PodDistanceRules, ...], terms: NodeConstraints
    ) -> frozenset[NodeName]:
        """Return the nodes where the next pod breaks no rule."""
        return self._company.open(spacings, terms, self._pool, self._beside)

    def pin(
        self, spacings: tuple[PodDistanceRules, ...], terms: NodeConstraints, pin: NodeSet
    ) -> NodeNames:
        """Return the nodes of `open` that a pin allows, by name."""
        if not self._beside:
            return self._company.pin(spacings, terms, self._pool, pin)
        return within(pin, self.open(spacings, terms))

    def add_pod(self, spacings: tuple[PodDistanceRules, ...], node: NodeName) -> None:
        """Add a pod of the plan on a node."""
        counted = (each for each in spacings if each.distance not in PASSIVE)
        for group in {each.group for each in counted}:
            places = self._beside.setdefault(group, {})
            places[node] = places.get(node, 0) + 1


def distances_of(pod: Pod, *, marked: bool) -> tuple[PodDistanceRules, ...]:
    """Return every distance rule of a pod. `marked`: also the rules in which it only counts."""
    if not (pod.spacings or pod.walled or pod.walls):
        return ()
    marks = tuple(wall.mark for wall in pod.walls) if marked else ()
    return (*pod.spacings, *pod.walled, *marks)


Chance = tuple[Millis, int, NodeName]
"""When a node could have capacity for a pod, the part still in use, and the name of the node."""


def plan_apart(
    floor: PoolNodes,
    shape: EquivalenceClass,
    pins: Pins,
    withheld: Mapping[NodeName, Amounts],
    trial: TentativePeers,
) -> Assignment | None:
    """Return the node assignment of all pods of a workload, or None, like `PoolNodes.find`."""
    placed: dict[NodeName, list[Amounts]] = {}
    nodes: list[NodeName] = []
    cost = FREE
    for number, (demand, count) in enumerate(shape.parts):
        terms, spacings = said_by_part(shape, number)
        pin = pins[number] if pins else None
        one = shape.parts if len(shape.parts) == count == 1 else ((demand, 1),)
        for _ in range(count):
            only = pin
            if spacings:
                only = trial.pin(spacings, terms, pin)
            plan = floor.find(one, withheld, () if only is None else (only,), beside=placed)
            if plan is None:
                return None
            [node] = plan.nodes
            assert node is not None, "nodes that are there"
            nodes.append(node)
            cost = plus(cost, plan.cost)
            placed.setdefault(node, []).append(demand)
            trial.add_pod(spacings, node)
    return Assignment(tuple(nodes), cost)


def said_by_part(
    shape: EquivalenceClass, number: int
) -> tuple[NodeConstraints, tuple[PodDistanceRules, ...]]:
    """Return the node constraints and the distance rules of one part."""
    terms = shape.terms[number] if shape.terms else ANYWHERE
    return terms, shape.spacings[number] if shape.spacings else ()


def choose(
    chances: Sequence[Chance],
    count: int,
    terms: NodeConstraints,
    spacings: tuple[PodDistanceRules, ...],
    trial: TentativePeers,
) -> list[NodeName] | None:
    """Return the first `count` nodes of `chances` that the rules allow. None: too few."""
    if not spacings:
        return [node for _, _, node in chances[:count]] if len(chances) >= count else None
    left, nodes = list(chances), []
    for _ in range(count):
        open = trial.open(spacings, terms)
        chance = next((each for each in left if each[2] in open), None)
        if chance is None:
            return None
        left.remove(chance)
        nodes.append(chance[2])
        trial.add_pod(spacings, chance[2])
    return nodes
