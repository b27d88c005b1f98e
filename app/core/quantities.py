"""Resource quantities as exact integers, and arithmetic on resource vectors.

Base units: millicores for cpu, whole units (bytes, devices, pods) for all other resources. Grammar:
Kubernetes API, `resource.Quantity`. Smaller fractions are rounded up, as in the scheduler.
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
    r"(?P<sign>[+-]?)(?:(?P<whole>\d+)(?:\.(?P<part>\d*))?|\.(?P<rest>\d+))"
    r"(?:(?P<suffix>[KMGTPE]i|[numkMGTPE]?)|[eE](?P<exponent>[+-]?\d+))",
    re.ASCII,
)
_MOST_DIGITS = 400
"""The API server limits neither digits nor exponents. Further digits are cut off."""

MAX_AMOUNT = 2**63 - 1
"""The largest amount in base units, as in kube-scheduler."""

_MOST_CACHED = 64
"""Longest quantity, in characters, that is cached. Users may write many longer ones."""
_BYTES = ("memory", "ephemeral-storage", "hugepages-")
_NATIVE = ("cpu", "memory", "pods", "ephemeral-storage", "hugepages-", "attachable-volumes-")


def is_device(resource: Resource) -> bool:
    """Return whether a resource is a device: every resource except the native ones."""
    return "/" in resource or not resource.startswith(_NATIVE)


def parse_quantity(text: str | int | float) -> Fraction:
    """Return the exact value of a Kubernetes quantity. Raises InvalidQuantity."""
    match = _GRAMMAR.fullmatch(str(text).strip())
    if match is None:
        raise InvalidQuantity(
            f"{str(text)[:40]!r} is not a quantity: write a number such as 2, 500m, 1.5 or 4Gi."
        )
    number = _number(match["whole"] or "", match["part"] or match["rest"] or "")
    if match["sign"] == "-":
        number = -number
    if match["exponent"] is not None:
        return number * Fraction(f"1e{_exponent(match['exponent'])}")
    suffix = str(match["suffix"])
    if suffix in _BINARY:
        return number * _BINARY[suffix]
    return number * _DECIMAL[suffix]


def _exponent(text: str) -> int:
    """Return an exponent within the digits that count. Raises InvalidQuantity.

    As the API server does, it is read as 64 bits, and then the lower 32 bits count.
    """
    sign, digits = (text[0], text[1:]) if text[0] in "+-" else ("+", text)
    digits = digits.lstrip("0")[:20] or "0"
    read = int(sign + digits)
    if not -(2**63) <= read < 2**63:
        raise InvalidQuantity(
            f"The exponent of a quantity is {text[:40]}, which is too large; write a number such "
            "as 2, 500m, 1.5 or 4Gi."
        )
    counted = (read + 2**31) % 2**32 - 2**31
    return min(_MOST_DIGITS, max(-_MOST_DIGITS, counted))


def _number(whole: str, part: str) -> Fraction:
    """Return a decimal number. Digits beyond the limit are cut off, without making it 0."""
    whole, rest = whole.lstrip("0"), part[_MOST_DIGITS:].strip("0")
    if len(whole) > _MOST_DIGITS:
        whole = "9" * _MOST_DIGITS
    return Fraction(f"{whole or 0}.{part[:_MOST_DIGITS]}{'1' if rest else '0'}")


def parse_amount(resource: str, text: str | int | float) -> int:
    """Return a quantity of `resource` in base units, rounded up. Raises InvalidQuantity."""
    scale = 1000 if resource == CPU else 1
    is_long = isinstance(text, str) and len(text) > _MOST_CACHED
    return _units(text, scale) if is_long else _cached_units(text, scale)


def _units(text: str | int | float, scale: int) -> int:
    value = parse_quantity(text) * scale
    return min(MAX_AMOUNT, -(-value.numerator // value.denominator))


_cached_units = lru_cache(maxsize=4096)(_units)  # pods repeat few quantities; fractions are slow


def parse_amounts(quantities: Mapping[str, str | int | float]) -> dict[Resource, int]:
    """Return a resource list in base units. Raises InvalidQuantity, naming the resource."""
    parsed: dict[Resource, int] = {}
    for name, text in quantities.items():
        try:
            parsed[Resource(name)] = parse_amount(name, text)
        except InvalidQuantity as error:
            raise InvalidQuantity(f"resource {name[:80]}: {error}") from error
    return parsed


def format_amount(resource: str, value: int) -> str:
    """Return an amount in base units as the quantity that a person would write."""
    if resource == CPU and value % 1000:
        return f"{value}m"
    if resource.startswith(_BYTES):
        return _binary(value)
    return str(value // 1000 if resource == CPU else value)


def _binary(value: int) -> str:
    """Return bytes in the largest binary unit that divides them: 2Gi."""
    unit = ""
    for larger in _BINARY:
        if not value or value % 1024:
            break
        value, unit = value // 1024, larger
    return f"{value}{unit}"


def add_amounts(left: Amounts, right: Amounts) -> dict[Resource, int]:
    """Return the sum per resource."""
    total = dict(left)
    for resource, value in right.items():
        total[resource] = total.get(resource, 0) + value
    return total


def max_amounts(left: Amounts, right: Amounts) -> dict[Resource, int]:
    """Return the maximum per resource."""
    peak = dict(left)
    for resource, value in right.items():
        peak[resource] = max(peak.get(resource, 0), value)
    return peak


def fits(demand: Amounts, room: Amounts) -> bool:
    """Return whether `room` covers every requested resource. A request of 0 always fits."""
    return all(value <= room.get(resource, 0) for resource, value in demand.items() if value > 0)


class ManagedResources:
    """The resources that Fairgate manages: exact names, or prefixes with a trailing `*`."""

    __slots__ = ("_known", "_names", "_prefixes")

    def __init__(self, patterns: Iterable[str]) -> None:
        written = tuple(patterns)
        self._names = frozenset(Resource(p) for p in written if not p.endswith("*"))
        self._prefixes = tuple(p[:-1] for p in written if p.endswith("*"))
        self._known: dict[str, bool] = {}

    def __contains__(self, resource: str) -> bool:
        known = self._known.get(resource)
        if known is None:
            known = resource in self._names or resource.startswith(self._prefixes or ("\0",))
            if len(self._known) < 1000:  # users choose names: cache a bounded number
                self._known[resource] = known
        return known

    @property
    def names(self) -> frozenset[Resource]:
        """Return the exact names, without the prefixes."""
        return self._names

    def has_managed(self, demand: Amounts) -> bool:
        """Return whether a request has any managed resource. A request of 0 does not count."""
        return any(value > 0 and resource in self for resource, value in demand.items())
