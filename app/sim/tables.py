"""A simulation as a person likes to read it: tables, bars, and what each figure means."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import groupby

from rich.console import Console
from rich.table import Table
from rich.text import Text

from app.core.model import Amounts, Resource, TenantName
from app.sim.outcome import Account, Family, Outcome
from app.sim.report import named_nodes, plain, spent_seconds
from app.sim.sparkline import NOTHING, shares_over_time, sparkline
from app.sim.waits import Waits
from app.sim.work import Moment

MOST_ROWS, MOST_NODES = 20, 4
"""Of releases and evictions, and of nodes in one of them; the JSON has them all."""

WIDEST_BAR, NARROWEST_BAR = 60, 10
BESIDE_BAR = 24
"""Columns that the figures beside a bar take."""

MEMORY, GIB = "memory", 1024**3


def print_outcome(outcome: Outcome, console: Console) -> None:
    """Print everything a simulation came to."""
    console.print(_headline(outcome), highlight=False, soft_wrap=True)
    if not outcome.scenario.works:
        console.print("Nothing was submitted: workloads is empty.", highlight=False)
    parts: list[Table | Text | None] = [
        _holders(outcome),
        _bars(outcome, console.width),
        _waits(outcome.measures.waits_by_tenant),
        _releases(outcome),
        _evictions(outcome),
        _figures(outcome),
    ]
    for part in parts:
        if part is not None:
            console.print()
            console.print(part)


def span(millis: int) -> str:
    """Return a length of time in one or two units, such as 1 h 30 min."""
    if millis < 0:
        return f"-{span(-millis)}"
    if millis < 60_000:
        return f"{millis / 1000:g} s"
    units = ((86_400_000, "d"), (3_600_000, "h"), (60_000, "min"), (1_000, "s"))
    at = next(i for i, (size, _) in enumerate(units) if millis >= size)
    (large, name), (small, next_name) = units[at], units[at + 1]
    rest = millis % large // small
    return f"{millis // large} {name}" + (f" {rest} {next_name}" if rest else "")


def short(resource: str) -> str:
    """Return a resource by its last name: nvidia.com/gpu is gpu."""
    return resource.rpartition("/")[2]


def _headline(outcome: Outcome) -> str:
    scenario = outcome.scenario
    capacity = _amounts(scenario.capacity)
    return (
        f"{scenario.name}: {span(scenario.until)} on {capacity}; "
        f"{_count(len(outcome.releases), 'release')}, {_count(len(outcome.evictions), 'eviction')}"
    )


def _table(title: str, *columns: str, left: Iterable[str] = ()) -> Table:
    table = Table(title=title, title_justify="left", title_style="bold", box=None, pad_edge=False)
    for column in columns:
        table.add_column(
            column,
            justify="left" if column in left else "right",
            header_style="dim",
            overflow="fold",
        )
    return table


def _holders(outcome: Outcome) -> Table:
    """Who holds what at the end: every tenant, below it its users."""
    resources = list(outcome.scenario.capacity)
    columns = [each for r in resources for each in (f"{_unit(r)}\nused", f"{_unit(r)}-h\ncharged")]
    table = _table("At the end", "tenant, user", "weight", "share", *columns, "pods\npending")
    table.columns[0].justify = "left"
    for name in Family(each.tenant for each in outcome.tenants.values()).in_order():
        each = outcome.tenants[name]
        indent = "  " * each.depth
        weight = f"{float(each.tenant.weight):g}"
        share = _percent(float(each.share))
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
            f"{_large(r, used.get(r, 0)):,g}",
            f"{_large(r, charged.get(r, 0)) / 3600:,.1f}",
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
        scenario.cluster.offers,
        {pool.name: pool.weights for pool in scenario.cluster.pools},
        scenario.until,
        steps,
        tree.path,
    )
    over = f"0 to {span(scenario.until)}"
    table = _table("Share of the cluster over time", "tenant", over, "mean", "most")
    table.columns[0].justify = table.columns[1].justify = "left"
    table.columns[1].no_wrap = True
    for name in tree.in_order():
        row = shares.get(name, [0.0] * steps)
        mean = _percent(sum(row) / steps)
        line = Text(sparkline(row), style="cyan")
        table.add_row("  " * tree.depth(name) + name, line, mean, _percent(max(row)))
    table.caption = f"The highest bar is the whole cluster, {NOTHING} is nothing."
    table.caption_justify = "left"
    return table


def _waits(by_tenant: Mapping[TenantName, Waits]) -> Table | None:
    if not by_tenant:
        return None
    table = _table(
        "Waits", "tenant", "workloads", "mean", "median", "95 %", "longest", left=("tenant",)
    )
    for name, waits in by_tenant.items():
        times = (waits.mean, waits.p50, waits.p95, waits.max)
        table.add_row(name, str(waits.jobs), *(span(round(1000 * each)) for each in times))
    return table


def _releases(outcome: Outcome) -> Table | Text:
    """What was released when; copies that were released together share a line."""
    if not outcome.releases:
        return Text("Nothing was released.")
    rows = [list(run) for _, run in groupby(outcome.releases, _kind)]
    columns = ("at", "workload", "tenant", "user", "pool", "nodes")
    table = _table("Releases" + _only_first(len(rows)), *columns, left=columns[1:])
    for row in rows[:MOST_ROWS]:
        first, last = row[0], row[-1]
        what = first.work.name
        if len(row) > 1:
            what += f" to {last.work.name} ({len(row):,})"
        nodes = list(dict.fromkeys(node for m in row for node in named_nodes(outcome, m)))
        where = " ".join(nodes[:MOST_NODES]) + (" ..." if len(nodes) > MOST_NODES else "")
        work = first.work
        table.add_row(span(first.at), what, work.tenant, work.user, first.pool, where or "any")
    return table


def _kind(moment: Moment) -> tuple[object, ...]:
    work = moment.work
    return moment.at, work.name.rpartition("-")[0], work.tenant, work.user, moment.pool


def _evictions(outcome: Outcome) -> Table | None:
    evictions = outcome.evictions
    if not evictions:
        return None
    title = "Evictions" + _only_first(len(evictions))
    columns = ("at", "workload", "tenant", "made room for", "of tenant", "reason")
    table = _table(title, *columns, left=columns[1:])
    for moment in evictions[:MOST_ROWS]:
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


def _figures(outcome: Outcome) -> Table:
    """Every measure, and in a line what it means."""
    measures = outcome.measures
    table = _table("Measures", "measure", "value", "what it means", left=("measure",))
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
            f"most of {_count(outcome.drift_pairs, 'pair')} compared; at most 1 is promised",
        ),
        ("users starved", starved, "had work waiting and held nothing for 1 h / 4 h / 12 h"),
        ("mean wait", span(round(1000 * waits.mean)), "of everything submitted"),
        ("longest wait", span(round(1000 * waits.max)), "what still waits counts so far"),
        ("large gangs", span(round(1000 * gangs.mean)), "mean wait of gangs of 16 devices or more"),
        ("evicted", _device_hours(measures.evicted_device_seconds), "device-hours run in vain"),
        (
            "decisions",
            str(outcome.decisions),
            f"out of {_count(outcome.events, 'event')} heard",
        ),
    ]
    for resource, part in measures.utilisation.items():
        rows.insert(3, (f"{short(resource)} in use", _percent(part), "of the capacity, on average"))
    for row in rows:
        table.add_row(*row)
    return table


def _percent(part: float) -> str:
    return f"{100 * part:.1f}\N{NO-BREAK SPACE}%"


def _amounts(amounts: Amounts) -> str:
    return ", ".join(f"{_large(r, value):,g} {_unit(r)}" for r, value in plain(amounts).items())


def _large(resource: str, value: float) -> float:
    """Memory is shown in GiB, though it is counted in bytes."""
    return value / GIB if resource == MEMORY else value


def _unit(resource: str) -> str:
    return "GiB" if resource == MEMORY else short(resource)


def _device_hours(device_seconds: float) -> str:
    return f"{device_seconds / 3600:,.2f}"


def _only_first(total: int) -> str:
    return f", the first {MOST_ROWS} of {total:,}" if total > MOST_ROWS else ""


def _count(number: int, what: str) -> str:
    return f"{number:,} {what}{'' if number == 1 else 's'}"
