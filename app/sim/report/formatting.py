"""Formats amounts, times, counts and tables for people."""

from __future__ import annotations

from collections.abc import Iterable

from rich.table import Table

from app.core.model import Amounts
from app.sim.report.json_report import in_request_units

MEMORY, GIB = "memory", 1024**3


def new_table(title: str, *columns: str, left: Iterable[str] = ()) -> Table:
    """Return a table without rows. Columns are right-aligned, except those in `left`."""
    table = Table(title=title, title_justify="left", title_style="bold", box=None, pad_edge=False)
    for column in columns:
        table.add_column(
            column,
            justify="left" if column in left else "right",
            header_style="dim",
            overflow="fold",
        )
    return table


def span(millis: int) -> str:
    """Return a duration in one or two units, such as 1 h 30 min."""
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


def percent(part: float) -> str:
    """Return a part of a whole in percent."""
    return f"{100 * part:.1f}\N{NO-BREAK SPACE}%"


def format_amounts(amounts: Amounts) -> str:
    """Return amounts in base units as one line."""
    return ", ".join(
        f"{in_display_unit(r, value):,g} {unit(r)}"
        for r, value in in_request_units(amounts).items()
    )


def in_display_unit(resource: str, value: float) -> float:
    """Return an amount in its `unit`: memory is counted in bytes and shown in GiB."""
    return value / GIB if resource == MEMORY else value


def unit(resource: str) -> str:
    """Return the unit in which amounts of a resource are shown."""
    return "GiB" if resource == MEMORY else short(resource)


def count(number: int, what: str) -> str:
    """Return a number with its noun, in the plural unless it is 1."""
    return f"{number:,} {what}{'' if number == 1 else 's'}"
