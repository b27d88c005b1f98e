"""Calibrates simulated waits by the outcomes of earlier forecasts. Pure: times are arguments.

A simulation of the backlog omits later arrivals and only guesses run times. The ratio of real to
simulated waits is recorded over the last days. A new forecast is stretched by the quantiles of
that ratio (split conformal prediction). Open forecasts count as lower bounds (Kaplan and Meier).
The quantile level follows the coverage of earlier ranges (adaptive conformal inference, Gibbs and
Candes, 2021). All times are in seconds.
"""

from __future__ import annotations

import math
from bisect import bisect
from collections import deque
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass, field

FLOOR = 1800.0
"""Seconds added to both sides of a ratio. A wait of 0 has no ratio, and the ratios of short waits
vary more than those of long waits."""

LONGEST_RANGE = 7 * 24 * 3600.0
"""A range with a larger upper bound is withheld, because it is of no use."""

WINDOW = 72 * 3600.0
MOST = 20_000
"""Largest age in seconds and largest number of the stored forecasts."""

LEAST_OUTCOMES, LEAST_WORKLOADS = 20, 4
"""Outcomes, and workloads with outcomes, that a class needs before it gives a range."""

LEVEL_STEP = 0.006
"""Step by which one outcome moves the quantile level."""

LIKELY, SURE = 0.5, 0.9
FINE = (300.0, 1800.0, 7200.0, 21_600.0, 86_400.0)
COARSE = (1800.0, 21_600.0)
LEVELS: tuple[tuple[float, ...], ...] = (FINE, COARSE, ())
"""Edges of the classes of simulated waits, narrowest classes first. The first class with enough
outcomes is used."""


ForecastOutcome = tuple[float, bool]
"""Logarithm of a ratio, and whether it is only a lower bound."""

ScoreRange = tuple[float, float]


@dataclass(frozen=True, slots=True)
class Range:
    """Seconds of waiting: half of the workloads start by `p50`, nine of ten by `p90`."""

    p50: float
    p90: float


@dataclass(slots=True, eq=False)
class Forecast:
    """Forecast of one workload, with its owner, its simulated wait and, later, its real wait."""

    at: float
    owner: Hashable
    workload: Hashable
    simulated_wait: float
    range_given: Range | None
    real_wait: float | None = None

    def ratio(self, now: float) -> float:
        """Return the logarithm of real to simulated wait; the wait so far if it still waits."""
        waited = now - self.at if self.real_wait is None else self.real_wait
        return math.log((waited + FLOOR) / (self.simulated_wait + FLOOR))

    def was_within(self, bound: float, now: float) -> bool | None:
        """Return whether the real wait is within a bound; None if that is still open."""
        if self.real_wait is not None:
            return self.real_wait <= bound
        return False if now - self.at > bound else None


@dataclass(slots=True)
class CalibrationLevel:
    """A quantile level that adapts to the coverage of the ranges given."""

    target: float
    least: float
    most: float
    level: float = field(init=False)

    def __post_init__(self) -> None:
        self.level = self.target

    def adapt(self, held: float) -> None:
        """Adapt the level to ranges given together; `held` is the part that was correct."""
        self.level = min(self.most, max(self.least, self.level + LEVEL_STEP * (self.target - held)))


