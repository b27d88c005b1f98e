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
from app.core.placement.node_bitsets import LabelBitsets, NodeBitset, NodePositions
from app.core.podspec.constraints import (
    EXCLUDING_EFFECTS,
    NAME_FIELD,
    NodeConstraints,
    NodeSelectorRequirement,
    NodeSelectorTerm,
    RequiredAffinity,
    Taint,
    Toleration,
    parse_whole_number,
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

    A node matches terms exactly if it matches their signature, for labels as well as taints.
    `on_unused` is called with the number of terms that are no longer in use, and that of their
    signature.
    """

    def __init__(self, on_unused: Callable[[int, int], None]) -> None:
        self._on_unused = on_unused
        self._nodes: dict[NodeName, Node] = {}
        self._positions = NodePositions()
        self._bits_by_name = LabelBitsets()
        self._with_label: Counter[str] = Counter()
        self._labels: dict[str, LabelBitsets] = {}
        self._taints: dict[str, dict[Taint, NodeBitset]] = {}
        self._known: dict[int, _Known] = {}
        self._terms_by_label: dict[str, set[int]] = {}
        self._terms_with_names: set[int] = set()
        self._terms_with_tolerations: set[int] = set()
        self._freed_terms: list[
            int
        ] = []  # terms can be freed at any time, also while these sets are read

    def __len__(self) -> int:
        """Return the number of cached terms."""
        return len(self._known)

    def signature_of(self, terms: NodeConstraints) -> NodeConstraints:
        """Return the signature of terms. Use it only to evaluate nodes, not in messages."""
        self.drop_unused_terms()
        known = self._known.get(terms.number)
        if known is not None:
            return known.signature or terms
        number, keys = terms.number, _keys(terms)
        for key in keys:
            if key in self._with_label:
                self._terms_by_label.setdefault(key, set()).add(number)
                self._nodes_by_value(key)
        signature, dead = self._compute_signature(terms), self._freed_terms
        own = None if signature is terms else signature
        self._known[number] = _Known(ref(terms, lambda _: dead.append(number)), own, keys)
        if any(term.fields for term in terms.affinity or ()):
            self._terms_with_names.add(number)
        if terms.tolerations:
            self._terms_with_tolerations.add(number)
        return signature

    def drop_terms(self) -> None:
        """Drop all terms."""
        self._known.clear()
        self._labels.clear()
        self._terms_by_label.clear()
        self._terms_with_names.clear()
        self._terms_with_tolerations.clear()
        self._freed_terms.clear()

    def clear(self) -> None:
        """Drop all terms and all nodes."""
        self._nodes.clear()
        self._positions.clear()
        self._bits_by_name = LabelBitsets()
        self._with_label.clear()
        self._taints.clear()
        self.drop_terms()

    def update_node(self, node: Node, before: Node | None) -> list[SignatureChange]:
        """Add or update a node. Return the terms that have another signature now."""
        self.drop_unused_terms()
        mark, touched = self._positions.bit_of(node.name), list[NodeConstraints]()
        self._nodes[node.name] = node
        if before is None:
            self._bits_by_name.add(str(node.name), mark)
            named = {NAME_FIELD: str(node.name)}
            touched += [
                t for t in self._terms_in_use(self._terms_with_names) if _name_may_change(t, named)
            ]
        self._index_new_keys(node.labels.keys() - self._with_label.keys())
        for key, value in node.labels.items():
            if before is None or key not in before.labels:
                self._with_label[key] += 1
            touched += self._record_label(key, value)
        for taint in _filtering_taints(node):
            alike = self._taints.setdefault(taint.key, {})
            if taint not in alike:
                bearing = self._terms_in_use(self._terms_with_tolerations)
                touched += [t for t in bearing if _tolerates(t.tolerations, taint)]
            alike[taint] = alike.get(taint, 0) | mark
        if before is not None:
            self._unmark_changed(before, node, mark)
        for key, value in node.labels.items():
            if key in self._labels and (before is None or before.labels.get(key) != value):
                self._labels[key].add(value, mark)
        return self._find_changes(touched)

    def _index_new_keys(self, keys: set[str]) -> None:
        """Index the terms that name labels which no node had before.

        Users write any number of keys, but nodes have few.
        """
        for number, known in self._known.items() if keys else ():
            for key in keys.intersection(known.keys):
                self._terms_by_label.setdefault(key, set()).add(number)

    def _record_label(self, key: str, value: str) -> list[NodeConstraints]:
        """Record a label of a node. Return the terms that may get another signature."""
        if key not in self._terms_by_label:
            return []
        values, asking = self._labels.get(key), self._terms_in_use(self._terms_by_label[key])
        if values is None or not values.bits_by_value:  # no node had this label before
            self._labels.setdefault(key, LabelBitsets())
            return list(asking)
        if value in values.bits_by_value:
            return []
        return [terms for terms in asking if _label_may_change(terms, key, value)]

    def drop_node(self, node: Node) -> None:
        """Remove a node."""
        self.drop_unused_terms()
        mark = self._positions.drop_node(node.name)
        del self._nodes[node.name]
        self._bits_by_name.discard(str(node.name), mark)
        self._unmark_changed(node, None, mark)

    def is_label(self, key: str) -> bool:
        """Return whether any node has this label."""
        return key in self._with_label

    def matching_nodes(self, signature: NodeConstraints) -> NodeBitset:
        """Return the nodes that meet the label and name requirements of a signature."""
        every = found = self._positions.all
        for key, value in signature.selector:
            found &= self._nodes_by_value(key).bits_by_value.get(value, 0)
        if signature.affinity is not None and found:
            any_of = 0
            for term in signature.affinity:
                any_of |= self._nodes_matching_term(term, every)
                if any_of & found == found:
                    break
            found &= any_of
        return found

    def _nodes_matching_term(self, term: NodeSelectorTerm, every: NodeBitset) -> NodeBitset:
        if not term.expressions and not term.fields:
            return 0
        found = every
        for each in term.expressions:
            found &= self._nodes_by_value(each.key).matching_nodes(each, every)
        for each in term.fields:
            found &= self._field(each.key).matching_nodes(each, every)
        return found

    def untolerated_taints(self, signature: NodeConstraints) -> list[tuple[Taint, NodeBitset]]:
        """Return the taints that a signature does not tolerate, and the nodes that have them."""
        return [
            (taint, marks)
            for alike in self._taints.values()
            for taint, marks in alike.items()
            if not _tolerates(signature.tolerations, taint)
        ]

    def bit_of(self, name: NodeName) -> NodeBitset:
        """Return the set of one known node."""
        return self._positions.bit_of(name)

    def nodes_in(self, marks: NodeBitset) -> Iterable[NodeName]:
        """Return the nodes of a set."""
        return self._positions.nodes_in(marks)

    def terms_by_number(self, number: int) -> NodeConstraints | None:
        """Return the terms with this number. None if they are not in use."""
        known = self._known.get(number)
        return known.terms() if known is not None else None

    def _terms_in_use(self, numbers: Iterable[int]) -> Iterator[NodeConstraints]:
        for number in list(numbers):
            terms = self.terms_by_number(number)
            if terms is not None:
                yield terms

    def drop_unused_terms(self) -> None:
        """Drop the terms that are no longer in use."""
        while self._freed_terms:
            number = self._freed_terms.pop()
            known = self._known.pop(number, None)
            for key in known.keys if known is not None else ():
                if key not in self._terms_by_label:
                    continue
                self._terms_by_label[key].discard(number)
                if not self._terms_by_label[key]:
                    del self._terms_by_label[key]
                    self._labels.pop(key, None)
            self._terms_with_names.discard(number)
            self._terms_with_tolerations.discard(number)
            if known is not None:
                self._on_unused(
                    number, known.signature.number if known.signature is not None else number
                )

    def _nodes_by_value(self, key: str) -> LabelBitsets:
        """Return the nodes by their values of a label that terms in use name."""
        found = self._labels.get(key)
        if found is None:
            if key not in self._with_label:
                return _NOTHING  # users write any key: only keys of node labels are stored
            found = LabelBitsets()
            for name, node in self._nodes.items():
                if key in node.labels:
                    found.add(node.labels[key], self._positions.bit_of(name))
            if key in self._terms_by_label:
                self._labels[key] = found
        return found

    def _field(self, key: str) -> LabelBitsets:
        return self._bits_by_name if key == NAME_FIELD else _NOTHING

    def _unmark_changed(self, before: Node, now: Node | None, mark: NodeBitset) -> None:
        for key, value in before.labels.items():
            if now is None or key not in now.labels:
                self._with_label[key] -= 1
                if not self._with_label[key]:
                    del self._with_label[key]
            if key in self._labels and (now is None or now.labels.get(key) != value):
                self._labels[key].discard(value, mark)
        borne = _filtering_taints(now) if now is not None else ()
        for taint in _filtering_taints(before):
            if taint in borne:
                continue
            alike = self._taints[taint.key]
            alike[taint] &= ~mark
            if not alike[taint]:
                del alike[taint]

    def _find_changes(self, touched: Iterable[NodeConstraints]) -> list[SignatureChange]:
        parted = []
        for terms in dict.fromkeys(touched):
            known = self._known[terms.number]
            before, now = known.signature or terms, self._compute_signature(terms)
            if before is not now:
                own = None if now is terms else now
                self._known[terms.number] = known._replace(signature=own)
                parted.append(SignatureChange(terms, before, now))
        return parted

    def _compute_signature(self, terms: NodeConstraints) -> NodeConstraints:
        selector, affinity = terms.selector, terms.affinity
        if any(value not in self._nodes_by_value(key).bits_by_value for key, value in selector):
            selector, affinity = (), ()  # no node matches
        elif affinity is not None:
            affinity = self._affinity(affinity)
        telling = {t._replace(seconds=None) for t in terms.tolerations if self._is_relevant(t)}
        return NodeConstraints(selector, affinity, tuple(sorted(telling)))

    def _is_relevant(self, toleration: Toleration) -> bool:
        """Return whether some node has a taint that this toleration matches."""
        there = [self._taints.get(toleration.key, {})] if toleration.key else self._taints.values()
        return any(toleration.tolerates(taint) for alike in there for taint in alike)

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
        expressions = [
            self._nodes_by_value(each.key).reduce_requirement(each) for each in term.expressions
        ]
        fields = [self._field(each.key).reduce_requirement(each) for each in term.fields]
        if False in expressions or False in fields:
            return None
        return NodeSelectorTerm(
            tuple(each for each in expressions if isinstance(each, NodeSelectorRequirement)),
            tuple(each for each in fields if isinstance(each, NodeSelectorRequirement)),
        )


def _label_may_change(terms: NodeConstraints, key: str, value: str) -> bool:
    """Return whether a new value of a node label may change the signature of terms."""
    if (key, value) in terms.selector:
        return True
    each = (e for term in terms.affinity or () for e in term.expressions if e.key == key)
    return any(_value_may_change(e, {key: value}) for e in each)


def _value_may_change(each: NodeSelectorRequirement, found: Mapping[str, str]) -> bool:
    """Return whether a new value may change the signature of a requirement."""
    if each.operator in ("Gt", "Lt"):  # their signature depends on all existing numbers
        return parse_whole_number(found[each.key]) is not None
    return each.matches(found) != (each.operator == "NotIn")


def _name_may_change(terms: NodeConstraints, named: Mapping[str, str]) -> bool:
    """Return whether the name of a new node may change the signature of terms."""
    for term in terms.affinity or ():
        for each in term.fields:
            if each.operator == "DoesNotExist":
                return True
            if each.key == NAME_FIELD and _value_may_change(each, named):
                return True
    return False


def _keys(terms: NodeConstraints) -> tuple[str, ...]:
    found = dict.fromkeys(key for key, _ in terms.selector)
    for term in terms.affinity or ():
        found.update(dict.fromkeys(each.key for each in term.expressions))
    return tuple(found)


def _tolerates(tolerations: Iterable[Toleration], taint: Taint) -> bool:
    return any(each.tolerates(taint) for each in tolerations)


def _filtering_taints(node: Node) -> Collection[Taint]:
    return [taint for taint in dict.fromkeys(node.taints) if taint.effect in EXCLUDING_EFFECTS]
