"""Where the pods of one workload would go, worked out pod by pod without taking anything.

Every pod goes to the best node there is once those before it have their place. For equal pods
that finds a plan whenever there is one; of unequal ones the largest go first.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import NamedTuple

from app.core.asks.shape import ANYHOW, Manner, Parts, Pins
from app.core.model import NodeName, Pin
from app.core.places.ranking import FREE, Cost, Ranked, Ranking, State, plus
from app.core.places.sites import Layout, Room, after, capacity

FEW = 16
"""So few nodes are looked at one by one, not in the order of a ranking."""


class Plan:
    """One node for each pod of a workload, in the order of its parts; None: one still to come."""

    __slots__ = ("_cost", "nodes")

    def __init__(self, nodes: tuple[NodeName | None, ...], cost: Cost | Callable[[], Cost]) -> None:
        self.nodes = nodes
        self._cost = cost

    @property
    def awaits(self) -> bool:
        """Tell whether some of its pods would wait for nodes that are not there yet."""
        return None in self.nodes

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

    __slots__ = ("_within", "asks", "count", "lacking", "lost", "manner", "parts", "pins")

    def __init__(self, parts: Parts, pins: Pins, layout: Layout, manner: Manner = ANYHOW) -> None:
        self.manner = manner
        self.parts = parts  # keeps it alive, so its id stays its own
        self.pins = pins
        self.asks = [(layout.ask(amounts), count) for amounts, count in parts]
        self.count = sum(count for _, count in parts)
        self.lacking = any(ask.lacking for ask, _ in self.asks)
        self.lost = -1
        self._within = [None if pin is None else frozenset(pin) for pin in pins]

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

    def within(self, number: int) -> frozenset[NodeName] | None:
        """Return the same, for asking whether a node is one of them."""
        return self._within[number] if self.pins else None


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

    __slots__ = ("_among", "_changed", "_states", "cost")

    def __init__(
        self,
        changed: Mapping[NodeName, Room],
        states: Mapping[NodeName, State],
        among: Collection[NodeName] | None = None,
    ) -> None:
        """`among`: the nodes that may be used; None: all."""
        self.cost = FREE
        self._among = None if among is None else frozenset(among)
        self._changed = {n: r for n, r in changed.items() if among is None or n in among}
        self._states = states

    def put(
        self, ranking: Ranking, count: int, only: frozenset[NodeName] | None = None
    ) -> list[NodeName] | None:
        """Find nodes for so many equal pods, of these `only`; or None. Then the draft is spoilt."""
        if self._among is not None:
            only = self._among if only is None else only & self._among
        places: Iterator[Ranked] = iter(())
        if only is not None and len(only) <= FEW:
            heap = [n for name in only if (n := self._on(ranking, name))]
        elif count > 1 and only is None and not self._enough(ranking, count):
            return None
        else:
            changed = self._changed if only is None else self._changed.keys() & only
            heap = [n for name in changed if (n := _again(ranking, name, self._changed[name]))]
            places = ranking.places()
        heapq.heapify(heap)
        nodes: list[NodeName] = []
        place = next(places, None)
        while len(nodes) < count:
            while place is not None and (not heap or place.cost <= heap[0].cost):
                self._push(heap, place.cost, place.rest, place.state, 0, only)
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
                self._push(heap, cost, rest, state, spot + 1, only)
        return nodes

    def _on(self, ranking: Ranking, name: NodeName) -> _Next | None:
        known = self._states.get(name)
        room = self._changed.get(name, known.room if known is not None else None)
        return None if room is None else _again(ranking, name, room)

    def _push(
        self,
        heap: list[_Next],
        cost: Cost,
        rest: Room,
        state: State,
        spot: int,
        only: frozenset[NodeName] | None,
    ) -> None:
        """Offer the first node of a state, from `spot` on, that is as the ranking knows it."""
        for number in range(spot, len(state.names)):
            name = state.names[number]
            if name not in self._changed and (only is None or name in only):
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
