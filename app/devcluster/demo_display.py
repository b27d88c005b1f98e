"""Display of the demo in a terminal: a live table while it runs, both results at the end."""

from __future__ import annotations

from types import TracebackType

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from app.devcluster.demo import Count, DemoMoment, DemoResult

LINE_SECONDS = 5.0
"""Interval of the lines without a terminal."""

BAR = 32
"""Width of a bar for the whole cluster."""


class Screen:
    """Shows each moment; without a terminal, one line per interval."""

    def __init__(self, console: Console, capacity: int) -> None:
        self._console = console
        self._capacity = capacity
        self._live = Live(console=console, auto_refresh=False, transient=True)
        self._last = -LINE_SECONDS

    def __enter__(self) -> Screen:
        if self._console.is_terminal:
            self._live.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._console.is_terminal:
            self._live.stop()

    def show(self, moment: DemoMoment) -> None:
        """Show one moment."""
        if self._console.is_terminal:
            self._live.update(self._table(moment), refresh=True)
        elif moment.seconds - self._last >= LINE_SECONDS or moment.seconds < self._last:
            self._last = moment.seconds
            self._console.print(
                f"{moment.seconds:5.0f} s  {moment.round}: "
                f"greedy uses {moment.greedy.using} ({moment.greedy.waiting} wait), "
                f"modest uses {moment.modest.using} ({moment.modest.waiting} wait)",
                highlight=False,
            )

    def _table(self, moment: DemoMoment) -> Group:
        table = Table(title=f"{moment.round}, {moment.seconds:.0f} s", title_justify="left")
        for column in ("team", "GPUs in use", "", "waiting", "ended"):
            table.add_column(column, justify="left" if column in ("team", "") else "right")
        for team, count, style in (
            ("greedy", moment.greedy, "red"),
            ("modest", moment.modest, "green"),
        ):
            table.add_row(team, *self._cells(count, style))
        return Group(table, Text(moment.note, style="dim"))

    def _cells(self, count: Count, style: str) -> tuple[str, Text, str, str]:
        full = round(BAR * count.using / self._capacity) if self._capacity else 0
        bar = Text("█" * full, style=style) + Text("░" * (BAR - full), style="dim")
        return str(count.using), bar, str(count.waiting), str(count.ended)


def print_result(console: Console, result: DemoResult, capacity: int) -> None:
    """Print both results side by side."""
    table = Table(title="GPUs in use while both teams had work waiting", title_justify="left")
    table.add_column("team")
    table.add_column("without Fairgate", justify="right")
    table.add_column("with Fairgate", justify="right")
    for team in ("greedy", "modest"):
        table.add_row(team, str(result.without[team]), str(result.fair[team]))
    console.print(table)
    console.print(
        f"Two teams of equal weight, {capacity} GPUs; greedy sent 400 pods of the highest "
        f"priority, modest 60 ordinary ones. {result.seconds:.0f} s.",
        highlight=False,
    )
