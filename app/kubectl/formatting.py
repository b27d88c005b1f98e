"""Formats amounts, shares, weights and times of the API's JSON for a terminal."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from fractions import Fraction
from typing import Any

NOTHING = "-"
_UNITS = ((86_400, "d"), (3_600, "h"), (60, "min"), (1, "s"))


def short(resource: str, among: Sequence[str] = ()) -> str:
    """Return the last part of a resource name, or the full name if that part is ambiguous."""
    last = resource.rpartition("/")[2]
    same = [each for each in among if each != resource and each.rpartition("/")[2] == last]
    return resource if same else last


def amounts(quantities: Mapping[str, str] | None) -> str:
    """Return amounts in one line: 4 gpu, 2 mig-1g.10gb."""
    if not quantities:
        return NOTHING
    names = list(quantities)
    shown = [f"{v} {short(r, names)}" for r, v in quantities.items() if v != "0"]
    return ", ".join(shown) or NOTHING


def devices(quantities: Mapping[str, str]) -> str:
    """Return the devices of a request, for which users wait; all resources if it has no devices."""
    return amounts({r: v for r, v in quantities.items() if "/" in r} or quantities)


def in_pools(pools: Mapping[str, Mapping[str, str]] | None) -> str:
    """Return amounts by pool in one line: h100: 8 gpu; t4: 2 gpu."""
    parts = [(pool, amounts(each)) for pool, each in (pools or {}).items()]
    return "; ".join(f"{pool}: {text}" for pool, text in parts if text != NOTHING) or NOTHING


def percent(part: str | Fraction | None) -> str:
    """Return a fraction in per cent."""
    return NOTHING if part is None else f"{float(Fraction(part)) * 100:.1f} %"


def number(text: str | None, places: int = 3) -> str:
    """Return a decimal with at most `places` places, without trailing zeros."""
    if text is None:
        return NOTHING
    rounded = f"{float(Fraction(text)):.{places}f}"
    return rounded.rstrip("0").rstrip(".") if "." in rounded else rounded


def moment(text: str) -> datetime:
    """Return a time of the API's JSON."""
    return datetime.fromisoformat(re.sub("Z$", "+00:00", text))  # Python 3.10 knows no Z


def span(seconds: float) -> str:
    """Return a duration in the largest unit that fits twice: 119 s, 59 min, 3 h."""
    whole = max(0, math.floor(seconds))
    for size, name in _UNITS:
        if whole >= 2 * size or size == 1:
            return f"{whole // size} {name}"
    raise AssertionError("seconds are the smallest unit")


def age(since: str, now: datetime) -> str:
    """Return the duration since a time of the API."""
    return span((now - moment(since)).total_seconds())


def between(low: float, high: float) -> str:
    """Return a range of seconds in the unit of its end, rounded outwards: 12-20 min."""
    high = max(high, low, 0.0)
    size, name = next((s, n) for s, n in _UNITS if high >= 2 * s or s == 1)
    first, last = math.floor(max(low, 0.0) / size), math.ceil(high / size)
    if last <= 1:
        return f"under 1 {name}"
    return f"{last} {name}" if first == last else f"{first}-{last} {name}"


def estimate(value: Mapping[str, Any] | None, now: datetime) -> str:
    """Return the estimated time until the start."""
    if value is None:
        return NOTHING
    gone = (now - moment(value["at"])).total_seconds()
    if value["p90"] <= gone:
        return "any moment"
    return between(value["p50"] - gone, value["p90"] - gone)


def clock(value: Mapping[str, Any], part: str, now: datetime) -> str:
    """Return the local time of a percentile of an estimate, with the day if it is not today."""
    ends = (moment(value["at"]) + timedelta(seconds=value[part])).astimezone()
    same = ends.date() == now.astimezone().date()
    return f"{ends:%H:%M}" if same else f"{ends:%a %d %b %H:%M}"


def hours(resource_seconds: str) -> str:
    """Return resource-seconds as resource-hours."""
    return f"{float(Fraction(resource_seconds) / 3600):,.2f}"


def count(amount: int, what: str) -> str:
    """Return a number and its noun, in the plural if necessary."""
    return f"{amount:,} {what}{'' if amount == 1 else 's'}"


def day(text: str) -> str:
    """Return a time of the API in the local time zone, to the second."""
    return f"{moment(text).astimezone():%Y-%m-%d %H:%M:%S %Z}"
