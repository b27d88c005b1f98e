"""What of a pod's terms can make a difference on the nodes there are: terms with one gist are one.

A toleration of a taint that no node has, or a value that no node's label has, changes nothing
until such a node comes. Decides about no node, and knows nothing of pools.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from typing import NamedTuple

from app.core.asks.terms import (
    BARRING,
    NAME_FIELD,
    Affinity,
    Requirement,
    Taint,
    Term,
    Terms,
    Toleration,
)
from app.core.model import Node, NodeName


class Parted(NamedTuple):
    """Terms that have another gist since a node came or changed."""

    terms: Terms
    before: Terms
    now: Terms


class Gists:
    """The gists of terms, on nodes that are told one by one; `names` and `nodes` are all of them.

    Every node suits terms, and is borne by them, exactly if that is so for their gist.
    """

    def __init__(self, names: Collection[NodeName], nodes: Callable[[], Iterable[Node]]) -> None:
        self._names = names
        self._nodes = nodes
        self._labels: dict[str, dict[str, set[NodeName]]] = {}
        self._taints: dict[str, dict[Taint, int]] = {}
        self._known: dict[Terms, Terms] = {}
        self._asking: dict[str, set[Terms]] = {}
        self._naming: set[Terms] = set()
        self._bearing: set[Terms] = set()

    def of(self, terms: Terms) -> Terms:
        """Return the gist of terms: small, and to be judged only, not to be shown."""
        gist = self._known.get(terms)
        if gist is None:
            gist = self._known[terms] = self._read(terms)
            for key in _keys(terms):
                self._asking.setdefault(key, set()).add(terms)
            if any(term.fields for term in terms.affinity or ()):
                self._naming.add(terms)
            if terms.tolerations:
                self._bearing.add(terms)
        return gist

    def forget(self) -> None:
        """Forget all terms, many of which are of pods that are gone."""
        self._known.clear()
        self._labels.clear()
        self._asking.clear()
        self._naming.clear()
        self._bearing.clear()

    def clear(self) -> None:
        """Start anew, with no nodes."""
        self._taints.clear()
        self.forget()

    def put(self, node: Node, before: Node | None) -> list[Parted]:
        """A node came or changed; return the terms on which that sheds another light."""
        touched: set[Terms] = set()
        for key, values in self._labels.items():
            value = node.labels.get(key)
            if value is None:
                continue
            if value not in values:
                asking = self._asking.get(key, ())
                touched.update(t for t in asking if not values or _minds(t, key, value))
            values.setdefault(value, set()).add(node.name)
        if before is None:
            named = {NAME_FIELD: str(node.name)}
            touched.update(t for t in self._naming if _minds_name(t, named))
        for taint in _barring(node):
            alike = self._taints.setdefault(taint.key, {})
            if taint not in alike:
                touched.update(t for t in self._bearing if _bears(t.tolerations, taint))
            alike[taint] = alike.get(taint, 0) + 1
        if before is not None:
            self._strike(before, node)
        return self._part(touched)

    def drop(self, node: Node) -> None:
        """A node is gone."""
        self._strike(node, None)

    def labelled(self, key: str) -> Mapping[str, Collection[NodeName]]:
        """Return the nodes by their values of a label; kept from the first time it is asked."""
        found = self._labels.get(key)
        if found is None:
            found = self._labels[key] = {}
            for node in self._nodes():
                if key in node.labels:
                    found.setdefault(node.labels[key], set()).add(node.name)
        return found

    def _strike(self, before: Node, now: Node | None) -> None:
        for key, values in self._labels.items():
            value = before.labels.get(key)
            if value is not None and (now is None or now.labels.get(key) != value):
                values[value].discard(before.name)
                if not values[value]:
                    del values[value]
        for taint in _barring(before):
            alike = self._taints[taint.key]
            alike[taint] -= 1
            if not alike[taint]:
                del alike[taint]

    def _part(self, touched: set[Terms]) -> list[Parted]:
        parted = []
        for terms in touched:
            before, now = self._known[terms], self._read(terms)
            if before != now:
                self._known[terms] = now
                parted.append(Parted(terms, before, now))
        return parted

    def _read(self, terms: Terms) -> Terms:
        selector, affinity = terms.selector, terms.affinity
        if any(value not in self.labelled(key) for key, value in selector):
            selector, affinity = (), ()  # no node will do
        elif affinity is not None:
            affinity = self._affinity(affinity)
        telling = {t._replace(seconds=None) for t in terms.tolerations if self._tells(t)}
        return Terms(selector, affinity, tuple(sorted(telling)))

    def _tells(self, toleration: Toleration) -> bool:
        """Tell whether some node has a taint that this bears."""
        there = [self._taints.get(toleration.key, {})] if toleration.key else self._taints.values()
        return any(toleration.bears(taint) for alike in there for taint in alike)

    def _affinity(self, written: Affinity) -> Affinity | None:
        kept: dict[Term, None] = {}
        for term in written:
            gist = self._term(term) if term != Term() else None
            if gist == Term():
                return None  # every node meets it
            if gist is not None:
                kept[gist] = None
        return tuple(kept)

    def _term(self, term: Term) -> Term | None:
        """Return the gist of one term, empty if every node meets it; None: none does."""
        names: dict[str, Collection[str]] = {NAME_FIELD: self._names}
        expressions = [_gist(each, self.labelled(each.key)) for each in term.expressions]
        fields = [_gist(each, names.get(each.key, ())) for each in term.fields]
        if False in expressions or False in fields:
            return None
        return Term(
            tuple(each for each in expressions if isinstance(each, Requirement)),
            tuple(each for each in fields if isinstance(each, Requirement)),
        )


def _gist(each: Requirement, there: Collection[str]) -> Requirement | bool:
    """Return what of a requirement tells these values apart; True: all meet it, False: none."""
    match each.operator:
        case "In":
            values = frozenset(value for value in each.values if value in there)
            return Requirement(each.key, "In", values) if values else False
        case "NotIn":
            values = frozenset(value for value in each.values if value in there)
            return Requirement(each.key, "NotIn", values) if values else True
        case "Gt" | "Lt":
            values = frozenset(value for value in there if each.holds({each.key: value}))
            return Requirement(each.key, "In", values) if values else False
        case "Exists":
            return each if there else False
        case "DoesNotExist":
            return each if there else True
    return False  # as in `Requirement.holds`


def _minds(terms: Terms, key: str, value: str) -> bool:
    """Tell whether a value that nodes did not have before may make a difference."""
    if (key, value) in terms.selector:
        return True
    each = (e for term in terms.affinity or () for e in term.expressions if e.key == key)
    return any(e.holds({key: value}) != (e.operator == "NotIn") for e in each)


def _minds_name(terms: Terms, named: Mapping[str, str]) -> bool:
    """The same for the name of a new node."""
    each = (e for term in terms.affinity or () for e in term.fields)
    return any(
        e.operator == "DoesNotExist" or e.holds(named) != (e.operator == "NotIn") for e in each
    )


def _keys(terms: Terms) -> set[str]:
    affinity = terms.affinity or ()
    return {key for key, _ in terms.selector} | {
        each.key for term in affinity for each in term.expressions
    }


def _bears(tolerations: Iterable[Toleration], taint: Taint) -> bool:
    return any(each.bears(taint) for each in tolerations)


def _barring(node: Node) -> set[Taint]:
    return {taint for taint in node.taints if taint.effect in BARRING}
