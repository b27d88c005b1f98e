"""The result of a scenario as text: tables, and lists of releases, evictions and waiting work."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby

from rich.console import Console
from rich.table import Table
from rich.text import Text

from app.core.model import Resource, TenantName
from app.sim.cluster.workload import SimulatedWorkload, TimelineEntry
from app.sim.metrics.tenant_tree import TenantTree
from app.sim.metrics.waits import Waits
from app.sim.report.formatting import (
    count,
    format_amounts,
    in_display_unit,
    new_table,
    percent,
    short,
    span,
    unit,
)
from app.sim.report.json_report import in_request_units, named_nodes, spent_seconds
from app.sim.report.sparkline import NOTHING, shares_over_time, sparkline
from app.sim.scenario.result import FinalUsage, ScenarioResult, WaitingAtEnd

MOST_ROWS, MOST_NODES = 20, 4
"""Largest number of lines in a table, and of nodes in a line. The JSON output is complete."""


def releases(outcome: ScenarioResult) -> Table | Text:
    """Return the table of releases, or a sentence if there are no releases."""
    if not outcome.releases:
        return Text("Nothing was released.")
    rows = [list(run) for _, run in groupby(outcome.releases, _released_alike)]
    columns = ("at", "workload", "tenant", "user", "pool", "nodes")
    table = new_table("Releases" + _only_first(len(rows)), *columns, left=columns[1:])
    for row in rows[:MOST_ROWS]:
        work = row[0].work
        nodes = list(dict.fromkeys(node for m in row for node in named_nodes(outcome, m)))
        where = " ".join(nodes[:MOST_NODES]) + (" ..." if len(nodes) > MOST_NODES else "")
        what = _names([moment.work for moment in row])
        table.add_row(span(row[0].at), what, work.tenant, work.user, row[0].pool, where or "any")
    return table


def evictions(outcome: ScenarioResult) -> Table | None:
    """Return the table of evictions and their beneficiaries; None without evictions."""
    found = outcome.evictions
    if not found:
        return None
    columns = ("at", "workload", "tenant", "made room for", "of tenant", "reason")
    table = new_table("Evictions" + _only_first(len(found)), *columns, left=columns[1:])
    for moment in found[:MOST_ROWS]:
        other = moment.beneficiary
        table.add_row(
            span(moment.at),
            moment.work.name,
            moment.work.tenant,
            other.name if other else "",
            other.tenant if other else "",
            moment.cause.value if moment.cause else "",
        )
    return table


def still_waiting(outcome: ScenarioResult) -> Table | None:
    """Return the table of workloads that wait at the end; None if no workload waits."""
    if not outcome.waiting:
        return None
    alike: dict[object, list[WaitingAtEnd]] = {}
    for each in outcome.waiting:
        alike.setdefault((_kind(each.work), each.why.rule), []).append(each)
    rows = list(alike.values())
    title = f"Still waiting: {count(outcome.still_waiting, 'workload')}"
    if len(outcome.waiting) < outcome.still_waiting:
        title += f", of which the first {len(outcome.waiting):,}"
    columns = ("since", "workload", "tenant", "place", "held back by", "in words")
    table = new_table(title + _only_first(len(rows)), *columns, left=columns[1:])
    for row in rows[:MOST_ROWS]:
        first = row[0]
        table.add_row(
            _range(span(row[0].since), span(row[-1].since)),
            _names([each.work for each in row]),
            first.work.tenant,
            _places(row),
            first.why.rule.value,
            first.why.text,
        )
    return table


def _released_alike(moment: TimelineEntry) -> tuple[object, ...]:
    return moment.at, _kind(moment.work), moment.pool


def _kind(work: SimulatedWorkload) -> tuple[object, ...]:
    return work.name.rpartition("-")[0], work.tenant, work.user


def _names(works: Sequence[SimulatedWorkload]) -> str:
    first, last = works[0].name, works[-1].name
    return first if len(works) == 1 else f"{first} to {last} ({len(works):,})"


def _places(row: Iterable[WaitingAtEnd]) -> str:
    """Return the positions in the user's queue; empty string if no workload is queued."""
    places = [each.why.position for each in row if each.why.length]
    if not places:
        return ""
    return _range(f"{min(places):,}", f"{max(places):,}")


def _range(first: str, last: str) -> str:
    return first if first == last else f"{first} to {last}"


def _only_first(lines: int) -> str:
    return f", the first {MOST_ROWS} of {lines:,} lines" if lines > MOST_ROWS else ""


WIDEST_BAR, NARROWEST_BAR = 60, 10
BESIDE_BAR = 24
"""Columns for the figures next to a bar."""


def print_outcome(outcome: ScenarioResult, console: Console) -> None:
    """Print the whole result of a simulation."""
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


def _headline(outcome: ScenarioResult) -> str:
    scenario = outcome.scenario
    capacity = format_amounts(scenario.capacity)
    return (
        f"{scenario.name}: {span(scenario.until)} on {capacity}; "
        f"{count(len(outcome.releases), 'release')}, {count(len(outcome.evictions), 'eviction')}"
    )


def _holders(outcome: ScenarioResult) -> Table:
    """Usage at the end: every tenant, followed by its users."""
    resources = list(outcome.scenario.capacity)
    columns = [each for r in resources for each in (f"{unit(r)}\nused", f"{unit(r)}-h\ncharged")]
    table = new_table("At the end", "tenant, user", "weight", "share", *columns, "pods\npending")
    table.columns[0].justify = "left"
    for name in TenantTree(each.tenant for each in outcome.tenants.values()).parents_first():
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


def _cells(account: FinalUsage, resources: Iterable[Resource]) -> list[str]:
    used, charged = in_request_units(account.used), spent_seconds(account.charged)
    cells = [
        cell
        for r in resources
        for cell in (
            f"{in_display_unit(r, used.get(r, 0)):,g}",
            f"{in_display_unit(r, charged.get(r, 0)) / 3600:,.1f}",
        )
    ]
    return [*cells, f"{account.pending:,}"]


def _bars(outcome: ScenarioResult, width: int) -> Table | None:
    """Share of the cluster of every tenant over time. None if the scenario has no duration."""
    scenario = outcome.scenario
    if not scenario.until:
        return None
    longest = max((len(name) for name in outcome.tenants), default=0)
    tree = TenantTree(scenario.tenants)
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
        tree.lineage,
        outcome.scale if outcome.scale.columns else None,
    )
    over = f"0 to {span(scenario.until)}"
    table = new_table("Share of the cluster over time", "tenant", over, "mean", "most")
    table.columns[0].justify = table.columns[1].justify = "left"
    table.columns[1].no_wrap = True
    for name in tree.parents_first():
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


def _figures(outcome: ScenarioResult) -> Table:
    """Every measure, with an explanation in one line."""
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
        (
            "evicted",
            f"{measures.evicted_device_seconds / 3600:,.2f}",
            "device-hours lost by evictions",
        ),
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
