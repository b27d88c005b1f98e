"""A simulation as a person likes to read it: tables, bars, and what each figure means."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from rich.console import Console
from rich.table import Table
from rich.text import Text

from app.core.model import Resource, TenantName
from app.sim.family import Family
from app.sim.listings import evictions, releases, still_waiting
from app.sim.outcome import Account, Outcome
from app.sim.report import plain, spent_seconds
from app.sim.sparkline import NOTHING, shares_over_time, sparkline
from app.sim.waits import Waits
from app.sim.wording import count, listed, new_table, percent, short, shown, span, unit

WIDEST_BAR, NARROWEST_BAR = 60, 10
BESIDE_BAR = 24
"""Columns that the figures beside a bar take."""


def print_outcome(outcome: Outcome, console: Console) -> None:
    """Print everything a simulation came to."""
    console.print(_headline(outcome), highlight=False, soft_wrap=True)
    if not outcome.scenario.works:
        console.print("Nothing was submitted: workloads is empty.", highlight=False)
    parts: list[Table | Text | None] = [
        _holders(outcome),
        _bars(outcome, console.width),
        _waits(outcome.measures.waits_by_tenant),
        releases(outcome),
        evictions(outcome),
        still_waiting(outcome),
        _figures(outcome),
    ]
    for part in parts:
        if part is not None:
            console.print()
            console.print(part)


def _headline(outcome: Outcome) -> str:
    scenario = outcome.scenario
    capacity = listed(scenario.capacity)
    return (
        f"{scenario.name}: {span(scenario.until)} on {capacity}; "
        f"{count(len(outcome.releases), 'release')}, {count(len(outcome.evictions), 'eviction')}"
    )


def _holders(outcome: Outcome) -> Table:
    """Who holds what at the end: every tenant, below it its users."""
    resources = list(outcome.scenario.capacity)
    columns = [each for r in resources for each in (f"{unit(r)}\nused", f"{unit(r)}-h\ncharged")]
    table = new_table("At the end", "tenant, user", "weight", "share", *columns, "pods\npending")
    table.columns[0].justify = "left"
    for name in Family(each.tenant for each in outcome.tenants.values()).in_order():
        each = outcome.tenants[name]
        indent = "  " * each.depth
        weight = f"{float(each.tenant.weight):g}"
        share = percent(float(each.share))
        cells = _cells(each.account, resources)
        table.add_row(Text(indent + name, style="bold"), weight, share, *cells)
        if [str(user) for user in each.users] != [str(name)]:
            for user, account in each.users.items():
                owed = f"{float(each.tenant.user_weights.get(user, 1)):g}"
                cells = _cells(account, resources)
                table.add_row(Text(f"{indent}  {user}"), owed, "", *cells)
    return table


def _cells(account: Account, resources: Iterable[Resource]) -> list[str]:
    used, charged = plain(account.used), spent_seconds(account.charged)
    cells = [
        cell
        for r in resources
        for cell in (
            f"{shown(r, used.get(r, 0)):,g}",
            f"{shown(r, charged.get(r, 0)) / 3600:,.1f}",
        )
    ]
    return [*cells, f"{account.pending:,}"]


def _bars(outcome: Outcome, width: int) -> Table | None:
    """Every tenant's share of the cluster over time. None if no time went by."""
    scenario = outcome.scenario
    if not scenario.until:
        return None
    longest = max((len(name) for name in outcome.tenants), default=0)
    tree = Family(scenario.tenants)
    deepest = max((each.depth for each in outcome.tenants.values()), default=0)
    taken = max(longest + 2 * deepest, len("tenant")) + BESIDE_BAR
    steps = max(NARROWEST_BAR, min(WIDEST_BAR, width - taken))
    shares = shares_over_time(
        outcome.timeline,
        {
            pool: {r: v for r, v in offered.items() if r in scenario.counted}
            for pool, offered in scenario.cluster.offers.items()
        },
        {pool.name: pool.weights for pool in scenario.cluster.pools},
        scenario.until,
        steps,
        tree.path,
        outcome.scale if outcome.scale.columns else None,
    )
    over = f"0 to {span(scenario.until)}"
    table = new_table("Share of the cluster over time", "tenant", over, "mean", "most")
    table.columns[0].justify = table.columns[1].justify = "left"
    table.columns[1].no_wrap = True
    for name in tree.in_order():
        row = shares.get(name, [0.0] * steps)
        mean = percent(sum(row) / steps)
        line = Text(sparkline(row), style="cyan")
        table.add_row("  " * tree.depth(name) + name, line, mean, percent(max(row)))
    table.caption = f"The highest bar is the whole cluster, {NOTHING} is nothing."
    table.caption_justify = "left"
    return table


def _waits(by_tenant: Mapping[TenantName, Waits]) -> Table | None:
    if not by_tenant:
        return None
    table = new_table(
        "Waits", "tenant", "workloads", "mean", "median", "95 %", "longest", left=("tenant",)
    )
    for name, waits in by_tenant.items():
        times = (waits.mean, waits.p50, waits.p95, waits.max)
        table.add_row(name, str(waits.jobs), *(span(round(1000 * each)) for each in times))
    return table


def _figures(outcome: Outcome) -> Table:
    """Every measure, and in a line what it means."""
    measures = outcome.measures
    table = new_table("Measures", "measure", "value", "what it means", left=("measure",))
    table.columns[2].justify = "left"
    starved = " / ".join(f"{measures.starved_users[least]}" for least in ("1h", "4h", "12h"))
    waits, gangs = measures.wait_seconds, measures.large_gang_wait_seconds
    rows = [
        ("Jain's index", f"{measures.jain:.3f}", "1: weighted shares are equal; 1/n: one has all"),
        (
            "fairness error",
            f"{measures.fairness_error:.2f}",
            "devices owed and asked for, not got, on average",
        ),
        (
            "drift over bound",
            f"{outcome.drift:.3f}",
            f"most of {count(outcome.drift_pairs, 'pair')} compared; at most 1 is promised",
        ),
        ("users starved", starved, "had work waiting and held nothing for 1 h / 4 h / 12 h"),
        ("mean wait", span(round(1000 * waits.mean)), "of everything submitted"),
        ("longest wait", span(round(1000 * waits.max)), "what still waits counts so far"),
        ("large gangs", span(round(1000 * gangs.mean)), "mean wait of gangs of 16 devices or more"),
        ("evicted", f"{measures.evicted_device_seconds / 3600:,.2f}", "device-hours run in vain"),
        (
            "decisions",
            str(outcome.decisions),
            f"out of {count(outcome.events, 'event')} heard",
        ),
    ]
    for resource, part in measures.utilisation.items():
        rows.insert(3, (f"{short(resource)} in use", percent(part), "of the capacity, on average"))
    for row in rows:
        table.add_row(*row)
    return table
