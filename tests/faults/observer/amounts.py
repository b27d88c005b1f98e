"""Quantities, and the effective requests of a pod (scheduler formula, KEP-753, KEP-2837).

Exact: thousandths of cpu, whole units of every other resource. Resource claims are not counted.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from decimal import ROUND_CEILING, Decimal
from functools import lru_cache
from typing import Any

Amounts = Mapping[str, int]

_SUFFIXES = {
    "n": Decimal("1e-9"), "u": Decimal("1e-6"), "m": Decimal("1e-3"), "k": Decimal("1e3"),
    "M": Decimal("1e6"), "G": Decimal("1e9"), "T": Decimal("1e12"), "P": Decimal("1e15"),
    "E": Decimal("1e18"), "Ki": Decimal(2**10), "Mi": Decimal(2**20), "Gi": Decimal(2**30),
    "Ti": Decimal(2**40), "Pi": Decimal(2**50), "Ei": Decimal(2**60),
}  # fmt: skip


@lru_cache(maxsize=4096)
def amount(resource: str, text: str | int | float) -> int:
    """Return a quantity in base units, rounded up. Raises ValueError."""
    written = str(text)
    suffix = next((s for s in sorted(_SUFFIXES, key=len, reverse=True) if written.endswith(s)), "")
    value = Decimal(written.removesuffix(suffix)) * _SUFFIXES.get(suffix, Decimal(1))
    if resource == "cpu":
        value *= 1000
    return int(value.to_integral_value(ROUND_CEILING))


def amounts(written: Mapping[str, Any] | None) -> dict[str, int]:
    """Return a resource list in base units."""
    return {name: amount(name, text) for name, text in (written or {}).items()}


def reserved(spec: Mapping[str, Any]) -> dict[str, int]:
    """Return the effective requests of a pod, with one unit of `pods`, without zero amounts."""
    main = _sum(_asked(each) for each in spec.get("containers") or ())
    sidecars: Counter[str] = Counter()
    peak: dict[str, int] = {}
    for each in spec.get("initContainers") or ():
        at_init = _sum((sidecars, _asked(each)))
        peak = _largest(peak, at_init)
        if each.get("restartPolicy") == "Always":
            sidecars = at_init
    total = _largest(_sum((main, sidecars)), peak)
    for name, value in _asked(spec).items():
        if name in ("cpu", "memory") or name.startswith("hugepages-"):
            total[name] = value
    whole = _sum((total, amounts(spec.get("overhead"))))
    whole["pods"] = 1
    return {name: value for name, value in whole.items() if value}


def add(total: dict[str, int], more: Amounts, sign: int = 1) -> None:
    """Add amounts to a total, or subtract them with sign -1."""
    for name, value in more.items():
        total[name] = total.get(name, 0) + sign * value


def _asked(container: Mapping[str, Any]) -> dict[str, int]:
    resources = container.get("resources") or {}
    return {**amounts(resources.get("limits")), **amounts(resources.get("requests"))}


def _sum(parts: Iterable[Amounts]) -> Counter[str]:
    total: Counter[str] = Counter()
    for part in parts:
        for name, value in part.items():
            total[name] += value
    return total


def _largest(left: Amounts, right: Amounts) -> dict[str, int]:
    return {name: max(left.get(name, 0), right.get(name, 0)) for name in {**left, **right}}
