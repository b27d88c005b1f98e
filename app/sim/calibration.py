"""Turns what a simulation says into what may be promised, by how earlier forecasts turned out.

A simulation of the backlog knows neither who comes next nor how long work will run. By what factor
waits turned out longer or shorter than it said is counted over the last days, and the next
forecast is stretched by the quantiles of that factor: split conformal prediction, on the ratio.
Forecasts that are still open count as "at least so long" (Kaplan and Meier). The quantile itself
follows how many of the ranges given held (adaptive conformal inference, Gibbs and Candes, 2021).

Pure: times are arguments, in seconds.
"""

from __future__ import annotations

import math
from bisect import bisect
from collections import deque
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass, field

FLOOR = 1800.0
"""Seconds added to both sides of a ratio: a wait of nothing has none, and short waits turn out
longer or shorter by more than long ones do."""

LONGEST = 7 * 24 * 3600.0
"""A range that reaches beyond this says nothing: it is withheld."""

WINDOW = 72 * 3600.0
MOST = 20_000
"""Forecasts are remembered so long, and so many."""

LEAST_OUTCOMES, LEAST_WORKLOADS = 20, 4
"""Outcomes of a class without which nothing is said about it, and of how many workloads."""

PACE = 0.006
"""By how much one outcome moves the quantile."""

LIKELY, SURE = 0.5, 0.9
FINE = (300.0, 1800.0, 7200.0, 21_600.0, 86_400.0)
COARSE = (1800.0, 21_600.0)
LEVELS: tuple[tuple[float, ...], ...] = (FINE, COARSE, ())
"""Classes by the wait that the simulation says, from the narrowest; the first that is known."""


Outcome = tuple[float, bool]
"""A ratio, and whether it is only a lower bound."""

Stretch = tuple[float, float]


@dataclass(frozen=True, slots=True)
class Range:
    """Seconds of waiting: half by `p50`, nine of ten by `p90`."""

    p50: float
    p90: float


@dataclass(slots=True, eq=False)
class Forecast:
    """What was said at a time of one workload, `whose` it is, and how long it waited from then."""

    at: float
    whose: Hashable
    workload: Hashable
    said: float
    given: Range | None
    waited: float | None = None

    def ratio(self, now: float) -> float:
        """Return by how much it turned out longer, as a logarithm; so far, if it still waits."""
        waited = now - self.at if self.waited is None else self.waited
        return math.log((waited + FLOOR) / (self.said + FLOOR))

    def held(self, bound: float, now: float) -> bool | None:
        """Tell whether a bound held; None: nobody knows yet."""
        if self.waited is not None:
            return self.waited <= bound
        return False if now - self.at > bound else None


@dataclass(slots=True)
class Level:
    """A quantile that follows what came of it."""

    aim: float
    least: float
    most: float
    now: float = field(init=False)

    def __post_init__(self) -> None:
        self.now = self.aim

    def follow(self, held: float) -> None:
        """Of some ranges that were given together, this part held."""
        self.now = min(self.most, max(self.least, self.now + PACE * (self.aim - held)))


