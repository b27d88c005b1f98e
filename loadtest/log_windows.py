"""Fairness figures on windows of a real log, measured by the public command.

One table per window. A target must be met in every run, not only on average.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from app.devcluster.progress import ConsoleProgress
from loadtest.figures import Compared, Measure, Series, Target
from loadtest.philly import log

NAME = "fairness"
HOUR = 3600
SHIFTS = 12

P0 = ("--gpus", "1600", "--from", "4096619", "--for", "880421")
P1 = ("--gpus", "1600", "--from", "4442219", "--for", "172800")
P3 = ("--gpus", "512", "--from", "4334219", "--for", "345600", "--tenant", "vc6214e9")
P4 = ("--gpus", "320", "--from", "4204619", "--for", "345600", "--tenant", "vcb436b2")


@dataclass(frozen=True, slots=True)
class Window:
    """One table: its title, its runs, and the bounds that each run must meet."""

    title: str
    runs: tuple[tuple[str, ...], ...]
    most_wait: float | None = None
    most_gangs: float | None = None
    least_used: float | None = None


def shifts(window: Sequence[str]) -> tuple[tuple[str, ...], ...]:
    """Return the window, and copies with arrivals shifted at random by up to half a minute."""
    seeds = range(1, SHIFTS + 1)
    return (tuple(window), *((*window, "--jitter", "30s", "--seed", str(n)) for n in seeds))


WINDOWS = (
    Window("P0, all ten days, users flat, 13 runs", shifts((*P0, "--flat")), 0.85, 4.5, 91.4),
    Window("P1, the most contended 48 h, users flat", ((*P1, "--flat"),), 2.3, 7.0),
    Window("P3, tenant vc6214e9 alone", (P3,)),
    Window("P4, tenant vcb436b2 alone", (P4,)),
    Window("P0, tenants on two levels", (P0,)),
    Window("P1, tenants on two levels", (P1,)),
)


def measure(progress: ConsoleProgress, decisions: int | None, rounds: int | None) -> list[Measure]:
    """Replay every window. `decisions` and `rounds` are ignored."""
    return [_table(window, progress) for window in WINDOWS]


def _table(window: Window, progress: ConsoleProgress) -> Measure:
    results = []
    for number, run in enumerate(window.runs, 1):
        with progress.step(f"fairness: {window.title}, run {number} of {len(window.runs)}"):
            results.append(replay(run))
    starved = Target(most=0) if window.most_wait is not None else None
    rows = [
        _row("users starved for an hour", "", [_starved(r, "1h") for r in results]),
        _row("users starved for 4 h", "", [_starved(r, "4h") for r in results], starved),
        _row("users starved for 12 h", "", [_starved(r, "12h") for r in results]),
        _row("mean of the users' mean waits", "h", [_wait(r) for r in results], window.most_wait),
        _row(
            "large gangs, mean wait", "h", [_gangs(r, "mean") for r in results], window.most_gangs
        ),
        _row("large gangs, longest wait", "h", [_gangs(r, "max") for r in results]),
        _row("the same, other users than its own", "h", [_others(r) for r in results]),
        _row("utilisation", "%", [_used(r) for r in results], least=window.least_used),
        _row("drift over bound", "", [r["metrics"]["drift_over_bound_max"] for r in results], 1),
    ]
    whose = sorted({str(_longest(r)) for r in results})
    how = (
        f"`fairgate replay LOG {' '.join(window.runs[0])}`; a target holds in every run.",
        f"The large gang that waited longest is of {' or '.join(whose)}.",
    )
    return Measure(NAME, window.title, how, (), tuple(rows))


def replay(options: Sequence[str]) -> dict[str, Any]:
    """Run the public command on the Philly log; return its JSON output."""
    command = [sys.executable, "-m", "app", "replay", str(log()), *options, "--output", "json"]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE)
    said: dict[str, Any] = json.loads(done.stdout)
    return said


def _row(
    title: str,
    unit: str,
    values: list[float],
    most: Target | float | None = None,
    *,
    least: float | None = None,
) -> Compared:
    target = most if isinstance(most, Target) else None
    if target is None and (most is not None or least is not None):
        target = Target(least=least, most=most if not isinstance(most, Target) else None)
    return Compared(Series(title, unit, tuple(values)), target, each=True)


def _starved(result: dict[str, Any], stretch: str) -> float:
    return float(result["metrics"]["starved_users"][stretch])


def _wait(result: dict[str, Any]) -> float:
    means = [float(user["mean"]) for user in result["users"].values()]
    return sum(means) / len(means) / HOUR


def _gangs(result: dict[str, Any], which: str) -> float:
    return float(result["metrics"]["large_gang_wait_seconds"][which]) / HOUR


def _longest(result: dict[str, Any]) -> str:
    longest = result["metrics"]["large_gang_wait_seconds"].get("longest")
    return str(longest["user"]) if longest else "nobody"


def _others(result: dict[str, Any]) -> float:
    others = result["metrics"]["large_gang_wait_seconds"].get("longest_of_others")
    return float(others["seconds"]) / HOUR if others else 0.0


def _used(result: dict[str, Any]) -> float:
    return 100 * float(result["metrics"]["utilisation"]["nvidia.com/gpu"])
