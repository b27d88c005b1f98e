"""Sets of nodes as bits of an integer, by the values of one label.

A pod may have hundreds of requirements and a cluster thousands of nodes. A requirement costs a few
operations on integers, regardless of the number of nodes.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator

from app.core.model import NodeName
from app.core.podspec.constraints import NodeSelectorRequirement, whole

Marks = int
"""A set of nodes: bit n is set if it contains node number n of `NodePositions`."""


class NodePositions:
    """Assigns a bit number to each node. The number of a removed node is used again."""

    def __init__(self) -> None:
        self._of: dict[NodeName, int] = {}
        self._names: list[NodeName] = []
        self._free: list[int] = []
        self.all: Marks = 0

    def mark(self, name: NodeName) -> Marks:
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

    def drop(self, name: NodeName) -> Marks:
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

    def nodes(self, marks: Marks) -> Iterator[NodeName]:
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

    __slots__ = ("_numbers", "marks", "present")

    def __init__(self) -> None:
        self.marks: dict[str, Marks] = {}
        self.present: Marks = 0
        self._numbers: tuple[list[int], list[Marks], list[Marks]] | None = None

    def add(self, value: str, mark: Marks) -> None:
        """Add a node with this value."""
        self._numbers = None
        self.marks[value] = self.marks.get(value, 0) | mark
        self.present |= mark

    def discard(self, value: str, mark: Marks) -> None:
        """Remove a node with this value."""
        left = self.marks[value] & ~mark
        if left:
            self.marks[value] = left
        else:
            del self.marks[value]
        self.present &= ~mark
        self._numbers = None

    def narrowed(self, each: NodeSelectorRequirement) -> NodeSelectorRequirement | bool:
        """Return the part of a requirement that distinguishes these values.

        True: all nodes meet it. False: no node meets it.
        """
        match each.operator:
            case "In" | "NotIn":
                values = frozenset(value for value in each.values if value in self.marks)
                if values:
                    return NodeSelectorRequirement(each.key, each.operator, values)
                return each.operator == "NotIn"
            case "Gt" | "Lt":
                bound = self._bound(each)
                return (
                    False
                    if bound is None
                    else NodeSelectorRequirement(each.key, each.operator, (bound,))
                )
            case "Exists":
                return each if self.marks else False
            case "DoesNotExist":
                return each if self.marks else True
        return False  # as in `NodeSelectorRequirement.holds`

    def meeting(self, each: NodeSelectorRequirement, every: Marks) -> Marks:
        """Return the nodes that meet a requirement. `every`: the set of all nodes."""
        match each.operator:
            case "In":
                return self._having(each)
            case "NotIn":
                return every & ~self._having(each)
            case "Exists":
                return self.present
            case "DoesNotExist":
                return every & ~self.present
            case "Gt" | "Lt":
                return self._beyond(each)
        return 0

    def _having(self, each: NodeSelectorRequirement) -> Marks:
        found = 0
        for value in each.values:
            found |= self.marks.get(value, 0)
        return found

    def _sorted(self) -> tuple[list[int], list[Marks], list[Marks]]:
        """Return the numeric values, the nodes below each, and the nodes at or above each."""
        if self._numbers is None:
            nodes: dict[int, Marks] = {}
            for value, marks in self.marks.items():
                number = whole(value)
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

    def _beyond(self, each: NodeSelectorRequirement) -> Marks:
        bound = whole(next(iter(each.values))) if len(each.values) == 1 else None
        if bound is None:
            return 0
        numbers, below, from_here = self._sorted()
        if each.operator == "Gt":
            return from_here[bisect_right(numbers, bound)]
        return below[bisect_left(numbers, bound)]

    def _bound(self, each: NodeSelectorRequirement) -> str | None:
        """Return one canonical bound for all equivalent bounds. None: no number meets them."""
        bound = whole(next(iter(each.values))) if len(each.values) == 1 else None
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