class Calibration:
    """Forecasts and their outcomes. Call `update_classes` with the time, then `range_for`."""

    def __init__(self) -> None:
        self._forecasts: deque[Forecast] = deque()
        self._open_forecasts: dict[Hashable, list[Forecast]] = {}
        self._unscored: list[Forecast] = []
        self._levels = [
            (CalibrationLevel(LIKELY, 0.2, 0.7), CalibrationLevel(SURE, 0.6, 0.99))
            for _ in (*COARSE, 0)
        ]
        self._outcomes: dict[tuple[int, int], list[ForecastOutcome] | None] = {}
        self._quantile_cache: dict[tuple[int, int, int], ScoreRange | None] = {}

    def update_classes(self, now: float) -> None:
        """Drop old forecasts, adapt the quantile levels and sort the outcomes by class."""
        while self._forecasts and (
            self._forecasts[0].at < now - WINDOW or len(self._forecasts) > MOST
        ):
            self._drop_forecast(self._forecasts.popleft())
        self._adapt_levels(now)
        self._outcomes, self._quantile_cache = {}, {}
        for number, edges in enumerate(LEVELS):
            classes: dict[int, list[Forecast]] = {}
            for forecast in self._forecasts:
                classes.setdefault(bisect(edges, forecast.simulated_wait), []).append(forecast)
            for place, members in classes.items():
                self._outcomes[number, place] = _class_outcomes(members, now)

    def range_for(self, said: float) -> Range | None:
        """Return the range for a simulated wait; None if it is unknown or above `LONGEST_RANGE`."""
        for number, edges in enumerate(LEVELS):
            stretch = self._quantile_range(number, bisect(edges, said), bisect(COARSE, said))
            if stretch is not None:
                low, high = (max(0.0, (said + FLOOR) * math.exp(s) - FLOOR) for s in stretch)
                return Range(low, max(low, high)) if high <= LONGEST_RANGE else None
        return None

    def add_forecast(self, forecast: Forecast) -> None:
        """Store a forecast. `record_start` or `drop_workloads` closes it later."""
        self._forecasts.append(forecast)
        self._open_forecasts.setdefault(forecast.workload, []).append(forecast)
        if forecast.range_given is not None:
            self._unscored.append(forecast)

    def record_start(self, workload: Hashable, at: float) -> None:
        """Record the outcome of all forecasts of a workload that stopped waiting."""
        for forecast in self._open_forecasts.pop(workload, ()):
            forecast.real_wait = max(0.0, at - forecast.at)

    def drop_workloads(self, workloads: Iterable[Hashable]) -> None:
        """Drop the forecasts of workloads that will never start."""
        # All at once: thousands go together, and each pass over the stored forecasts is slow.
        lost = {each for each in workloads if self._open_forecasts.pop(each, None) is not None}
        if lost:
            self._forecasts = deque(f for f in self._forecasts if f.workload not in lost)
            self._unscored = [f for f in self._unscored if f.workload not in lost]

    def _drop_forecast(self, forecast: Forecast) -> None:
        mates = self._open_forecasts.get(forecast.workload)
        if mates is not None and forecast in mates:
            mates.remove(forecast)
            if not mates:
                del self._open_forecasts[forecast.workload]

    def _adapt_levels(self, now: float) -> None:
        """Adapt the quantile levels to the ranges with outcomes; a user's count together."""
        out: dict[tuple[int, float, Hashable], list[Forecast]] = {}
        unjudged = []
        for forecast in self._unscored:
            assert forecast.range_given is not None
            if forecast.was_within(forecast.range_given.p90, now) is None:
                unjudged.append(forecast)
            else:
                place = bisect(COARSE, forecast.simulated_wait)
                out.setdefault((place, forecast.at, forecast.owner), []).append(forecast)
        self._unscored = unjudged
        for (place, _, _), together in out.items():
            likely, sure = self._levels[place]
            sure.adapt(
                _held_fraction(
                    f.was_within(f.range_given.p90, now) for f in together if f.range_given
                )
            )
            likely.adapt(
                _held_fraction(
                    f.was_within(f.range_given.p50, now) for f in together if f.range_given
                )
            )

    def _quantile_range(self, number: int, place: int, level: int) -> ScoreRange | None:
        """Return the quantiles of the ratio in a class; None if it has too few outcomes."""
        key = (number, place, level)
        if key not in self._quantile_cache:
            seen = self._outcomes.get((number, place))
            likely, sure = quantiles(seen or (), [each.level for each in self._levels[level]])
            self._quantile_cache[key] = None if likely is None or sure is None else (likely, sure)
        return self._quantile_cache[key]


def _class_outcomes(members: Sequence[Forecast], now: float) -> list[ForecastOutcome] | None:
    """Return the sorted outcomes of a class; None if there are too few."""
    outcomes = [f for f in members if f.real_wait is not None]
    if len(outcomes) < LEAST_OUTCOMES or len({f.workload for f in outcomes}) < LEAST_WORKLOADS:
        return None
    return sorted((f.ratio(now), f.real_wait is None) for f in members)


def quantiles(seen: Sequence[ForecastOutcome], parts: Sequence[float]) -> list[float | None]:
    """Return quantiles of sorted outcomes, by the product-limit estimator.

    A quantile is None if too many outcomes are lower bounds.
    """
    left, beyond = len(seen), 1.0
    found: list[float | None] = [None] * len(parts)
    for value, at_least in seen:
        if not at_least:
            beyond *= 1 - 1 / left
            for i, part in enumerate(parts):
                if found[i] is None and beyond <= 1 - part + 1e-9:
                    found[i] = value
        left -= 1
    return found


def _held_fraction(held: Iterable[bool | None]) -> float:
    judged = [bool(each) for each in held]
    return sum(judged) / len(judged)
