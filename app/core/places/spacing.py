"""How pods of one kind keep their distance: required pod (anti-)affinity and topology spread.

Judged among released pods that state the same rule, as those of one controller do. What a rule
says about other pods is not judged here; nor is room.
"""

from __future__ import annotations

from collections.abc import Iterable

from app.core.asks.terms import Distance, Spacing, Terms
from app.core.model import Node, NodeName, Pin, PoolName
from app.core.places.lately import Lately
from app.core.places.reach import Reach, within

FEW = 1000
"""Answers of each sort that are remembered in any case."""

Names = tuple[NodeName, ...]

_Places = dict[NodeName, int]
_Domains = dict[str | None, list[NodeName]]
_Where = tuple[tuple[str, ...], Terms, PoolName]
"""The labels that a node must have to count, and the pods and the pool that it is asked for."""

_Question = tuple[tuple[Spacing, ...], Terms, PoolName]


class Company:
    """Where the released pods of each group are, and which nodes that leaves to the next one."""

    def __init__(self, reach: Reach) -> None:
        self._reach = reach
        self._groups: dict[str, _Places] = {}
        self._stamps: dict[str, int] = {}
        self._clock = self._floor = 0
        self._domains: Lately[tuple[PoolName, str], tuple[int, _Domains]] = Lately(FEW)
        self._counting: Lately[
            tuple[Spacing, _Where], tuple[int, dict[NodeName, str], frozenset[str]]
        ] = Lately(FEW)
        self._open: Lately[_Question, tuple[tuple[int, int], frozenset[NodeName]]] = Lately(FEW)
        self._same: Lately[frozenset[NodeName], frozenset[NodeName]] = Lately(FEW)
        self._pins: Lately[tuple[frozenset[NodeName], int], tuple[Pin, Names]] = Lately(FEW)

    def count(self, spacings: tuple[Spacing, ...], node: NodeName, sign: int) -> None:
        """A released pod is expected on a node, or with sign -1 is there no more."""
        for group in {each.group for each in spacings}:
            places = self._groups.setdefault(group, {})
            places[node] = places.get(node, 0) + sign
            if not places[node]:
                del places[node]
            if not places:
                del self._groups[group]
            self._clock += 1
            self._stamps[group] = self._clock  # outlives the group, until `forget`

    def forget(self) -> None:
        """Start counting anew."""
        self._clock += 1
        self._floor = self._clock  # beyond whatever was told of any group
        self._stamps.clear()
        self._groups.clear()
        self._domains.clear()
        self._counting.clear()
        self._open.clear()
        self._same.clear()
        self._pins.clear()

    def stamp(self, spacings: Iterable[Spacing]) -> int:
        """Return a number that grows whenever the pods of any of these rules come or go."""
        return sum(self._stamps.get(each.group, self._floor) for each in spacings)

    def open(
        self,
        spacings: tuple[Spacing, ...],
        terms: Terms,
        pool: PoolName,
        beside: dict[str, _Places] | None = None,
    ) -> frozenset[NodeName]:
        """Return the nodes of a pool where a pod breaks none of its rules.

        `beside`: pods of each group that are counted too, though they are not released yet.
        """
        terms = self._reach.gist(terms)
        if beside:
            return self._find(spacings, terms, pool, beside)
        key, seen = (spacings, terms, pool), (self.stamp(spacings), self._reach.edition)
        known = self._open.get(key)
        if known is None or known[0] != seen:
            found = self._find(spacings, terms, pool, {})
            same = self._same.get(found)  # most groups may go to the very same nodes
            known = self._open.put(key, (seen, same or self._same.put(found, found)))
        return known[1]

    def pin(self, spacings: tuple[Spacing, ...], terms: Terms, pool: PoolName, pin: Pin) -> Names:
        """Return the same nodes by name, as far as a pin allows them; the same object while it is
        the same.
        """
        open = self.open(spacings, terms, pool)
        key = (open, id(pin))
        known = self._pins.get(key)
        if known is None or known[0] is not pin:
            known = self._pins.put(key, (pin, within(pin, open)))
        return known[1]

    def _find(
        self,
        spacings: tuple[Spacing, ...],
        terms: Terms,
        pool: PoolName,
        beside: dict[str, _Places],
    ) -> frozenset[NodeName]:
        even = tuple(sorted({each.key for each in spacings if each.distance is Distance.EVEN}))
        found: set[NodeName] | None = None
        for each in spacings:
            there = dict(self._groups.get(each.group, {}))
            for name, count in beside.get(each.group, {}).items():
                there[name] = there.get(name, 0) + count
            domains = self._by_domain(pool, each.key)
            match each.distance:
                case Distance.APART:
                    taken = self._occupied(each.key, there)
                    left = [names for domain, names in domains.items() if domain not in taken]
                case Distance.CLOSE:
                    near = self._occupied(each.key, there) or domains.keys() - {None}
                    left = [names for domain, names in domains.items() if domain in near]
                case Distance.EVEN:
                    levels = self._levels(each, (even, terms, pool), there)
                    most = each.skew + _lowest(each, levels) - 1
                    left = [domains.get(d, []) for d, level in levels.items() if level <= most]
            able = {name for names in left for name in names}
            found = able if found is None else found & able
        return frozenset(found or ())

    def _by_domain(self, pool: PoolName, key: str) -> dict[str | None, list[NodeName]]:
        """Return the nodes of a pool by their value of a label."""
        if not self._reach.is_label(key):
            key = ""  # users write what they like: all of that is one
        known = self._domains.get((pool, key))
        if known is None or known[0] != self._reach.edition:
            domains: _Domains = {}
            for node in self._reach.members(pool):
                domains.setdefault(node.labels.get(key), []).append(node.name)
            known = self._domains.put((pool, key), (self._reach.edition, domains))
        return known[1]

    def _occupied(self, key: str, there: _Places) -> set[str | None]:
        """Return the domains that these nodes are in; a node without the label is in none."""
        nodes = (self._reach.node(name) for name in there)
        return {node.labels[key] for node in nodes if node is not None and key in node.labels}

    def _levels(self, spacing: Spacing, where: _Where, there: _Places) -> dict[str | None, int]:
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
            known = self._counting.put(key, found)
        levels: dict[str | None, int] = dict.fromkeys(known[2], 0)
        for name, count in there.items():
            if name in known[1]:
                levels[known[1][name]] += count
        return levels

    def _counts(self, spacing: Spacing, terms: Terms, node: Node) -> bool:
        if spacing.honors_terms and not terms.suits(node.name, node.labels):
            return False
        return not spacing.honors_taints or self._reach.bears(terms, node.name)


def _lowest(spacing: Spacing, levels: dict[str | None, int]) -> int:
    return min(levels.values(), default=0) if len(levels) >= spacing.least else 0


class Trial:
    """A company to which pods are added that are not released yet: those of one plan."""

    def __init__(self, company: Company, pool: PoolName) -> None:
        self._company = company
        self._pool = pool
        self._beside: dict[str, _Places] = {}

    def open(self, spacings: tuple[Spacing, ...], terms: Terms) -> frozenset[NodeName]:
        """Return where the next pod breaks none of its rules."""
        return self._company.open(spacings, terms, self._pool, self._beside)

    def pin(self, spacings: tuple[Spacing, ...], terms: Terms, pin: Pin) -> Names:
        """Return the same by name, as far as a pin allows them."""
        if not self._beside:
            return self._company.pin(spacings, terms, self._pool, pin)
        return within(pin, self.open(spacings, terms))

    def put(self, spacings: tuple[Spacing, ...], node: NodeName) -> None:
        """Let a pod be on a node."""
        for group in {each.group for each in spacings}:
            places = self._beside.setdefault(group, {})
            places[node] = places.get(node, 0) + 1
