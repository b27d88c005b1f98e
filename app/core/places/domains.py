"""Which nodes of a pool stand together, and how much of what fits in each place.

A domain is all nodes with the same values of some labels; a node that lacks one of them is in
none. Figures are brought up to date from what changed. Chooses nothing.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from app.core.model import NodeName
from app.core.places.ranking import Ranking, State
from app.core.places.sites import Ask, Room, capacity

Labels = tuple[str, ...]
Domain = tuple[str, ...]
"""The values of some labels, in their order."""

Figures = tuple[int, int]
"""How many pods of a kind fit, and how much is free of the resource that they are short of."""

NONE: Figures = (0, 0)


class Domains:
    """The domains of a pool's levels, the widest first. See the module."""

    TALLIES = 256
    """Most figures kept up to date at a time."""

    def __init__(self, levels: Labels = ()) -> None:
        self.levels = levels
        self._values: dict[NodeName, dict[str, str]] = {}
        self._names: dict[Labels, dict[Domain, set[NodeName]]] = {}
        self._tallies: dict[tuple[Labels, Ask, int | None], Tally] = {}
        self._journal: list[NodeName] = []
        self._base = 0

    def put(self, name: NodeName, labels: Mapping[str, str]) -> None:
        """A node carries these labels; one without a value counts as absent."""
        if not self.levels:
            return
        values = {level: labels[level] for level in self.levels if labels.get(level)}
        if self._values.get(name) != values:
            self.drop(name)
            self._values[name] = values
            for known, domains in self._names.items():
                domain = self.domain_of(name, known)
                if domain is not None:
                    domains.setdefault(domain, set()).add(name)

    def drop(self, name: NodeName) -> None:
        """A node is gone; harmless if it is unknown."""
        for labels, domains in self._names.items():
            domain = self.domain_of(name, labels)
            if domain is not None:
                domains[domain].discard(name)
                if not domains[domain]:
                    del domains[domain]
        if self._values.pop(name, None) is not None:
            self.note(name)

    def note(self, name: NodeName) -> None:
        """A node has other room than before, or other labels."""
        if not self.levels:
            return
        self._journal.append(name)
        if len(self._journal) > 4 * len(self._values) + 4096:
            cut = len(self._journal) // 2
            self._base += cut
            del self._journal[:cut]

    def domain_of(self, name: NodeName, labels: Labels) -> Domain | None:
        """Return the domain that a node is in, None: in none."""
        values = self._values.get(name, {})
        found = tuple([values[label] for label in labels if label in values])
        return found if len(found) == len(labels) else None

    def nodes(self, labels: Labels) -> Mapping[Domain, Collection[NodeName]]:
        """Return the nodes of every domain, open or not, in no order."""
        domains = self._names.get(labels)
        if domains is None:
            domains = self._names[labels] = {}
            for name in self._values:
                domain = self.domain_of(name, labels)
                if domain is not None:
                    domains.setdefault(domain, set()).add(name)
        return domains

    def tally(
        self, labels: Labels, ranking: Ranking, states: Mapping[NodeName, State]
    ) -> Mapping[Domain, Figures]:
        """Return what each domain has for a kind of pod, the open nodes having these states."""
        key = (labels, ranking.ask, ranking.judge.scarce)
        tally = self._tallies.get(key)
        if tally is None:
            if len(self._tallies) >= self.TALLIES:
                del self._tallies[next(iter(self._tallies))]
            tally = self._tallies[key] = Tally(labels)
        end = self._base + len(self._journal)
        if tally.read < self._base or end - tally.read > len(states):
            tally.clear()
            tally.update(self, states, ranking, states)
        else:
            tally.update(self, self._journal[tally.read - self._base :], ranking, states)
        tally.read = end
        return tally.sums


class Tally:
    """The figures of the domains of some labels, for one kind of pod. `read`: so far it heard."""

    __slots__ = ("_labels", "_parts", "read", "sums")

    def __init__(self, labels: Labels) -> None:
        self.sums: dict[Domain, Figures] = {}
        self.read = -1
        self._labels = labels
        self._parts: dict[NodeName, tuple[Domain, Figures]] = {}

    def clear(self) -> None:
        """Begin anew."""
        self.sums.clear()
        self._parts.clear()

    def update(
        self,
        domains: Domains,
        names: Collection[NodeName],
        ranking: Ranking,
        states: Mapping[NodeName, State],
    ) -> None:
        """Count these nodes as they are now."""
        for name in names:
            known = self._parts.pop(name, None)
            if known is not None:
                self._add(*known, -1)
            state, domain = states.get(name), domains.domain_of(name, self._labels)
            if state is not None and domain is not None:
                part = counted(state, ranking)
                self._parts[name] = (domain, part)
                self._add(domain, part, 1)

    def _add(self, domain: Domain, part: Figures, sign: int) -> None:
        pods, free = self.sums.get(domain, NONE)
        self.sums[domain] = (pods + sign * part[0], free + sign * part[1])


def figures(room: Room, ranking: Ranking) -> Figures:
    """Return what one node with this room has for a kind of pod."""
    return capacity(room, ranking.ask), free_of(room, ranking.judge.scarce)


def counted(state: State, ranking: Ranking) -> Figures:
    """Return the same for one node in a state, of which it is remembered."""
    return ranking.capacity(state), free_of(state.room, ranking.judge.scarce)


def free_of(room: Room, scarce: int | None) -> int:
    """Return how much of a resource is free; 0 if it is of none."""
    return 0 if scarce is None else room[0][scarce]
