"""Report of one run, as JSON or as text tables."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from rich.console import Console
from rich.table import Table

from loadtest.figures import Compared, Measure, Series


@dataclass(frozen=True, slots=True)
class Report:
    """One run: its measures, machine, versions and command."""

    command: str
    machine: Mapping[str, str]
    versions: Mapping[str, str]
    measures: tuple[Measure, ...]
    seconds: float

    def as_json(self) -> dict[str, Any]:
        """Return the stable form of `--output json`."""
        return {
            "command": self.command,
            "machine": dict(self.machine),
            "versions": dict(self.versions),
            "measures": [measure.as_json() for measure in self.measures],
            "seconds": round(self.seconds, 1),
        }


def show(console: Console, report: Report) -> None:
    """Print a report as tables."""
    for measure in report.measures:
        console.print(_table(measure))
        for sentence in measure.how:
            console.print(sentence, style="dim", highlight=False)
        console.print()
    for title, facts in (("Machine", report.machine), ("Versions", report.versions)):
        told = ", ".join(f"{name} {value}" for name, value in facts.items())
        console.print(f"{title}: {told}", highlight=False)
    console.print(f"Command: {report.command} ({report.seconds:.0f} s)", highlight=False)


def _table(measure: Measure) -> Table:
    table = Table(title=measure.title, title_justify="left")
    table.add_column("")
    table.add_column("median", justify="right")
    table.add_column("lowest to highest", justify="right")
    table.add_column("target", justify="right")
    for figure in measure.figures:
        table.add_row(*_cells(figure), "")
    table.add_section()
    for compared in measure.ratios:
        table.add_row(*_cells(compared.series), _verdict(compared))
    return table


def _cells(series: Series) -> tuple[str, str, str]:
    low, high = series.spread
    unit = f" {series.unit}" if series.unit else ""
    return (
        series.title,
        number(series.median) + unit,
        f"{number(low)} to {number(high)}",
    )


def _verdict(compared: Compared) -> str:
    if compared.target is None:
        return ""
    met = "[green]met[/green]" if compared.is_met else "[red]missed[/red]"
    return f"{compared.target} {met}"


def number(value: float) -> str:
    """Format a figure with up to three significant digits."""
    if value >= 100:
        return f"{value:.0f}"
    return f"{value:.1f}" if value >= 10 else f"{value:.2f}"
