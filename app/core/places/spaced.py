"""Where pods would go that keep a distance from each other, worked out one by one. Takes nothing.

Each pod goes to the best node that its rules leave it beside those before it. So for rules that
only keep pods apart a plan is found whenever there is one; for others, nearly always.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from app.core.asks.shape import Pins, Shape
from app.core.asks.terms import ANYWHERE, Spacing, Terms
from app.core.model import Amounts, Millis, NodeName
from app.core.places.nodes import Nodes
from app.core.places.plans import Plan
from app.core.places.ranking import FREE, plus
from app.core.places.spacing import Trial

Chance = tuple[Millis, int, NodeName]
"""When a node could have room for a pod, what is still in use of that, and its name."""


def plan_apart(
    floor: Nodes,
    shape: Shape,
    pins: Pins,
    withheld: Mapping[NodeName, Amounts],
    trial: Trial,
) -> Plan | None:
    """Return where all pods of a workload would go, or None: as `Nodes.find` does."""
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
            trial.put(spacings, node)
    return Plan(tuple(nodes), cost)


def said_by_part(shape: Shape, number: int) -> tuple[Terms, tuple[Spacing, ...]]:
    """Return what the pods of one part say about nodes, and about each other."""
    terms = shape.terms[number] if shape.terms else ANYWHERE
    return terms, shape.spacings[number] if shape.spacings else ()


def choose(
    chances: Sequence[Chance],
    count: int,
    terms: Terms,
    spacings: tuple[Spacing, ...],
    trial: Trial,
) -> list[NodeName] | None:
    """Return the nodes of the first chances that rules leave to so many pods; None: too few."""
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
        trial.put(spacings, chance[2])
    return nodes
