"""Results of measures as values, with medians, spreads and ratios.

Pure: no clock, no cluster, no printing.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

DIGITS = 3


@dataclass(frozen=True, slots=True)
class Series:
    """One figure, measured once in every round."""

    title: str
    unit: str
    values: tuple[float, ...]

    @property
    def median(self) -> float:
        """The median of the rounds."""
        return statistics.median(self.values)

    @property
    def spread(self) -> tuple[float, float]:
        """The lowest and the highest round."""
        return min(self.values), max(self.values)

    def as_json(self) -> dict[str, Any]:
        """Return the series with its median and spread."""
        low, high = self.spread
        return {
            "title": self.title,
            "unit": self.unit,
            "median": round(self.median, DIGITS),
            "low": round(low, DIGITS),
            "high": round(high, DIGITS),
            "rounds": [round(value, DIGITS) for value in self.values],
        }


@dataclass(frozen=True, slots=True)
class Target:
    """Bounds of a median: at least `least`, at most `most`."""

    least: float | None = None
    most: float | None = None

    def is_met(self, value: float) -> bool:
        """Return whether a value is within the target."""
        above = self.least is None or value >= self.least
        return above and (self.most is None or value <= self.most)

    def __str__(self) -> str:
        parts = [f"≥ {self.least:g}"] if self.least is not None else []
        parts += [f"≤ {self.most:g}"] if self.most is not None else []
        return ", ".join(parts)


@dataclass(frozen=True, slots=True)
class Compared:
    """Ratio of two figures per round, or one figure with its own target.

    The median must reach the target. If `each` is true, every round must reach it.
    """

    series: Series
    target: Target | None = None
    each: bool = False

    @property
    def is_met(self) -> bool | None:
        """Whether the target is reached; None if there is no target."""
        if self.target is None:
            return None
        judged = self.series.values if self.each else (self.series.median,)
        return all(self.target.is_met(value) for value in judged)

    def as_json(self) -> dict[str, Any]:
        """Return the series with its target and whether it is met."""
        told: dict[str, Any] = self.series.as_json()
        if self.target is not None:
            told |= {"target": str(self.target), "met": self.is_met}
        return told


@dataclass(frozen=True, slots=True)
class Measure:
    """The result of one measure: its figures, their ratios, and how they were measured."""

    name: str
    title: str
    how: tuple[str, ...]
    figures: tuple[Series, ...]
    ratios: tuple[Compared, ...]

    def as_json(self) -> dict[str, Any]:
        """Return the stable form of `--output json`."""
        return {
            "name": self.name,
            "title": self.title,
            "how": list(self.how),
            "figures": [figure.as_json() for figure in self.figures],
            "ratios": [ratio.as_json() for ratio in self.ratios],
        }


def rate(count: int, seconds: float) -> float:
    """Return the rate per second."""
    if seconds <= 0:
        raise ValueError("a rate needs time to have passed")
    return count / seconds


def ratio(title: str, over: Series, under: Series, target: Target | None = None) -> Compared:
    """Compare two figures taken side by side: one ratio per round, so that drift cancels out."""
    values = tuple(a / b for a, b in zip(over.values, under.values, strict=True))
    return Compared(Series(title, "", values), target)


def percentile(values: Sequence[float], per_cent: float) -> float:
    """Return the smallest value that at least `per_cent` of the values do not exceed.

    Nearest rank. Raises ValueError without values, or if `per_cent` is out of range.
    """
    if not values or not 0 < per_cent <= 100:
        raise ValueError("a percentile needs values, and a share above 0 and up to 100")
    ordered = sorted(values)
    rank = -(-len(ordered) * per_cent // 100)  # rounded up
    return ordered[int(rank) - 1]


def turns(arms: Sequence[str], rounds: int) -> list[tuple[int, str]]:
    """Return the order of the turns, with round numbers from 1: a b c, b c a, c a b, and so on.

    Arms alternate so that all see the same changes of the machine. Each round begins with another
    arm. Otherwise an event that recurs about once a round, such as a garbage collection of the API
    server, would always affect the same arm.
    """
    order: list[tuple[int, str]] = []
    for number in range(rounds):
        first = number % len(arms)
        order += [(number + 1, arm) for arm in (*arms[first:], *arms[:first])]
    return order


def columns(
    titles: Mapping[str, str], unit: str, taken: Mapping[str, Sequence[float]]
) -> dict[str, Series]:
    """Return a series of the values of each arm."""
    return {arm: Series(title, unit, tuple(taken[arm])) for arm, title in titles.items()}
