"""A node assignment for one workload, built pod by pod. Allocates nothing.

Each pod gets the best node after the pods before it are placed. If all pods are equal, a plan is
found whenever one exists. If they are unequal, the largest are placed first.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import NamedTuple

from app.core.model import NodeName, NodeSet
from app.core.placement.node_info import (
    FreeCapacity,
    ResourceIndex,
    count_fitting,
    subtract_request,
)
from app.core.placement.node_scoring import (
    ZERO_COST,
    Cost,
    NodeState,
    ScoredNodes,
    ScoredState,
    add_costs,
)
from app.core.podspec.equivalence_class import DEFAULT_LAYOUT, GangLayout, Parts, Pins

MAX_SINGLE_EVALUATIONS = 16
"""Up to this number, nodes are evaluated one by one instead of in the order of a ranking."""


class Assignment:
    """The node of each pod of a workload, in the order of its parts. None: not provisioned yet."""

    __slots__ = ("_cost", "nodes")

    def __init__(self, nodes: tuple[NodeName | None, ...], cost: Cost | Callable[[], Cost]) -> None:
        self.nodes = nodes
        self._cost = cost

    @property
    def has_future_nodes(self) -> bool:
        """Return whether some of its pods would wait for nodes that are not provisioned yet."""
        return None in self.nodes

    @property
    def cost(self) -> Cost:
        """The cost of the plan, to compare it with other pools. Lower is better.

        Read it before its `PoolNodes` change.
        """
        if not isinstance(self._cost, tuple):
            self._cost = self._cost()
        return self._cost


class AssignmentRequest:
    """Requests of a workload by resource index. `failed_at_version`: `growth_version` when it last
    did not fit.
    """

    __slots__ = (
        "_within",
        "count",
        "failed_at_version",
        "gang_layout",
        "has_unknown_resource",
        "parts",
        "pins",
        "requests",
    )

    def __init__(
        self,
        parts: Parts,
        pins: Pins,
        layout: ResourceIndex,
        gang_layout: GangLayout = DEFAULT_LAYOUT,
    ) -> None:
        self.gang_layout = gang_layout
        self.parts = parts  # keeps the object alive, so that its id stays unique
        self.pins = pins
        self.requests = [(layout.index_request(amounts), count) for amounts, count in parts]
        self.count = sum(count for _, count in parts)
        self.has_unknown_resource = any(ask.has_unknown_resource for ask, _ in self.requests)
        self.failed_at_version = -1
        self._within = [None if pin is None else frozenset(pin) for pin in pins]

    def part_order(self, offered: list[int]) -> list[int]:
        """Return the numbers of the parts: pinned parts first, then the largest pods."""

        def size(number: int) -> int:
            needs = self.requests[number][0].needs
            return max([(v << 32) // max(1, offered[i]) for i, v in needs], default=0)

        def place(number: int) -> tuple[bool, int, int]:
            return self.nodes_of_part(number) is None, -size(number), number

        return sorted(range(len(self.requests)), key=place)

    def nodes_of_part(self, number: int) -> NodeSet:
        """Return the nodes that the pods of a part may use. None: any node."""
        return self.pins[number] if self.pins else None

    def node_set_of_part(self, number: int) -> frozenset[NodeName] | None:
        """Return the nodes that the pods of a part may use, as a set. None: any node."""
        return self._within[number] if self.pins else None


def fits_on_one_node(room: FreeCapacity, want: AssignmentRequest, order: list[int]) -> bool:
    """Return whether all pods of a workload fit on one node with this free capacity."""
    if len(want.requests) == 1:
        return count_fitting(room, want.requests[0][0]) >= want.count
    left: FreeCapacity | None = room
    for number in order:
        ask, count = want.requests[number]
        for _ in range(count):
            left = subtract_request(left, ask) if left is not None else None
    return left is not None


class _Next(NamedTuple):
    """A candidate node for the next pod, and the free capacity `rest` it would have then.

    `state`: the node is unchanged and number `spot` in its state. Names are unique, so later fields
    are never compared.
    """

    cost: Cost
    name: NodeName
    rest: FreeCapacity
    state: NodeState | None
    spot: int


class AssignmentBuilder:
    """A plan under construction.

    `changed`: the free capacity of nodes that differs from the rankings, because of reservations or
    pods of this plan.
    """

    __slots__ = ("_among", "_changed", "_states", "cost")

    def __init__(
        self,
        changed: Mapping[NodeName, FreeCapacity],
        states: Mapping[NodeName, NodeState],
        among: Collection[NodeName] | None = None,
    ) -> None:
        """`among`: the nodes that may be used; None: all."""
        self.cost = ZERO_COST
        self._among = None if among is None else frozenset(among)
        self._changed = {n: r for n, r in changed.items() if among is None or n in among}
        self._states = states

    def place_pods(
        self, ranking: ScoredNodes, count: int, only: frozenset[NodeName] | None = None
    ) -> list[NodeName] | None:
        """Find nodes for `count` equal pods, among `only` if set. If None, discard the draft."""
        if self._among is not None:
            only = self._among if only is None else only & self._among
        places: Iterator[ScoredState] = iter(())
        if only is not None and len(only) <= MAX_SINGLE_EVALUATIONS:
            heap = [n for name in only if (n := self._candidate_on(ranking, name))]
        elif count > 1 and only is None and not self._has_enough_capacity(ranking, count):
            return None
        else:
            changed = self._changed if only is None else self._changed.keys() & only
            heap = [n for name in changed if (n := _candidate(ranking, name, self._changed[name]))]
            places = ranking.scored_states()
        heapq.heapify(heap)
        nodes: list[NodeName] = []
        place = next(places, None)
        while len(nodes) < count:
            while place is not None and (not heap or place.cost <= heap[0].cost):
                self._push(heap, place.cost, place.remaining, place.state, 0, only)
                place = next(places, None)
            if not heap:
                return None
            cost, name, rest, state, spot = heapq.heappop(heap)
            nodes.append(name)
            self._changed[name] = rest
            self.cost = add_costs(self.cost, cost)
            again = _candidate(ranking, name, rest)
            if again is not None:
                heapq.heappush(heap, again)
            if state is not None:
                self._push(heap, cost, rest, state, spot + 1, only)
        return nodes

    def _candidate_on(self, ranking: ScoredNodes, name: NodeName) -> _Next | None:
        known = self._states.get(name)
        room = self._changed.get(name, known.free_capacity if known is not None else None)
        return None if room is None else _candidate(ranking, name, room)

    def _push(
        self,
        heap: list[_Next],
        cost: Cost,
        rest: FreeCapacity,
        state: NodeState,
        spot: int,
        only: frozenset[NodeName] | None,
    ) -> None:
        """Add the first node of a state, from `spot` on, that is allowed and unchanged."""
        for number in range(spot, len(state.names)):
            name = state.names[number]
            if name not in self._changed and (only is None or name in only):
                heapq.heappush(heap, _Next(cost, name, rest, state, number))
                return

    def _has_enough_capacity(self, ranking: ScoredNodes, count: int) -> bool:
        """Return whether `count` pods fit at all."""
        for name, room in self._changed.items():
            count -= count_fitting(room, ranking.request)
            known = self._states.get(name)
            if known is not None:
                count += ranking.count_fitting(known)
        for place in ranking.scored_states():
            count -= ranking.count_fitting(place.state) * len(place.state.names)
            if count <= 0:
                return True
        return count <= 0


def _candidate(ranking: ScoredNodes, name: NodeName, room: FreeCapacity) -> _Next | None:
    rest = subtract_request(room, ranking.request)
    return None if rest is None else _Next(ranking.scorer.cost(room, rest), name, rest, None, 0)
