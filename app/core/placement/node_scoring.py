"""Nodes ordered by score for one kind of pod, kept up to date as nodes change.

Nodes with equal free capacity share one state, which is scored once. A ranking reads new states
from a log and skips states without nodes.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterator
from typing import NamedTuple

from app.core.model import NodeName, PlacementStrategy
from app.core.placement.fragmentation import UsabilityGauge
from app.core.placement.node_info import (
    FreeCapacity,
    IndexedRequest,
    count_fitting,
    subtract_request,
)

Cost = tuple[int, int, int]
"""How badly a pod suits a node, most important first: usable capacity that other pods lose, idle
devices next to a pod without devices, and the rest of the scarcest resource."""

ZERO_COST: Cost = (0, 0, 0)


def add_costs(one: Cost, other: Cost) -> Cost:
    """Return the sum of two costs."""
    return one[0] + other[0], one[1] + other[1], one[2] + other[2]


class NodeState:
    """A value of free capacity, and the sorted `names` of its nodes. Obsolete without names."""

    __slots__ = ("_gauge", "_usable", "free_capacity", "names", "serial")

    def __init__(self, free_capacity: FreeCapacity, serial: int) -> None:
        self.free_capacity = free_capacity
        self.serial = serial
        self.names: list[NodeName] = []
        self._gauge: UsabilityGauge | None = None
        self._usable = 0

    def usable(self, gauge: UsabilityGauge) -> int:
        """Return the value of the gauge for this state. It is cached."""
        if self._gauge is not gauge:
            self._gauge, self._usable = gauge, gauge.usable(self.free_capacity)
        return self._usable

    def add_node(self, name: NodeName) -> None:
        """Add a node that has this free capacity now."""
        insort(self.names, name)

    def remove_node(self, name: NodeName) -> None:
        """Remove a node that no longer has this free capacity."""
        del self.names[bisect_left(self.names, name)]


class StateLog:
    """The states in order of appearance. Readers store the position up to which they have read."""

    __slots__ = ("_base", "_states", "live_states")

    def __init__(self) -> None:
        self.live_states: dict[FreeCapacity, NodeState] = {}
        self._base = 0
        self._states: list[NodeState] = []

    @property
    def end(self) -> int:
        """Number of states that ever appeared."""
        return self._base + len(self._states)

    def add_node(self, room: FreeCapacity, name: NodeName) -> NodeState:
        """Return the state for a free capacity, and add a node to it."""
        state = self.live_states.get(room)
        if state is None:
            state = self.live_states[room] = NodeState(room, self.end)
            self._states.append(state)
            if len(self._states) > 4 * len(self.live_states) + 4096:
                cut = len(self._states) // 2
                self._base += cut
                del self._states[:cut]
        state.add_node(name)
        return state

    def remove_node(self, state: NodeState, name: NodeName) -> None:
        """Remove a node from its state."""
        state.remove_node(name)
        if not state.names:
            del self.live_states[state.free_capacity]

    def read_since(self, read: int) -> list[NodeState] | None:
        """Return the states after the first `read`. None: too many, so read all instead."""
        if read < self._base or self.end - read > len(self.live_states) + 64:
            return None
        return self._states[read - self._base :]


class NodeScorer:
    """Scores a node for a pod. A lower cost is better.

    `scarce`: the resource with the largest requested part, by `totals` of the pool.
    """

    __slots__ = ("_gauge", "_needs_devices", "_spread", "scarce", "totals")

    def __init__(
        self,
        style: PlacementStrategy,
        gauge: UsabilityGauge,
        ask: IndexedRequest,
        scarce: int | None,
        totals: list[int],
    ) -> None:
        self._spread = style is PlacementStrategy.SPREAD
        self._gauge = gauge
        self.scarce = scarce
        self.totals = totals
        self._needs_devices = any(index in ask.amounts for index in gauge.devices)

    def cost(self, before: NodeState | FreeCapacity, rest: FreeCapacity) -> Cost:
        """Return the cost of reducing one free capacity to another."""
        room = before.free_capacity if isinstance(before, NodeState) else before
        scarce = self.scarce
        if self._spread:
            return (0 if scarce is None else -room[0][scarce], 0, 0)
        gauge = self._gauge
        had = before.usable(gauge) if isinstance(before, NodeState) else gauge.usable(before)
        idle = 0 if self._needs_devices else gauge.free_devices(room)
        return (had - gauge.usable(rest), idle, 0 if scarce is None else rest[0][scarce])


class ScoredState(NamedTuple):
    """A state in a ranking. `serial` is unique, so later fields are never compared."""

    cost: Cost
    serial: int
    state: NodeState
    remaining: FreeCapacity


class ScoredNodes:
    """The states where one kind of pod fits, the best first."""

    __slots__ = ("_capacities", "_log", "_order", "_read", "request", "scorer")

    def __init__(self, request: IndexedRequest, scorer: NodeScorer, log: StateLog) -> None:
        self.request = request
        self.scorer = scorer
        self._log = log
        self._read = -1
        self._order: list[ScoredState] = []
        self._capacities: dict[int, int] = {}

    def update(self) -> None:
        """Add the states that appeared since the last call."""
        log = self._log
        if self._read == log.end:
            return
        fresh = log.read_since(self._read)
        if fresh is None or len(self._order) > 2 * len(log.live_states) + 256:
            self._order = []
            self._capacities = {}
            fresh = list(log.live_states.values())
        for state in fresh:
            if state.names:
                rest = subtract_request(state.free_capacity, self.request)
                if rest is not None:
                    cost = self.scorer.cost(state, rest)
                    insort(self._order, ScoredState(cost, state.serial, state, rest))
        self._read = log.end

    def best_node(self) -> tuple[Cost, NodeName] | None:
        """Return the first node by cost, then by name."""
        order = self._order
        dead = 0
        for place in order:
            if place.state.names:
                break
            dead += 1
        if dead:
            del order[:dead]
        if not order:
            return None
        cost, name = order[0].cost, order[0].state.names[0]
        for place in order[1:]:
            if place.cost != cost:
                break
            if place.state.names and place.state.names[0] < name:
                name = place.state.names[0]
        return cost, name

    def best_node_in(self, only: frozenset[NodeName]) -> tuple[Cost, NodeName] | None:
        """Return the first of the nodes in `only`, by cost, then by name."""
        found: tuple[Cost, NodeName] | None = None
        for place in self._order:
            if found is not None and place.cost != found[0]:
                break
            name = next((name for name in place.state.names if name in only), None)
            if name is not None and (found is None or name < found[1]):
                found = place.cost, name
        return found

    def scored_states(self) -> Iterator[ScoredState]:
        """Return the states with nodes, the best first."""
        return (place for place in self._order if place.state.names)

    def count_fitting(self, state: NodeState) -> int:
        """Return how many such pods fit on one node in this state."""
        count = self._capacities.get(state.serial)
        if count is None:
            if len(self._capacities) > 2 * len(self._log.live_states) + 256:
                self._capacities = {}  # most of them are of obsolete states
            count = self._capacities[state.serial] = count_fitting(
                state.free_capacity, self.request
            )
        return count
