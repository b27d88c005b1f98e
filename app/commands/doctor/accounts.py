"""Which accounts hold a right by RBAC in all namespaces, named one by one.

Wildcards are left out: their holders are administrators, and no rule about one program fits them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from app.ports.cluster_survey import Object

Right = tuple[str, str, str]
"""API group, resource and verb."""

MOST_RIGHTS = 1000
"""Largest number of rights of one rule that is read. A rule with more names no single program."""


class Accounts:
    """User names with their rights. Groups are left out."""

    def __init__(self) -> None:
        self._roles: dict[str, set[Right]] = {}
        self._rights: dict[str, set[Right]] = {}

    def add_role(self, role: Object) -> None:
        """Add a ClusterRole. Add all roles before the bindings."""
        rights = self._roles.setdefault(role["metadata"]["name"], set())
        for rule in role.get("rules") or ():
            rights.update(_rights_of(rule))

    def add_binding(self, binding: Object) -> None:
        """Add a ClusterRoleBinding."""
        rights = self._roles.get((binding.get("roleRef") or {}).get("name", ""), set())
        for subject in binding.get("subjects") or ():
            if name := _user(subject):
                self._rights.setdefault(name, set()).update(rights)

    def holders(self, *rights: Right) -> list[str]:
        """Return the accounts that hold one of these rights."""
        return sorted(name for name, held in self._rights.items() if held.intersection(rights))


def _rights_of(rule: Mapping[str, Any]) -> set[Right]:
    groups, resources = rule.get("apiGroups") or (), rule.get("resources") or ()
    verbs = rule.get("verbs") or ()
    if rule.get("resourceNames") or len(groups) * len(resources) * len(verbs) > MOST_RIGHTS:
        return set()
    every = ("create", "update", "patch", "delete", "list", "watch", "get")
    verbs = every if "*" in verbs else verbs
    return {
        (group, resource, verb)
        for group in groups
        for resource in resources
        for verb in verbs
        if "*" not in (group, resource)
    }


def _user(subject: Mapping[str, Any]) -> str:
    kind, name = subject.get("kind"), str(subject.get("name", ""))
    if kind == "ServiceAccount":
        return f"system:serviceaccount:{subject.get('namespace', '')}:{name}"
    return name if kind == "User" else ""
