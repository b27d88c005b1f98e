"""Twins of PriorityClasses: the same value, but `preemptionPolicy: Never`.

If a released pod finds no node, kube-scheduler would preempt pods of others. So a managed pod gets
the twin of its class at create: its priority stays, but it cannot preempt. The caller provides the
known classes.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

NEVER = "Never"
"""The `preemptionPolicy` without preemption."""

NO_CLASS_TWIN = "fairgate.none"
"""The twin for pods without a PriorityClass. Its value is 0."""

LONGEST_NAME = 253
SYSTEM = "system-"
"""Prefix of the classes of Kubernetes itself. The API server reserves it."""

_SHORT = "fairgate-"
_LONG = "fairgate."


@dataclass(frozen=True, slots=True)
class PriorityClass:
    """A PriorityClass of the cluster. `is_ours`: it carries the label of Fairgate's own objects."""

    name: str
    value: int
    never_preempts: bool = False
    is_default: bool = False
    is_ours: bool = False
    uid: str = ""


KnownPriorityClasses = Mapping[str, PriorityClass]
"""Every PriorityClass of the cluster, by name."""


@dataclass(frozen=True, slots=True)
class Twin:
    """A PriorityClass that should exist, with `preemptionPolicy: Never`, and never the default."""

    name: str
    value: int
    description: str


@dataclass(frozen=True, slots=True)
class Unfit:
    """The pod cannot be created in this form. `message` says why and what to do."""

    code: int
    message: str


def twin_name(class_name: str) -> str:
    """Return the name of a class's twin. The class "" means no class.

    Each class has its own twin. Ordinary names get a prefix. A name that is too long for it becomes
    a digest behind another prefix, which no ordinary twin has.
    """
    if not class_name:
        return NO_CLASS_TWIN
    name = _SHORT + class_name
    if len(name) <= LONGEST_NAME:
        return name
    return _LONG + hashlib.sha256(class_name.encode()).hexdigest()


def wanted_twins(known: KnownPriorityClasses) -> dict[str, Twin]:
    """Return the twins that should exist, by name: one for each class with preemption."""
    wanted = {NO_CLASS_TWIN: Twin(NO_CLASS_TWIN, 0, _describe("having no PriorityClass"))}
    for each in known.values():
        if not (each.never_preempts or _is_twin(each) or each.name.startswith(SYSTEM)):
            name = twin_name(each.name)
            wanted[name] = Twin(name, each.value, _describe(f"PriorityClass {each.name}"))
    return wanted


def surplus_twins(known: KnownPriorityClasses) -> list[PriorityClass]:
    """Return Fairgate's twins that must be deleted, because they are unneeded or wrong.

    Value and policy of a PriorityClass are immutable, so a repair needs a new object.
    """
    wanted = wanted_twins(known)
    return [
        each
        for name, each in sorted(known.items())
        if _is_twin(each) and (name not in wanted or not _is_correct_twin(each, wanted[name]))
    ]


def missing_twins(known: KnownPriorityClasses) -> list[Twin]:
    """Return the twins to create. A name that another client has taken is omitted."""
    return [twin for name, twin in sorted(wanted_twins(known).items()) if name not in known]


def replacement_class(
    class_name: str | None, policy: str | None, known: KnownPriorityClasses
) -> str | Unfit | None:
    """Return the class to write in place of a managed pod's own; None if its own cannot preempt.

    `policy` is the value that the API server derived from the class before the webhook call.
    """
    if policy == NEVER:
        return None
    if class_name and class_name.startswith(SYSTEM):
        return Unfit(
            403,
            f"Fairgate: PriorityClass {class_name} is reserved for system pods, and this pod "
            "requests a managed resource; use another PriorityClass, or remove it.",
        )
    original = known.get(class_name) if class_name else PriorityClass("", 0)
    twin = known.get(twin_name(class_name or ""))
    if original is not None and twin is not None and not original.never_preempts:
        if twin.never_preempts and twin.value == original.value:
            return twin.name
        if not twin.is_ours:
            return Unfit(
                403,
                f"Fairgate: PriorityClass {twin.name} stands where Fairgate keeps the twin of "
                f"{_class_text(class_name)}; ask an administrator to delete or rename it.",
            )
    return Unfit(
        503,
        f"Fairgate: the twin of {_class_text(class_name)} is not there yet; try again in a moment.",
    )


def priority_patch(
    class_name: str | None, policy: str | None, known: KnownPriorityClasses
) -> list[dict[str, Any]] | Unfit:
    """Return the patch that gives a managed pod the twin of its class; empty if not needed."""
    twin = replacement_class(class_name, policy, known)
    if twin is None or isinstance(twin, Unfit):
        return twin or []
    return _priority_class_patch(twin, NEVER)


def restore_twin_patch(
    old: tuple[str | None, str | None], new: tuple[str | None, str | None]
) -> list[dict[str, Any]]:
    """Return the patch that restores a twin if an update names its original class again.

    Each pair is class and policy, before and after. The patch is empty for any other change, which
    the API server refuses itself.
    """
    name, policy = old
    if name is None or policy != NEVER or not name.startswith((_SHORT, _LONG)):
        return []
    if old == new or (new[0] != name and twin_name(new[0] or "") != name):
        return []
    return _priority_class_patch(name, policy)


def _priority_class_patch(name: str, policy: str) -> list[dict[str, Any]]:
    return [
        {"op": "add", "path": "/spec/priorityClassName", "value": name},
        {"op": "add", "path": "/spec/preemptionPolicy", "value": policy},
    ]


def _is_twin(each: PriorityClass) -> bool:
    return each.is_ours and each.name.startswith((_SHORT, _LONG))


def _is_correct_twin(each: PriorityClass, twin: Twin) -> bool:
    return each.never_preempts and not each.is_default and each.value == twin.value


def _describe(what: str) -> str:
    return (
        f"The twin of {what}: the same value, without preemption. Fairgate maintains it and sets "
        "it in the pods that it manages."
    )


def _class_text(class_name: str | None) -> str:
    return f"PriorityClass {class_name}" if class_name else "having no PriorityClass"
