"""Output of `replay`: the figures of one window, as JSON or as tables."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from app.core.model import Millis
from app.core.safe_text import escape_hidden
from app.sim.metrics.waits import Waits
from app.sim.metrics.window import LongWait, Measures
from app.sim.replay.runner import ReplayResult
from app.sim.report import json_report

HOUR, MINUTE = 3600.0, 60.0
MOST_USERS = 10
Window = tuple[Millis, Millis]


def metrics(measures: Measures, played: ReplayResult) -> dict[str, object]:
    """Return the figures by their stable JSON names. Waits are in seconds."""
    gangs = measures.large_gang_wait_seconds
    users = measures.user_waits
    return {
        **json_report.metrics(measures),
        "drift_over_bound_max": played.drift,
        "drift_pairs": played.pairs,
        "users_mean_wait_seconds": {"mean": users.mean, "p50": users.p50, "p95": users.p95},
        "large_gang_wait_seconds": {
            "mean": gangs.mean,
            "max": gangs.max,
            "jobs": gangs.jobs,
            "longest": _long_wait(measures.longest),
            "longest_of_others": _long_wait(measures.longest_of_others),
        },
        "waits_by_tenant": {name: _waits(w) for name, w in measures.waits_by_tenant.items()},
        "waits_by_size": {name: _waits(w) for name, w in measures.waits_by_size.items()},
        "decisions": played.decisions,
        "events": played.events,
    }


def as_json(
    measures: Measures, played: ReplayResult, window: Window, rigid: Measures | None = None
) -> dict[str, Any]:
    """Return the window, its metrics and the waits of its users, for JSON.

    `rigid`: the figures of the same replay without elastic gangs.
    """
    start, end = window
    document = {
        "from": start / 1000,
        "for": (end - start) / 1000,
        "workloads": {
            "submitted": played.works,
            "released": played.works - played.never_started,
            "never_started": played.never_started,
        },
        "metrics": metrics(measures, played),
        "users": {
            name: {"mean": w.mean, "p50": w.p50, "p95": w.p95, "jobs": w.jobs}
            for name, w in sorted(measures.users.items())
        },
    }
    return document if rigid is None else document | {"without_elastic": _compared(rigid)}


def show(
    measures: Measures, played: ReplayResult, window: Window, large_gang: int, policy: str
) -> None:
    """Print everything as tables."""
    console = Console(highlight=False)
    start, end = window
    console.print(
        f"\n[bold]{policy}[/bold], {span((end - start) / 1000)} from second {start / 1000:.0f} of "
        f"the log; the whole log was played: {played.works:,} workloads, "
        f"{played.decisions:,} decisions, {played.events:,} events",
        soft_wrap=True,
    )
    if played.never_started:
        stuck = f"{played.never_started:,} workload" + "s" * (played.never_started > 1)
        console.print(f"[yellow]{stuck} could never start.[/yellow]")
    console.print()
    console.print(_figures(measures, played, large_gang, policy))
    if not measures.users:
        console.print("\nNothing was submitted in this window.")
        return
    console.print(_table("Waits by devices asked for", "devices", measures.waits_by_size.items()))
    tenants = [str(name) for name in measures.waits_by_tenant]
    if tenants != [str(name) for name in measures.users]:
        worst = _worst(measures.waits_by_tenant.items())
        console.print(_table("Tenants that waited longest", "tenant", worst))
    console.print(_table("Users that waited longest", "user", _worst(measures.users.items())))


def show_elastic(measures: Measures, rigid: Measures, percent: int) -> None:
    """Print the figures with and without elastic gangs side by side."""
    table = Table("", f"{percent} % elastic", "none elastic", box=None, padding=(0, 2, 0, 0))
    rows = zip(_elastic_rows(measures), _elastic_rows(rigid), strict=True)
    for (name, now), (_, then) in rows:
        table.add_row(name, now, then)
    console = Console(highlight=False)
    console.print()
    console.print(table)


def _elastic_rows(measures: Measures) -> Iterator[tuple[str, str]]:
    gangs, waits = measures.large_gang_wait_seconds, measures.wait_seconds
    yield "wait of large gangs, mean", span(gangs.mean)
    yield "wait of large gangs, longest", span(gangs.max)
    yield "wait of all, mean", span(waits.mean)
    yield "evicted GPU time", span(measures.evicted_device_seconds)
    for resource, part in measures.utilisation.items():
        yield f"utilisation of {resource}", f"{100 * part:.1f} %"


def _compared(measures: Measures) -> dict[str, object]:
    gangs = measures.large_gang_wait_seconds
    return {
        **json_report.metrics(measures),
        "large_gang_wait_seconds": {"mean": gangs.mean, "max": gangs.max, "jobs": gangs.jobs},
    }


def span(seconds: float) -> str:
    """Return a duration in days, hours, minutes or seconds."""
    if seconds >= 96 * HOUR:
        return f"{seconds / 24 / HOUR:.1f} days"
    if seconds >= HOUR:
        return f"{seconds / HOUR:.1f} h"
    return f"{seconds / MINUTE:.0f} min" if seconds >= MINUTE else f"{seconds:.0f} s"


def _figures(measures: Measures, played: ReplayResult, large_gang: int, policy: str) -> Table:
    table = Table(show_header=False, box=None, padding=(0, 2, 0, 0))
    for row in (*_wait_rows(measures, large_gang), *_share_rows(measures)):
        table.add_row(*row)
    if policy == "fair":
        table.add_row(
            "drift over bound",
            f"{played.drift:.3f}",
            f"largest of {played.pairs:,} comparisons; promised: at most 1",
        )
    if measures.evicted_device_seconds:
        lost = f"{measures.evicted_device_seconds / HOUR:.1f}"
        table.add_row("evicted", lost, "device-hours of work that had to start again")
    return table


def _wait_rows(measures: Measures, large_gang: int) -> Iterator[tuple[str, str, str]]:
    starved = measures.starved_users
    users, gangs = measures.user_waits, measures.large_gang_wait_seconds
    yield (
        "users starved",
        " / ".join(str(count) for count in starved.values()),
        f"of {users.users}: had work waiting and held nothing for {' / '.join(starved)} and more",
    )
    yield (
        "users' mean wait",
        ", ".join(span(value) for value in (users.mean, users.p50, users.p95)),
        "mean, median and 95th percentile of the users",
    )
    wait = measures.wait_seconds
    yield (
        "wait of a job",
        ", ".join(span(value) for value in (wait.mean, wait.p50, wait.p95, wait.max)),
        f"mean, median, 95th percentile and longest of {wait.jobs:,} jobs",
    )
    if gangs.jobs:
        yield (
            "large gangs",
            f"{span(gangs.mean)}, {span(gangs.max)}",
            f"mean and longest wait of {gangs.jobs} that ask for {large_gang} devices and more",
        )
    if gangs.max:
        yield "", "", _whose(measures.longest, measures.longest_of_others)


def _share_rows(measures: Measures) -> Iterator[tuple[str, str, str]]:
    for resource, used in measures.utilisation.items():
        yield "utilisation", f"{100 * used:.1f} %", str(resource)
    yield "Jain's index", f"{measures.jain:.3f}", "of what tenants held, by weight; 1: all equal"
    yield (
        "fairness error",
        f"{measures.fairness_error:.1f}",
        "devices owed to tenants that asked for them and did not get them, on average",
    )


def _whose(longest: LongWait | None, others: LongWait | None) -> str:
    if longest is None:
        return ""
    user, tenant = str(longest.work.user), str(longest.work.tenant)
    text = f"the longest: {_shown(user)}" + (f" of {_shown(tenant)}" if tenant != user else "")
    if others is None:
        return text
    return f"{text}; of anyone else {span(others.seconds)}, {_shown(others.work.user)}"


def _shown(name: str) -> str:
    """Return a name of the log as text without markup and without hidden characters."""
    return escape(escape_hidden(name))


def _table(title: str, what: str, rows: Iterable[tuple[str, Waits]]) -> Table:
    table = Table(title=f"\n{title}", title_justify="left", title_style="bold")
    table.add_column(what)
    for head in ("jobs", "mean", "median", "95 %", "longest"):
        table.add_column(head, justify="right")
    for name, w in rows:
        table.add_row(
            _shown(name), f"{w.jobs:,}", *(span(value) for value in (w.mean, w.p50, w.p95, w.max))
        )
    return table


def _worst(groups: Iterable[tuple[str, Waits]]) -> list[tuple[str, Waits]]:
    return sorted(groups, key=lambda item: (-item[1].mean, item[0]))[:MOST_USERS]


def _waits(waits: Waits) -> dict[str, float]:
    return {"mean": waits.mean, "p50": waits.p50, "p95": waits.p95, "max": waits.max}


def _long_wait(wait: LongWait | None) -> dict[str, object] | None:
    if wait is None:
        return None
    work = wait.work
    return {"user": work.user, "tenant": work.tenant, "job": work.name, "seconds": wait.seconds}
