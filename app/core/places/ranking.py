"""Nodes in the order in which they suit one kind of pod, kept up to date as they change.

Nodes with equal room are one state, judged once. A ranking hears of new states from a log, and
passes over those that no node is in any more. It takes nothing and decides nothing.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterator
from typing import NamedTuple

from app.core.model import NodeName, Style
from app.core.places.fragmentation import Gauge
from app.core.places.sites import Ask, Room, after, capacity

Cost = tuple[int, int, int]
"""How badly a pod suits a node, most important first: what others could have used and no longer
can, devices left idle by a pod that needs none, what is left of the scarcest resource."""

FREE: Cost = (0, 0, 0)


def plus(one: Cost, other: Cost) -> Cost:
    """Return the sum."""
    return one[0] + other[0], one[1] + other[1], one[2] + other[2]


class State:
    """Room that some nodes have; `names` of these nodes, sorted. No names: a thing of the past."""

    __slots__ = ("_gauge", "_usable", "names", "room", "serial")

    def __init__(self, room: Room, serial: int) -> None:
        self.room = room
        self.serial = serial
        self.names: list[NodeName] = []
        self._gauge: Gauge | None = None
        self._usable = 0

    def usable(self, gauge: Gauge) -> int:
        """Return what the gauge reads, read once."""
        if self._gauge is not gauge:
            self._gauge, self._usable = gauge, gauge.usable(self.room)
        return self._usable

    def join(self, name: NodeName) -> None:
        """A node has come to have this room."""
        insort(self.names, name)

    def leave(self, name: NodeName) -> None:
        """A node has this room no more."""
        del self.names[bisect_left(self.names, name)]


class Log:
    """The states in the order in which they came up. Those who read it remember how far."""

    __slots__ = ("_base", "_states", "alive")

    def __init__(self) -> None:
        self.alive: dict[Room, State] = {}
        self._base = 0
        self._states: list[State] = []

    @property
    def end(self) -> int:
        """How many states ever came up."""
        return self._base + len(self._states)

    def enter(self, room: Room, name: NodeName) -> State:
        """Return the state of a node that has come to have this room."""
        state = self.alive.get(room)
        if state is None:
            state = self.alive[room] = State(room, self.end)
            self._states.append(state)
            if len(self._states) > 4 * len(self.alive) + 4096:
                cut = len(self._states) // 2
                self._base += cut
                del self._states[:cut]
        state.join(name)
        return state

    def quit(self, state: State, name: NodeName) -> None:
        """A node has another room now, or is gone."""
        state.leave(name)
        if not state.names:
            del self.alive[state.room]

    def since(self, read: int) -> list[State] | None:
        """Return what came up after the first `read` states; None: more than there are alive."""
        if read < self._base or self.end - read > len(self.alive) + 64:
            return None
        return self._states[read - self._base :]


class Judge:
    """Says what it costs to put a pod somewhere; the lower, the better.

    `scarce` is the resource that the pod asks the largest part of, by `totals` of the pool.
    """

    __slots__ = ("_gauge", "_needs_devices", "_spread", "scarce", "totals")

    def __init__(
        self, style: Style, gauge: Gauge, ask: Ask, scarce: int | None, totals: list[int]
    ) -> None:
        self._spread = style is Style.SPREAD
        self._gauge = gauge
        self.scarce = scarce
        self.totals = totals
        self._needs_devices = any(index in ask.amounts for index in gauge.devices)

    def cost(self, before: State | Room, rest: Room) -> Cost:
        """Return the cost of turning the room before into the rest."""
        room = before.room if isinstance(before, State) else before
        scarce = self.scarce
        if self._spread:
            return (0 if scarce is None else -room[0][scarce], 0, 0)
        gauge = self._gauge
        had = before.usable(gauge) if isinstance(before, State) else gauge.usable(before)
        idle = 0 if self._needs_devices else gauge.spare(room)
        return (had - gauge.usable(rest), idle, 0 if scarce is None else rest[0][scarce])


class Ranked(NamedTuple):
    """A state in a ranking. Never compared beyond the serial, which is its own."""

    cost: Cost
    serial: int
    state: State
    rest: Room


class Ranking:
    """The states where one kind of pod fits, the best first."""

    __slots__ = ("_capacities", "_log", "_order", "_read", "ask", "judge")

    def __init__(self, ask: Ask, judge: Judge, log: Log) -> None:
        self.ask = ask
        self.judge = judge
        self._log = log
        self._read = -1
        self._order: list[Ranked] = []
        self._capacities: dict[int, int] = {}

    def update(self) -> None:
        """Hear what came up since the last time."""
        log = self._log
        if self._read == log.end:
            return
        fresh = log.since(self._read)
        if fresh is None or len(self._order) > 2 * len(log.alive) + 256:
            self._order = []
            self._capacities = {}
            fresh = list(log.alive.values())
        for state in fresh:
            if state.names:
                rest = after(state.room, self.ask)
                if rest is not None:
                    cost = self.judge.cost(state, rest)
                    insort(self._order, Ranked(cost, state.serial, state, rest))
        self._read = log.end

    def best(self) -> tuple[Cost, NodeName] | None:
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

    def best_of(self, only: frozenset[NodeName]) -> tuple[Cost, NodeName] | None:
        """Return the first of these nodes by cost, then by name."""
        found: tuple[Cost, NodeName] | None = None
        for place in self._order:
            if found is not None and place.cost != found[0]:
                break
            name = next((name for name in place.state.names if name in only), None)
            if name is not None and (found is None or name < found[1]):
                found = place.cost, name
        return found

    def places(self) -> Iterator[Ranked]:
        """Return the states that nodes are in, the best first."""
        return (place for place in self._order if place.state.names)

    def capacity(self, state: State) -> int:
        """Return how many such pods fit on one node in this state."""
        count = self._capacities.get(state.serial)
        if count is None:
            count = self._capacities[state.serial] = capacity(state.room, self.ask)
        return count
