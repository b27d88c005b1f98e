"""Reduces the constraints of a pod (`NodeConstraints`) to the part that distinguishes the current
nodes.

Terms with an equal reduced part, their signature, share one cache entry. A toleration of a taint
that no node has, or a value that no node label has, is dropped until such a node comes. The cost of
each operation is at most the size of the terms. The signature is dropped with the last pod that has
the terms.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import NamedTuple
from weakref import ref

from app.core.model import Node, NodeName
from app.core.placement.node_bitsets import LabelBitsets, Marks, NodePositions
from app.core.podspec.constraints import (
    BARRING,
    NAME_FIELD,
    NodeConstraints,
    NodeSelectorRequirement,
    NodeSelectorTerm,
    RequiredAffinity,
    Taint,
    Toleration,
    whole,
)

_NOTHING = LabelBitsets()


class SignatureChange(NamedTuple):
    """Terms with another signature since a node came or changed."""

    terms: NodeConstraints
    before: NodeConstraints
    now: NodeConstraints


class _Known(NamedTuple):
    """Terms in use. `signature`: of these terms; None: the terms themselves.

    `keys`: their labels.
    """

    terms: ref[NodeConstraints]
    signature: NodeConstraints | None
    keys: tuple[str, ...]


class ConstraintSignatures:
    """The signatures of terms, on nodes that are added one by one.

    A node matches terms exactly if it matches their signature, for labels as well as taints. `gone`
    is called with the number of terms that are no longer in use, and that of their signature.
    """

    def __init__(self, gone: Callable[[int, int], None]) -> None:
        self._gone = gone
        self._nodes: dict[NodeName, Node] = {}
        self._places = NodePositions()
        self._named = LabelBitsets()
        self._with_label: Counter[str] = Counter()
        self._labels: dict[str, LabelBitsets] = {}
        self._taints: dict[str, dict[Taint, Marks]] = {}
        self._known: dict[int, _Known] = {}
        self._asking: dict[str, set[int]] = {}
        self._naming: set[int] = set()
        self._bearing: set[int] = set()
        self._dead: list[int] = []  # terms can be freed at any time, also while these sets are read

    def __len__(self) -> int:
        """Return the number of cached terms."""
        return len(self._known)

    def of(self, terms: NodeConstraints) -> NodeConstraints:
        """Return the signature of terms. Use it only to evaluate nodes, not in messages."""
        self.purge()
        known = self._known.get(terms.number)
        if known is not None:
            return known.signature or terms
        number, keys = terms.number, _keys(terms)
        for key in keys:
            if key in self._with_label:
                self._asking.setdefault(key, set()).add(number)
                self._labelled(key)
        signature, dead = self._read(terms), self._dead
        own = None if signature is terms else signature
        self._known[number] = _Known(ref(terms, lambda _: dead.append(number)), own, keys)
        if any(term.fields for term in terms.affinity or ()):
            self._naming.add(number)
        if terms.tolerations:
            self._bearing.add(number)
        return signature

    def drop_terms(self) -> None:
        """Drop all terms."""
        self._known.clear()
        self._labels.clear()
        self._asking.clear()
        self._naming.clear()
        self._bearing.clear()
        self._dead.clear()

    def clear(self) -> None:
        """Drop all terms and all nodes."""
        self._nodes.clear()
        self._places.clear()
        self._named = LabelBitsets()
        self._with_label.clear()
        self._taints.clear()
        self.drop_terms()

    def update_node(self, node: Node, before: Node | None) -> list[SignatureChange]:
        """Add or update a node. Return the terms that have another signature now."""
        self.purge()
        mark, touched = self._places.mark(node.name), list[NodeConstraints]()
        self._nodes[node.name] = node
        if before is None:
            self._named.add(str(node.name), mark)
            named = {NAME_FIELD: str(node.name)}
            touched += [t for t in self._alive(self._naming) if _minds_name(t, named)]
        self._meet(node.labels.keys() - self._with_label.keys())
        for key, value in node.labels.items():
            if before is None or key not in before.labels:
                self._with_label[key] += 1
            touched += self._learn(key, value)
        for taint in _barring(node):
            alike = self._taints.setdefault(taint.key, {})
            if taint not in alike:
                bearing = self._alive(self._bearing)
                touched += [t for t in bearing if _bears(t.tolerations, taint)]
            alike[taint] = alike.get(taint, 0) | mark
        if before is not None:
            self._strike(before, node, mark)
        for key, value in node.labels.items():
            if key in self._labels and (before is None or before.labels.get(key) != value):
                self._labels[key].add(value, mark)
        return self._part(touched)

    def _meet(self, keys: set[str]) -> None:
        """Index the terms that name labels which no node had before.

        Users write any number of keys, but nodes have few.
        """
        for number, known in self._known.items() if keys else ():
            for key in keys.intersection(known.keys):
                self._asking.setdefault(key, set()).add(number)

    def _learn(self, key: str, value: str) -> list[NodeConstraints]:
        """Record a label of a node. Return the terms that may get another signature."""
        if key not in self._asking:
            return []
        values, asking = self._labels.get(key), self._alive(self._asking[key])
        if values is None or not values.marks:  # no node had this label before
            self._labels.setdefault(key, LabelBitsets())
            return list(asking)
        if value in values.marks:
            return []
        return [terms for terms in asking if _minds(terms, key, value)]

    def drop(self, node: Node) -> None:
        """Remove a node."""
        self.purge()
        mark = self._places.drop(node.name)
        del self._nodes[node.name]
        self._named.discard(str(node.name), mark)
        self._strike(node, None, mark)

    def is_label(self, key: str) -> bool:
        """Return whether any node has this label."""
        return key in self._with_label

    def meeting(self, signature: NodeConstraints) -> Marks:
        """Return the nodes that meet the label and name requirements of a signature."""
        every = found = self._places.all
        for key, value in signature.selector:
            found &= self._labelled(key).marks.get(value, 0)
        if signature.affinity is not None and found:
            any_of = 0
            for term in signature.affinity:
                any_of |= self._suiting(term, every)
                if any_of & found == found:
                    break
            found &= any_of
        return found

    def _suiting(self, term: NodeSelectorTerm, every: Marks) -> Marks:
        if not term.expressions and not term.fields:
            return 0
        found = every
        for each in term.expressions:
            found &= self._labelled(each.key).meeting(each, every)
        for each in term.fields:
            found &= self._field(each.key).meeting(each, every)
        return found

    def unborne(self, signature: NodeConstraints) -> list[tuple[Taint, Marks]]:
        """Return the taints that a signature does not tolerate, and the nodes that have them."""
        return [
            (taint, marks)
            for alike in self._taints.values()
            for taint, marks in alike.items()
            if not _bears(signature.tolerations, taint)
        ]

    def mark(self, name: NodeName) -> Marks:
        """Return the set of one known node."""
        return self._places.mark(name)

    def nodes(self, marks: Marks) -> Iterable[NodeName]:
        """Return the nodes of a set."""
        return self._places.nodes(marks)

    def terms(self, number: int) -> NodeConstraints | None:
        """Return the terms with this number. None if they are not in use."""
        known = self._known.get(number)
        return known.terms() if known is not None else None

    def _alive(self, numbers: Iterable[int]) -> Iterator[NodeConstraints]:
        for number in list(numbers):
            terms = self.terms(number)
            if terms is not None:
                yield terms

    def purge(self) -> None:
        """Drop the terms that are no longer in use."""
        while self._dead:
            number = self._dead.pop()
            known = self._known.pop(number, None)
            for key in known.keys if known is not None else ():
                if key not in self._asking:
                    continue
                self._asking[key].discard(number)
                if not self._asking[key]:
                    del self._asking[key]
                    self._labels.pop(key, None)
            self._naming.discard(number)
            self._bearing.discard(number)
            if known is not None:
                self._gone(
                    number, known.signature.number if known.signature is not None else number
                )

    def _labelled(self, key: str) -> LabelBitsets:
        """Return the nodes by their values of a label that terms in use name."""
        found = self._labels.get(key)
        if found is None:
            if key not in self._with_label:
                return _NOTHING  # users write any key: only keys of node labels are stored
            found = LabelBitsets()
            for name, node in self._nodes.items():
                if key in node.labels:
                    found.add(node.labels[key], self._places.mark(name))
            if key in self._asking:
                self._labels[key] = found
        return found

    def _field(self, key: str) -> LabelBitsets:
        return self._named if key == NAME_FIELD else _NOTHING

    def _strike(self, before: Node, now: Node | None, mark: Marks) -> None:
        for key, value in before.labels.items():
            if now is None or key not in now.labels:
                self._with_label[key] -= 1
                if not self._with_label[key]:
                    del self._with_label[key]
            if key in self._labels and (now is None or now.labels.get(key) != value):
                self._labels[key].discard(value, mark)
        borne = _barring(now) if now is not None else ()
        for taint in _barring(before):
            if taint in borne:
                continue
            alike = self._taints[taint.key]
            alike[taint] &= ~mark
            if not alike[taint]:
                del alike[taint]

    def _part(self, touched: Iterable[NodeConstraints]) -> list[SignatureChange]:
        parted = []
        for terms in dict.fromkeys(touched):
            known = self._known[terms.number]
            before, now = known.signature or terms, self._read(terms)
            if before is not now:
                own = None if now is terms else now
                self._known[terms.number] = known._replace(signature=own)
                parted.append(SignatureChange(terms, before, now))
        return parted

    def _read(self, terms: NodeConstraints) -> NodeConstraints:
        selector, affinity = terms.selector, terms.affinity
        if any(value not in self._labelled(key).marks for key, value in selector):
            selector, affinity = (), ()  # no node matches
        elif affinity is not None:
            affinity = self._affinity(affinity)
        telling = {t._replace(seconds=None) for t in terms.tolerations if self._tells(t)}
        return NodeConstraints(selector, affinity, tuple(sorted(telling)))

    def _tells(self, toleration: Toleration) -> bool:
        """Return whether some node has a taint that this toleration matches."""
        there = [self._taints.get(toleration.key, {})] if toleration.key else self._taints.values()
        return any(toleration.bears(taint) for alike in there for taint in alike)

    def _affinity(self, written: RequiredAffinity) -> RequiredAffinity | None:
        kept: dict[NodeSelectorTerm, None] = {}
        for term in written:
            signature = self._term(term) if term != NodeSelectorTerm() else None
            if signature == NodeSelectorTerm():
                return None  # every node meets it
            if signature is not None:
                kept[signature] = None
        return tuple(kept)

    def _term(self, term: NodeSelectorTerm) -> NodeSelectorTerm | None:
        """Return the signature of one term. Empty if every node meets it, None if no node does."""
        expressions = [self._labelled(each.key).narrowed(each) for each in term.expressions]
        fields = [self._field(each.key).narrowed(each) for each in term.fields]
        if False in expressions or False in fields:
            return None
        return NodeSelectorTerm(
            tuple(each for each in expressions if isinstance(each, NodeSelectorRequirement)),
            tuple(each for each in fields if isinstance(each, NodeSelectorRequirement)),
        )


def _minds(terms: NodeConstraints, key: str, value: str) -> bool:
    """Return whether a new value of a node label may change the signature of terms."""
    if (key, value) in terms.selector:
        return True
    each = (e for term in terms.affinity or () for e in term.expressions if e.key == key)
    return any(_is_about(e, {key: value}) for e in each)


def _is_about(each: NodeSelectorRequirement, found: Mapping[str, str]) -> bool:
    """Return whether a new value may change the signature of a requirement."""
    if each.operator in ("Gt", "Lt"):  # their signature depends on all existing numbers
        return whole(found[each.key]) is not None
    return each.holds(found) != (each.operator == "NotIn")


def _minds_name(terms: NodeConstraints, named: Mapping[str, str]) -> bool:
    """Return whether the name of a new node may change the signature of terms."""
    for term in terms.affinity or ():
        for each in term.fields:
            if each.operator == "DoesNotExist":
                return True
            if each.key == NAME_FIELD and _is_about(each, named):
                return True
    return False


def _keys(terms: NodeConstraints) -> tuple[str, ...]:
    found = dict.fromkeys(key for key, _ in terms.selector)
    for term in terms.affinity or ():
        found.update(dict.fromkeys(each.key for each in term.expressions))
    return tuple(found)


def _bears(tolerations: Iterable[Toleration], taint: Taint) -> bool:
    return any(each.bears(taint) for each in tolerations)


def _barring(node: Node) -> Collection[Taint]:
    return [taint for taint in dict.fromkeys(node.taints) if taint.effect in BARRING]
