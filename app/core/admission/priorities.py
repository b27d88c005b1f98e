"""Twins of PriorityClasses: the same value, but `preemptionPolicy: Never`.

A released pod that finds no node would have the stock scheduler evict other people's pods. So a
managed pod is created with the twin of its class instead: its order stays, its reach does not.
Nothing here looks anything up; the caller says which classes are known.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

NEVER = "Never"
"""The `preemptionPolicy` that evicts nobody."""

CLASSLESS = "fairgate.none"
"""The twin of having no class at all: value 0."""

LONGEST_NAME = 253
SYSTEM = "system-"
"""How the classes of Kubernetes itself begin; nobody else may make one of such a name."""

_SHORT = "fairgate-"
_LONG = "fairgate."


@dataclass(frozen=True, slots=True)
class PriorityClass:
    """A PriorityClass of the cluster. `ours`: it carries the label of what Fairgate keeps."""

    name: str
    value: int
    never: bool = False
    is_default: bool = False
    ours: bool = False
    uid: str = ""


Known = Mapping[str, PriorityClass]
"""Every PriorityClass of the cluster, by name."""


@dataclass(frozen=True, slots=True)
class Twin:
    """A PriorityClass that should exist, with `preemptionPolicy: Never` and never the default."""

    name: str
    value: int
    description: str


@dataclass(frozen=True, slots=True)
class Unfit:
    """The pod cannot be created like this; `message` says why and what to do."""

    code: int
    message: str


def twin_name(class_name: str) -> str:
    """Return the name of a class's twin; "" is having no class.

    No two classes share one: ordinary names keep theirs behind a prefix, names too long for that
    become a digest behind another prefix, which no ordinary twin has.
    """
    if not class_name:
        return CLASSLESS
    name = _SHORT + class_name
    if len(name) <= LONGEST_NAME:
        return name
    return _LONG + hashlib.sha256(class_name.encode()).hexdigest()


def twins(known: Known) -> dict[str, Twin]:
    """Return the twins that should exist, by name: one for each class whose pods may evict."""
    wanted = {CLASSLESS: Twin(CLASSLESS, 0, _describe("having no PriorityClass"))}
    for each in known.values():
        if not (each.never or _is_twin(each) or each.name.startswith(SYSTEM)):
            name = twin_name(each.name)
            wanted[name] = Twin(name, each.value, _describe(f"PriorityClass {each.name}"))
    return wanted


def surplus(known: Known) -> list[PriorityClass]:
    """Return the twins of ours that must go, because nothing needs them or they are not sound.

    Value and policy of a PriorityClass cannot be changed: to repair one is to make it anew.
    """
    wanted = twins(known)
    return [
        each
        for name, each in sorted(known.items())
        if _is_twin(each) and (name not in wanted or not _sound(each, wanted[name]))
    ]


def missing(known: Known) -> list[Twin]:
    """Return the twins that must be made. A name somebody else has taken is not among them."""
    return [twin for name, twin in sorted(twins(known).items()) if name not in known]


def replacement(class_name: str | None, policy: str | None, known: Known) -> str | Unfit | None:
    """Return the class to write in place of a managed pod's own; None: its own evicts nobody.

    `policy` is what the API server derived from the class before it asked us.
    """
    if policy == NEVER:
        return None
    if class_name and class_name.startswith(SYSTEM):
        return Unfit(
            403,
            f"Fairgate: PriorityClass {class_name} is for the cluster's own pods, and one that "
            "asks for a managed resource is not; use another PriorityClass, or none.",
        )
    original = known.get(class_name) if class_name else PriorityClass("", 0)
    twin = known.get(twin_name(class_name or ""))
    if original is not None and twin is not None and not original.never:
        if twin.never and twin.value == original.value:
            return twin.name
        if not twin.ours:
            return Unfit(
                403,
                f"Fairgate: PriorityClass {twin.name} stands where Fairgate keeps the twin of "
                f"{_spoken(class_name)}; ask an administrator to delete or rename it.",
            )
    return Unfit(
        503,
        f"Fairgate: the twin of {_spoken(class_name)} is not there yet; try again in a moment.",
    )


def priority_patch(
    class_name: str | None, policy: str | None, known: Known
) -> list[dict[str, Any]] | Unfit:
    """Return the patch that gives a managed pod the twin of its class; empty: nothing to do."""
    twin = replacement(class_name, policy, known)
    if twin is None or isinstance(twin, Unfit):
        return twin or []
    return _written(twin, NEVER)


def kept_patch(
    old: tuple[str | None, str | None], new: tuple[str | None, str | None]
) -> list[dict[str, Any]]:
    """Return the patch that puts a twin back where an update names its original again.

    Each pair is class and policy, before and after. Empty if there is nothing to put back: any
    other change is for the API server to refuse.
    """
    name, policy = old
    if name is None or policy != NEVER or not name.startswith((_SHORT, _LONG)):
        return []
    if old == new or (new[0] != name and twin_name(new[0] or "") != name):
        return []
    return _written(name, policy)


def _written(name: str, policy: str) -> list[dict[str, Any]]:
    return [
        {"op": "add", "path": "/spec/priorityClassName", "value": name},
        {"op": "add", "path": "/spec/preemptionPolicy", "value": policy},
    ]


def _is_twin(each: PriorityClass) -> bool:
    return each.ours and each.name.startswith((_SHORT, _LONG))


def _sound(each: PriorityClass, twin: Twin) -> bool:
    return each.never and not each.is_default and each.value == twin.value


def _describe(what: str) -> str:
    return (
        f"The twin of {what}: the same value, but a pod that finds no node evicts nobody. "
        "Fairgate keeps it, and writes it into the pods it manages."
    )


def _spoken(class_name: str | None) -> str:
    return f"PriorityClass {class_name}" if class_name else "having no PriorityClass"
