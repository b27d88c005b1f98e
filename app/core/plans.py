"""Where the pods of one workload would go, worked out pod by pod without taking anything.

Every pod goes to the best node there is once those before it have their place. For equal pods
that finds a plan whenever there is one; of unequal ones the largest go first.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Mapping
from typing import NamedTuple

from app.core.backlog import Parts, Pins
from app.core.model import NodeName, Pin
from app.core.ranking import FREE, Cost, Ranking, State, plus
from app.core.sites import Layout, Room, after, capacity


class Plan:
    """One node for each pod of a workload, in the order of its parts."""

    __slots__ = ("_cost", "nodes")

    def __init__(self, nodes: tuple[NodeName, ...], cost: Cost | Callable[[], Cost]) -> None:
        self.nodes = nodes
        self._cost = cost

    @property
    def cost(self) -> Cost:
        """How badly it fits: compare it with other pools, the lowest is best.

        Read it before anything else is told to the Nodes it came from.
        """
        if not isinstance(self._cost, tuple):
            self._cost = self._cost()
        return self._cost


class Want:
    """A workload as a layout sees it. `lost` is when it was last found to fit nowhere."""

    __slots__ = ("asks", "count", "lacking", "lost", "parts", "pins")

    def __init__(self, parts: Parts, pins: Pins, layout: Layout) -> None:
        self.parts = parts  # keeps it alive, so its id stays its own
        self.pins = pins
        self.asks = [(layout.ask(amounts), count) for amounts, count in parts]
        self.count = sum(count for _, count in parts)
        self.lacking = any(ask.lacking for ask, _ in self.asks)
        self.lost = -1

    def order(self, offered: list[int]) -> list[int]:
        """Return the numbers of the parts: what is pinned first, then the largest pods."""

        def size(number: int) -> int:
            needs = self.asks[number][0].needs
            return max([(v << 32) // max(1, offered[i]) for i, v in needs], default=0)

        def place(number: int) -> tuple[bool, int, int]:
            return self.pin(number) is None, -size(number), number

        return sorted(range(len(self.asks)), key=place)

    def pin(self, number: int) -> Pin:
        """Return the nodes that the pods of a part may go to, None: any."""
        return self.pins[number] if self.pins else None


def stack(room: Room, want: Want, order: list[int]) -> bool:
    """Tell whether all pods of a workload fit into one room."""
    if len(want.asks) == 1:
        return capacity(room, want.asks[0][0]) >= want.count
    left: Room | None = room
    for number in order:
        ask, count = want.asks[number]
        for _ in range(count):
            left = after(left, ask) if left is not None else None
    return left is not None


class _Next(NamedTuple):
    """The next pod could go to this node, and leave `rest` there. Names are never equal.

    `state`: the node is untouched, and the `spot`-th in its state.
    """

    cost: Cost
    name: NodeName
    rest: Room
    state: State | None
    spot: int


class Draft:
    """A plan in the making. `changed` holds the room of nodes that is not as the rankings know:
    what is withheld there is gone from it, and so is what the draft has put there."""

    __slots__ = ("_changed", "_states", "cost")

    def __init__(self, changed: Mapping[NodeName, Room], states: Mapping[NodeName, State]) -> None:
        self.cost = FREE
        self._changed = dict(changed)
        self._states = states

    def put(self, ranking: Ranking, count: int) -> list[NodeName] | None:
        """Find nodes for so many equal pods, or None. Then the draft is spoilt."""
        if count > 1 and not self._enough(ranking, count):
            return None
        nodes: list[NodeName] = []
        heap = [n for name, room in self._changed.items() if (n := _again(ranking, name, room))]
        heapq.heapify(heap)
        places = ranking.places()
        place = next(places, None)
        while len(nodes) < count:
            while place is not None and (not heap or place.cost <= heap[0].cost):
                self._push(heap, place.cost, place.rest, place.state, 0)
                place = next(places, None)
            if not heap:
                return None
            cost, name, rest, state, spot = heapq.heappop(heap)
            nodes.append(name)
            self._changed[name] = rest
            self.cost = plus(self.cost, cost)
            again = _again(ranking, name, rest)
            if again is not None:
                heapq.heappush(heap, again)
            if state is not None:
                self._push(heap, cost, rest, state, spot + 1)
        return nodes

    def put_on(
        self, only: tuple[NodeName, ...], ranking: Ranking, count: int
    ) -> list[NodeName] | None:
        """The same for pods that may go to these nodes only."""
        heap = [n for name in only if (n := self._on(ranking, name))]
        heapq.heapify(heap)
        nodes: list[NodeName] = []
        while len(nodes) < count:
            if not heap:
                return None
            best = heapq.heappop(heap)
            nodes.append(best.name)
            self._changed[best.name] = best.rest
            self.cost = plus(self.cost, best.cost)
            again = _again(ranking, best.name, best.rest)
            if again is not None:
                heapq.heappush(heap, again)
        return nodes

    def _on(self, ranking: Ranking, name: NodeName) -> _Next | None:
        known = self._states.get(name)
        room = self._changed.get(name, known.room if known is not None else None)
        return None if room is None else _again(ranking, name, room)

    def _push(self, heap: list[_Next], cost: Cost, rest: Room, state: State, spot: int) -> None:
        """Offer the first node of a state, from `spot` on, that is as the ranking knows it."""
        for number in range(spot, len(state.names)):
            name = state.names[number]
            if name not in self._changed:
                heapq.heappush(heap, _Next(cost, name, rest, state, number))
                return

    def _enough(self, ranking: Ranking, count: int) -> bool:
        """Tell whether so many pods fit at all."""
        for name, room in self._changed.items():
            count -= capacity(room, ranking.ask)
            known = self._states.get(name)
            if known is not None:
                count += ranking.capacity(known)
        for place in ranking.places():
            count -= ranking.capacity(place.state) * len(place.state.names)
            if count <= 0:
                return True
        return count <= 0


def _again(ranking: Ranking, name: NodeName, room: Room) -> _Next | None:
    rest = after(room, ranking.ask)
    return None if rest is None else _Next(ranking.judge.cost(room, rest), name, rest, None, 0)
