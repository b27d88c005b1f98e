"""What happened in a simulation and who still waits, line by line, for a person to read.

Copies of one workload to which the same happened share a line.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import groupby

from rich.table import Table
from rich.text import Text

from app.sim.outcome import Outcome, Waiting
from app.sim.report import named_nodes
from app.sim.wording import count, new_table, span
from app.sim.work import Moment, Work

MOST_ROWS, MOST_NODES = 20, 4
"""Lines of a table, and nodes in one of them; the JSON has them all."""


def releases(outcome: Outcome) -> Table | Text:
    """Return what was released when."""
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


def evictions(outcome: Outcome) -> Table | None:
    """Return what was evicted when, and for whom; None if nothing was."""
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


def still_waiting(outcome: Outcome) -> Table | None:
    """Return what waits at the end, since when and why; None if nothing does."""
    if not outcome.waiting:
        return None
    alike: dict[object, list[Waiting]] = {}
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


def _released_alike(moment: Moment) -> tuple[object, ...]:
    return moment.at, _kind(moment.work), moment.pool


def _kind(work: Work) -> tuple[object, ...]:
    return work.name.rpartition("-")[0], work.tenant, work.user


def _names(works: Sequence[Work]) -> str:
    first, last = works[0].name, works[-1].name
    return first if len(works) == 1 else f"{first} to {last} ({len(works):,})"


def _places(row: Iterable[Waiting]) -> str:
    """Return the places in the own queue; nothing for what is not queued."""
    places = [each.why.position for each in row if each.why.length]
    if not places:
        return ""
    return _range(f"{min(places):,}", f"{max(places):,}")


def _range(first: str, last: str) -> str:
    return first if first == last else f"{first} to {last}"


def _only_first(lines: int) -> str:
    return f", the first {MOST_ROWS} of {lines:,} lines" if lines > MOST_ROWS else ""
