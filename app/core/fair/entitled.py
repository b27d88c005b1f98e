"""What tenants and users are owed if everybody asks for all they can get: by weight, each level.

Pure. Guarantees and limits are left out: they bound what weights alone would give.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from fractions import Fraction

from app.core.model import TenantName, UserName

WHOLE = UserName("")
"""Stands for a tenant itself next to its users. The API server names nobody so."""

Parts = dict[tuple[TenantName, UserName], Fraction]


@dataclass(frozen=True, slots=True)
class Standing:
    """A tenant in the tree. `users`: the weights of those who count as its users now."""

    parent: TenantName | None
    weight: Fraction
    users: Mapping[UserName, Fraction] = field(default_factory=dict)


def entitled(tenants: Mapping[TenantName, Standing]) -> Parts:
    """Return the part of the cluster that each tenant and user is owed; all at top level make 1.

    Users and child tenants of one tenant are siblings. A parent that is not among them, or that
    closes a circle, counts as none.
    """
    below: dict[TenantName | None, list[TenantName]] = {}
    for name in sorted(tenants):
        below.setdefault(_parent(name, tenants), []).append(name)
    parts: Parts = {}
    left: list[tuple[TenantName | None, Fraction]] = [(None, Fraction(1))]
    while left:
        parent, whole = left.pop()
        users = tenants[parent].users if parent is not None else {}
        children = below.get(parent, [])
        total = sum((tenants[each].weight for each in children), sum(users.values(), Fraction(0)))
        each_part = whole / total if total else Fraction(0)
        if parent is not None:
            parts |= {(parent, user): weight * each_part for user, weight in users.items()}
        for child in children:
            part = tenants[child].weight * each_part
            parts[child, WHOLE] = part
            left.append((child, part))
    return parts


def _parent(name: TenantName, tenants: Mapping[TenantName, Standing]) -> TenantName | None:
    seen = {name}
    above = tenants[name].parent
    while above is not None and above in tenants:
        if above in seen:
            return None
        seen.add(above)
        above = tenants[above].parent
    parent = tenants[name].parent
    return parent if parent in tenants else None