class Calibration:
    """Forecasts and what became of them. `settle` at a time, then ask for ranges."""

    def __init__(self) -> None:
        self._known: deque[Forecast] = deque()
        self._open: dict[Hashable, list[Forecast]] = {}
        self._unjudged: list[Forecast] = []
        self._levels = [(Level(LIKELY, 0.2, 0.7), Level(SURE, 0.6, 0.99)) for _ in (*COARSE, 0)]
        self._seen: dict[tuple[int, int], list[Outcome] | None] = {}
        self._stretches: dict[tuple[int, int, int], Stretch | None] = {}

    def settle(self, now: float) -> None:
        """Take account of all that is known by now."""
        while self._known and (self._known[0].at < now - WINDOW or len(self._known) > MOST):
            self._drop(self._known.popleft())
        self._judge(now)
        self._seen, self._stretches = {}, {}
        for number, edges in enumerate(LEVELS):
            classes: dict[int, list[Forecast]] = {}
            for forecast in self._known:
                classes.setdefault(bisect(edges, forecast.said), []).append(forecast)
            for place, members in classes.items():
                self._seen[number, place] = _seen(members, now)

    def range(self, said: float) -> Range | None:
        """Return the range for a wait that the simulation says; None: it would be a guess."""
        for number, edges in enumerate(LEVELS):
            stretch = self._stretch(number, bisect(edges, said), bisect(COARSE, said))
            if stretch is not None:
                low, high = (max(0.0, (said + FLOOR) * math.exp(s) - FLOOR) for s in stretch)
                return Range(low, max(low, high)) if high <= LONGEST else None
        return None

    def note(self, forecast: Forecast) -> None:
        """Remember what was said; what becomes of it is told later."""
        self._known.append(forecast)
        self._open.setdefault(forecast.workload, []).append(forecast)
        if forecast.given is not None:
            self._unjudged.append(forecast)

    def started(self, workload: Hashable, at: float) -> None:
        """A workload waits no more: all that was said of it has an outcome."""
        for forecast in self._open.pop(workload, ()):
            forecast.waited = max(0.0, at - forecast.at)

    def gone(self, workloads: Iterable[Hashable]) -> None:
        """Workloads will never start: nothing follows from what was said of them."""
        # All at once: thousands go together, and each look through what is known takes long.
        lost = {each for each in workloads if self._open.pop(each, None) is not None}
        if lost:
            self._known = deque(f for f in self._known if f.workload not in lost)
            self._unjudged = [f for f in self._unjudged if f.workload not in lost]

    def _drop(self, forecast: Forecast) -> None:
        mates = self._open.get(forecast.workload)
        if mates is not None and forecast in mates:
            mates.remove(forecast)
            if not mates:
                del self._open[forecast.workload]

    def _judge(self, now: float) -> None:
        """Let the quantiles follow the ranges that have come out; a user's together."""
        out: dict[tuple[int, float, Hashable], list[Forecast]] = {}
        unjudged = []
        for forecast in self._unjudged:
            assert forecast.given is not None
            if forecast.held(forecast.given.p90, now) is None:
                unjudged.append(forecast)
            else:
                place = bisect(COARSE, forecast.said)
                out.setdefault((place, forecast.at, forecast.whose), []).append(forecast)
        self._unjudged = unjudged
        for (place, _, _), together in out.items():
            likely, sure = self._levels[place]
            sure.follow(_part(f.held(f.given.p90, now) for f in together if f.given))
            likely.follow(_part(f.held(f.given.p50, now) for f in together if f.given))

    def _stretch(self, number: int, place: int, level: int) -> Stretch | None:
        """Return the quantiles of the ratio in a class, if enough is known of it."""
        key = (number, place, level)
        if key not in self._stretches:
            seen = self._seen.get((number, place))
            likely, sure = quantiles(seen or (), [each.now for each in self._levels[level]])
            self._stretches[key] = None if likely is None or sure is None else (likely, sure)
        return self._stretches[key]


def _seen(members: Sequence[Forecast], now: float) -> list[Outcome] | None:
    """Return the ratios of a class in order; None: too few came out."""
    outcomes = [f for f in members if f.waited is not None]
    if len(outcomes) < LEAST_OUTCOMES or len({f.workload for f in outcomes}) < LEAST_WORKLOADS:
        return None
    return sorted((f.ratio(now), f.waited is None) for f in members)


def quantiles(seen: Sequence[Outcome], parts: Sequence[float]) -> list[float | None]:
    """Return quantiles of sorted outcomes; the product-limit estimator.

    None: so many are lower bounds that nobody can tell.
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


def _part(held: Iterable[bool | None]) -> float:
    judged = [bool(each) for each in held]
    return sum(judged) / len(judged)
