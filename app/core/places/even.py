"""Where the pods of a gang go that is to be spread: evenly over the domains of each level.

Equal pods only. The widest level comes first; within a domain its narrower ones, then its nodes.
Nodes without a label count as a domain of their own.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Collection, Mapping

from app.core.model import NodeName
from app.core.places.domains import Domain, Domains, Labels

Fill = Callable[[Collection[NodeName], int], list[NodeName] | None]
"""Lays so many pods out on some nodes."""

ELSEWHERE: Domain = ()


class Even:
    """One search. `room` tells how many of the pods each open node has room for."""

    def __init__(self, domains: Domains, room: Mapping[NodeName, int], fill: Fill) -> None:
        self._domains = domains
        self._room = room
        self._fill = fill

    def find(
        self, names: Collection[NodeName], levels: Labels, count: int
    ) -> list[NodeName] | None:
        """Return where so many pods go on some nodes, or None."""
        if not levels or count < 2:
            return self._fill(names, count)
        members: dict[Domain, list[NodeName]] = {}
        room: dict[Domain, int] = {}
        for name in names:
            domain = self._domains.domain_of(name, levels[:1]) or ELSEWHERE
            members.setdefault(domain, []).append(name)
            room[domain] = room.get(domain, 0) + self._room[name]
        found: list[NodeName] = []
        for domain, part in sorted(shared_out(room, count).items()):
            nodes = self.find(frozenset(members[domain]), levels[1:], part)
            if nodes is None:
                return None
            found += nodes
        return found if len(found) == count else None


def shared_out(room: Mapping[Domain, int], count: int) -> dict[Domain, int]:
    """Return how many each domain gets: as even as their room allows, where most is free first."""
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
