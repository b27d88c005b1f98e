"""Quantities as exact integers, and small arithmetic on vectors of them.

Base units: millicores for cpu, whole units (bytes, devices, pods) for everything else.
Grammar of quantities: Kubernetes API, `resource.Quantity`; what is finer than the base unit is
rounded up, as the scheduler does.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from fractions import Fraction
from functools import lru_cache

from app.core.errors import InvalidQuantity
from app.core.model import Amounts, Resource

CPU = Resource("cpu")
PODS = Resource("pods")

MIB = 1024**2
GIB = 1024**3

_BINARY: dict[str, int] = {
    suffix: 1024**step for step, suffix in enumerate(["Ki", "Mi", "Gi", "Ti", "Pi", "Ei"], 1)
}
_DECIMAL: dict[str, Fraction] = {
    suffix: Fraction(1, 1000**3) * 1000**step
    for step, suffix in enumerate(["n", "u", "m", "", "k", "M", "G", "T", "P", "E"])
}
_GRAMMAR = re.compile(
    r"(?P<number>[+-]?(?:\d{1,40}(?:\.\d{0,40})?|\.\d{1,40}))"
    r"(?:(?P<suffix>[KMGTPE]i|[numkMGTPE]?)|[eE](?P<exponent>[+-]?\d{1,2}))",
    re.ASCII,
)

_NATIVE = ("cpu", "memory", "pods", "ephemeral-storage", "hugepages-", "attachable-volumes-")


def is_device(resource: Resource) -> bool:
    """Tell whether a resource is worth keeping whole: everything but the native ones."""
    return "/" in resource or not resource.startswith(_NATIVE)


def parse_quantity(text: str | int | float) -> Fraction:
    """Return the exact value of a Kubernetes quantity. Raises InvalidQuantity."""
    match = _GRAMMAR.fullmatch(str(text))
    if match is None:
        raise InvalidQuantity(
            f"{str(text)[:40]!r} is not a quantity: write a number such as 2, 500m, 1.5 or 4Gi."
        )
    number: Fraction = Fraction(match["number"])
    if match["exponent"] is not None:
        return number * Fraction(f"1e{match['exponent']}")
    suffix = str(match["suffix"])
    if suffix in _BINARY:
        return number * _BINARY[suffix]
    return number * _DECIMAL[suffix]


def amount(resource: str, text: str | int | float) -> int:
    """Return a quantity of `resource` in base units, rounded up. Raises InvalidQuantity."""
    return _units(text, 1000 if resource == CPU else 1)


@lru_cache(maxsize=4096)  # pods repeat a few quantities; exact fractions are slow
def _units(text: str | int | float, scale: int) -> int:
    value = parse_quantity(text) * scale
    return -(-value.numerator // value.denominator)


def amounts(quantities: Mapping[str, str | int | float]) -> dict[Resource, int]:
    """Return all of a resource list in base units. Raises InvalidQuantity, naming the resource."""
    parsed: dict[Resource, int] = {}
    for name, text in quantities.items():
        try:
            parsed[Resource(name)] = amount(name, text)
        except InvalidQuantity as error:
            raise InvalidQuantity(f"resource {name[:80]}: {error}") from error
    return parsed


def render(resource: str, value: int) -> str:
    """Return an amount in base units as the quantity a person would write."""
    if resource == CPU and value % 1000:
        return f"{value}m"
    return str(value // 1000 if resource == CPU else value)


def add(left: Amounts, right: Amounts) -> dict[Resource, int]:
    """Return the sum, resource by resource."""
    total = dict(left)
    for resource, value in right.items():
        total[resource] = total.get(resource, 0) + value
    return total


def largest(left: Amounts, right: Amounts) -> dict[Resource, int]:
    """Return the larger of the two, resource by resource."""
    peak = dict(left)
    for resource, value in right.items():
        peak[resource] = max(peak.get(resource, 0), value)
    return peak


def fits(demand: Amounts, room: Amounts) -> bool:
    """Tell whether every resource asked for is there; asking for none of it always fits."""
    return all(value <= room.get(resource, 0) for resource, value in demand.items() if value > 0)


class ManagedResources:
    """Which resources Fairgate manages: exact names, or prefixes written with a trailing `*`."""

    __slots__ = ("_known", "_names", "_prefixes")

    def __init__(self, patterns: Iterable[str]) -> None:
        written = tuple(patterns)
        self._names = frozenset(p for p in written if not p.endswith("*"))
        self._prefixes = tuple(p[:-1] for p in written if p.endswith("*"))
        self._known: dict[str, bool] = {}

    def __contains__(self, resource: str) -> bool:
        known = self._known.get(resource)
        if known is None:
            known = resource in self._names or resource.startswith(self._prefixes or ("\0",))
            if len(self._known) < 1000:  # names come from users: remember a bounded number
                self._known[resource] = known
        return known

    def asked(self, demand: Amounts) -> bool:
        """Tell whether a demand asks for any managed resource. Asking for 0 is not asking."""
        return any(value > 0 and resource in self for resource, value in demand.items())
