"""Sets of nodes as bits of an integer, by the values of one label.

A pod may have hundreds of requirements and a cluster thousands of nodes. A requirement costs a few
operations on integers, regardless of the number of nodes.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator

from app.core.model import NodeName
from app.core.podspec.constraints import NodeSelectorRequirement, parse_whole_number

NodeBitset = int
"""A set of nodes: bit n is set if it contains node number n of `NodePositions`."""


class NodePositions:
    """Assigns a bit number to each node. The number of a removed node is used again."""

    def __init__(self) -> None:
        self._of: dict[NodeName, int] = {}
        self._names: list[NodeName] = []
        self._free: list[int] = []
        self.all: NodeBitset = 0

    def bit_of(self, name: NodeName) -> NodeBitset:
        """Return the set with only this node."""
        place = self._of.get(name)
        if place is None:
            if self._free:
                place = self._free.pop()
                self._names[place] = name
            else:
                place = len(self._names)
                self._names.append(name)
            self._of[name] = place
            self.all |= 1 << place
        return 1 << place

    def drop_node(self, name: NodeName) -> NodeBitset:
        """Release the number of a node. Return the set that contained only this node."""
        place = self._of.pop(name)
        self._free.append(place)
        self.all &= ~(1 << place)
        return 1 << place

    def clear(self) -> None:
        """Remove every node."""
        self._of.clear()
        self._names.clear()
        self._free.clear()
        self.all = 0

    def nodes_in(self, marks: NodeBitset) -> Iterator[NodeName]:
        """Yield the nodes of a set."""
        if marks == self.all:
            yield from self._of
            return
        while marks:
            lowest = marks & -marks
            yield self._names[lowest.bit_length() - 1]
            marks ^= lowest


class LabelBitsets:
    """The nodes that have a label, by its value."""

    __slots__ = ("_numbers", "bits_by_value", "present")

    def __init__(self) -> None:
        self.bits_by_value: dict[str, NodeBitset] = {}
        self.present: NodeBitset = 0
        self._numbers: tuple[list[int], list[NodeBitset], list[NodeBitset]] | None = None

    def add(self, value: str, mark: NodeBitset) -> None:
        """Add a node with this value."""
        self._numbers = None
        self.bits_by_value[value] = self.bits_by_value.get(value, 0) | mark
        self.present |= mark

    def discard(self, value: str, mark: NodeBitset) -> None:
        """Remove a node with this value."""
        left = self.bits_by_value[value] & ~mark
        if left:
            self.bits_by_value[value] = left
        else:
            del self.bits_by_value[value]
        self.present &= ~mark
        self._numbers = None

    def reduce_requirement(self, each: NodeSelectorRequirement) -> NodeSelectorRequirement | bool:
        """Return the part of a requirement that distinguishes these values.

        True: all nodes meet it. False: no node meets it.
        """
        match each.operator:
            case "In" | "NotIn":
                values = frozenset(value for value in each.values if value in self.bits_by_value)
                if values:
                    return NodeSelectorRequirement(each.key, each.operator, values)
                return each.operator == "NotIn"
            case "Gt" | "Lt":
                bound = self._canonical_bound(each)
                return (
                    False
                    if bound is None
                    else NodeSelectorRequirement(each.key, each.operator, (bound,))
                )
            case "Exists":
                return each if self.bits_by_value else False
            case "DoesNotExist":
                return each if self.bits_by_value else True
        return False  # as in `NodeSelectorRequirement.matches`

    def matching_nodes(self, each: NodeSelectorRequirement, every: NodeBitset) -> NodeBitset:
        """Return the nodes that meet a requirement. `every`: the set of all nodes."""
        match each.operator:
            case "In":
                return self._with_values(each)
            case "NotIn":
                return every & ~self._with_values(each)
            case "Exists":
                return self.present
            case "DoesNotExist":
                return every & ~self.present
            case "Gt" | "Lt":
                return self._compare_numbers(each)
        return 0

    def _with_values(self, each: NodeSelectorRequirement) -> NodeBitset:
        found = 0
        for value in each.values:
            found |= self.bits_by_value.get(value, 0)
        return found

    def _sorted(self) -> tuple[list[int], list[NodeBitset], list[NodeBitset]]:
        """Return the numeric values, the nodes below each, and the nodes at or above each."""
        if self._numbers is None:
            nodes: dict[int, NodeBitset] = {}
            for value, marks in self.bits_by_value.items():
                number = parse_whole_number(value)
                if number is not None:
                    nodes[number] = nodes.get(number, 0) | marks
            numbers = sorted(nodes)
            below, from_here = [0], [0]
            for number in numbers:
                below.append(below[-1] | nodes[number])
            for number in reversed(numbers):
                from_here.append(from_here[-1] | nodes[number])
            self._numbers = numbers, below, from_here[::-1]
        return self._numbers

    def _compare_numbers(self, each: NodeSelectorRequirement) -> NodeBitset:
        bound = parse_whole_number(next(iter(each.values))) if len(each.values) == 1 else None
        if bound is None:
            return 0
        numbers, below, from_here = self._sorted()
        if each.operator == "Gt":
            return from_here[bisect_right(numbers, bound)]
        return below[bisect_left(numbers, bound)]

    def _canonical_bound(self, each: NodeSelectorRequirement) -> str | None:
        """Return one canonical bound for all equivalent bounds. None: no number meets them."""
        bound = parse_whole_number(next(iter(each.values))) if len(each.values) == 1 else None
        numbers, _, _ = self._sorted()
        if bound is None or not numbers:
            return None
        if each.operator == "Gt":
            at = bisect_right(numbers, bound)
            if at == len(numbers):
                return None
            return str(numbers[at - 1] if at else numbers[0] - 1)
        at = bisect_left(numbers, bound)
        if at == 0:
            return None
        return str(numbers[at] if at < len(numbers) else numbers[-1] + 1)
