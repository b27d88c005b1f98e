"""What pods, nodes and pools say of where pods may go becomes terms of the core. Pure.

What is not understood, such as an operator of a later version, lets a pod nowhere.
"""

from __future__ import annotations

from collections.abc import Iterable

from app import wire
from app.core import model
from app.core.asks.terms import (
    BARRING,
    FOLLOWING,
    NAME_FIELD,
    Affinity,
    Requirement,
    Taint,
    Term,
    Toleration,
)
from app.kube.sharing import name


def read_tolerations(written: Iterable[wire.Toleration] | None) -> tuple[Toleration, ...]:
    """Return the tolerations of a pod or a pool, in their order."""
    return tuple(
        Toleration(
            name(each.key),
            each.operator or "Equal",
            each.value,
            name(each.effect),
            each.toleration_seconds,
        )
        for each in written or ()
    )


def read_taints(written: Iterable[wire.Taint] | None) -> tuple[Taint, ...]:
    """Return the taints that keep pods off a node, but for those that repeat its readiness."""
    return tuple(
        sorted(
            Taint(name(each.key), each.value, name(each.effect))
            for each in written or ()
            if each.effect in BARRING and each.key not in FOLLOWING
        )
    )


def read_affinity(affinity: wire.Affinity | None) -> tuple[model.Pin, Affinity | None]:
    """Return the nodes that a required affinity names, and whatever else it requires of them.

    The DaemonSet controller names one; its pods then differ in nothing else.
    """
    nodes = affinity.node_affinity if affinity else None
    required = nodes.required_during_scheduling_ignored_during_execution if nodes else None
    if required is None:
        return None, None
    terms = tuple(_term(each) for each in required.node_selector_terms or ())
    named: set[str] = set()
    for term in terms:  # any of them is enough
        found = _named(term)
        if found is None and term != Term():
            return None, terms
        named |= found or set()
    only = tuple(sorted(model.NodeName(name(each)) for each in named))
    return only, None if all(map(_says_names_only, terms)) else terms


def _term(term: wire.NodeTerm) -> Term:
    return Term(_requirements(term.match_expressions), _requirements(term.match_fields))


def _requirements(written: Iterable[wire.Requirement] | None) -> tuple[Requirement, ...]:
    return tuple(
        Requirement(name(each.key), each.operator, tuple(each.values or ()))
        for each in written or ()
    )


def _named(term: Term) -> set[str] | None:
    """Return the nodes that all fields of a term allow, None if they name none."""
    found: set[str] | None = None
    for each in term.fields:
        if each.key == NAME_FIELD and each.operator == "In":
            found = set(each.values) if found is None else found & set(each.values)
    return found


def _says_names_only(term: Term) -> bool:
    return not term.expressions and all(
        (each.key, each.operator) == (NAME_FIELD, "In") for each in term.fields
    )
