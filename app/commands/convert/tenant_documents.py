"""The Tenants and Pools that a conversion produces, as YAML, and notes about the rest.

A note says which setting has no equivalent, once for all objects that have this setting.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

from app.core.errors import InvalidInput
from app.core.quantities import parse_quantity
from app.terminal.yaml_text import dump_yaml

MOST_NAMED = 5
"""Most objects that one note names."""

MOST_WEIGHT = 999_999_999
GPU = "nvidia.com/gpu"
RESERVED_PREFIX = "ns."
DEFAULT = "default"
"""Name of the Tenant above all namespaces without a mapping."""

Amounts = dict[str, Fraction]
"""Exact amounts by resource."""


@dataclass(slots=True)
class ConvertedTenant:
    """One Tenant. Guarantees and limits are by pool."""

    name: str
    parent: str | None = None
    weight: Fraction | None = None
    namespaces: list[str] = field(default_factory=list)
    users: dict[str, Fraction | None] = field(default_factory=dict)
    guarantees: dict[str, Amounts] = field(default_factory=dict)
    limits: dict[str, Amounts] = field(default_factory=dict)
    paused: bool = False

    def document(self) -> dict[str, Any]:
        """Return the Tenant as a Kubernetes object. Defaults are left out."""
        spec: dict[str, Any] = {}
        if self.parent is not None:
            spec["parent"] = self.parent
        if self.weight is not None:
            spec["weight"] = decimal(self.weight)
        if self.namespaces:
            spec["namespaces"] = list(self.namespaces)
        if self.users:
            spec["users"] = [
                {"name": name} | ({} if weight is None else {"weight": decimal(weight)})
                for name, weight in self.users.items()
            ]
        if quotas := list(self._quotas()):
            spec["quotas"] = quotas
        if self.paused:
            spec["paused"] = True
        return _object("Tenant", self.name, spec)

    def _quotas(self) -> Iterator[dict[str, Any]]:
        for pool in dict.fromkeys([*self.guarantees, *self.limits]):
            guarantee = {r: value for r, value in self.guarantees.get(pool, {}).items() if value}
            limit = self.limits.get(pool, {})
            if guarantee or limit:
                quota: dict[str, Any] = {"pool": pool}
                if guarantee:
                    quota["guarantee"] = {
                        r: format_quantity(value) for r, value in guarantee.items()
                    }
                if limit:
                    quota["limit"] = {r: format_quantity(value) for r, value in limit.items()}
                yield quota


class Notes:
    """Settings without an equivalent. Notes with the same text are joined."""

    def __init__(self) -> None:
        self._names: dict[str, dict[str, None]] = {}

    def add(self, name: str, text: str) -> None:
        """Note that an object, such as `ClusterQueue team-a`, has such a setting."""
        self._names.setdefault(text, {})[name] = None

    def add_unmanaged(self, name: str, resource: str) -> None:
        """Note that an object has an amount of a resource that Fairgate does not manage."""
        self.add(
            name,
            f"the quota of {resource} is not converted, because Fairgate does not manage "
            f"{resource}; use a ResourceQuota.",
        )

    def lines(self) -> list[str]:
        """Return one sentence for each setting, in order of the first occurrence."""
        return [f"{_joined(list(names))}: {text}" for text, names in self._names.items()]


class TenantNames:
    """Valid and distinct Tenant names for names of another system."""

    def __init__(self, notes: Notes) -> None:
        self._notes = notes
        self._taken: set[str] = set()

    def claim(self, kind: str, name: str) -> str:
        """Return the Tenant name for an object. A changed name is noted."""
        valid = "".join(c if c.isascii() and (c.isalnum() or c in "-.") else "-" for c in name)
        valid = valid.lower().strip("-.") or "tenant"
        if valid.startswith(RESERVED_PREFIX) or valid == DEFAULT or valid in self._taken:
            valid = f"{kind.lower()}-{valid}"
        while valid in self._taken:
            valid += "-2"
        self._taken.add(valid)
        if valid != name:
            self._notes.add(f"{kind} {name}", f"the Tenant is named {valid}.")
        return valid


def write_documents(documents: Iterable[Mapping[str, Any]]) -> str:
    """Return YAML, a document for each object."""
    return dump_yaml(documents, explicit_start=True, width=100)


def pool_document(name: str, labels: Mapping[str, str], tolerations: list[Any]) -> dict[str, Any]:
    """Return a Pool of the nodes with these labels."""
    spec: dict[str, Any] = {"nodeSelector": dict(labels)} if labels else {}
    return _object("Pool", name, spec | ({"tolerations": tolerations} if tolerations else {}))


def parents_first(tenants: Iterable[ConvertedTenant]) -> list[ConvertedTenant]:
    """Return the tenants so that each parent precedes its children. Raises InvalidInput."""
    waiting = {tenant.name: tenant for tenant in tenants}
    ordered: list[ConvertedTenant] = []
    while waiting:
        ready = [tenant for tenant in waiting.values() if tenant.parent not in waiting]
        if not ready:
            names = ", ".join(sorted(waiting))
            raise InvalidInput(f"{names} are parents of each other; remove one of the parents.")
        ordered += ready
        for tenant in ready:
            del waiting[tenant.name]
    return ordered


def quantity(where: str, written: Any) -> Fraction:
    """Return a quantity, or raise InvalidInput with its place."""
    if isinstance(written, (str, int, float)) and not isinstance(written, bool):
        try:
            return parse_quantity(written)
        except InvalidInput as error:
            raise InvalidInput(f"{where}: {error}") from error
    raise InvalidInput(f"{where}: {written!r} is not a quantity: write a number such as 8 or 4Gi.")


def decimal(value: Fraction) -> str:
    """Return a weight as the CRD accepts it: at most nine digits and six decimals."""
    text = f"{float(min(value, Fraction(MOST_WEIGHT))):.6f}"
    return text.rstrip("0").rstrip(".")


def format_quantity(value: Fraction) -> int | str:
    """Return an amount as a YAML value, rounded up to thousandths."""
    return int(value) if value.denominator == 1 else f"{math.ceil(value * 1000)}m"


def _object(kind: str, name: str, spec: dict[str, Any]) -> dict[str, Any]:
    api = "fairgate.io/v1alpha1"
    return {"apiVersion": api, "kind": kind, "metadata": {"name": name}, "spec": spec}


def _joined(names: list[str]) -> str:
    """Return `ClusterQueue a, b, c and 4 more` for names that begin with the same kind."""
    kind, _, first = names[0].partition(" ")
    rest = [name.partition(" ")[2] if name.startswith(f"{kind} ") else name for name in names[1:]]
    told = ", ".join([first, *rest][:MOST_NAMED])
    more = len(names) - MOST_NAMED
    return f"{kind} {told}" + (f" and {more} more" if more > 0 else "")
