"""Tables that fit the terminal without a break inside a word.

If a table is too wide, long names are shortened in their middle and texts continue on the next
line. If that does not suffice, the least important columns are left out, and a line names them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderResult
from rich.table import Table
from rich.text import Text

SHORTEST = 12
"""Shorter names are never shortened."""

LEAST_TEXT = 20
"""Texts have at least this width: a narrower column of words is hard to read."""


class TableConsole(Console):
    """A console that prints tables with or without the heads of their columns."""

    def __init__(self, *, has_heads: bool = True, **settings: Any) -> None:
        super().__init__(**settings)
        self.has_heads = has_heads


@dataclass(frozen=True, slots=True)
class Column:
    """A column. `right`: numbers. `short`: its names may be shortened. `wraps`: texts of words.

    `drop`: the column with the highest number is left out first; 0 means never.
    """

    head: str
    right: bool = False
    short: bool = False
    wraps: bool = False
    drop: int = 0
    dim: bool = False


class FittedTable:
    """A renderable table. `whole`: show all columns in full, in long lines."""

    def __init__(
        self,
        columns: Sequence[Column],
        rows: Sequence[Sequence[str]],
        *,
        whole: bool = False,
        gap: int = 2,
    ) -> None:
        """`gap`: spaces between two columns."""
        used = [i for i, column in enumerate(columns) if column.head or any(row[i] for row in rows)]
        self.columns = [columns[i] for i in used]
        self.rows = [[row[i] for i in used] for row in rows]
        self._whole = whole
        self._gap = gap

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Yield the table, and the names of the columns that are left out."""
        kept, widths = self._fit(options.max_width)
        yield self._table(kept, widths, has_heads=getattr(console, "has_heads", True))
        left_out = [each.head for i, each in enumerate(self.columns) if i not in kept]
        if left_out:
            names = ", ".join(left_out)
            yield Text(f"Left out: {names}; -o wide shows all columns.", style="dim")

    def _fit(self, width: int) -> tuple[list[int], dict[int, int]]:
        """Return the columns to show, and their widths."""
        natural = {i: self._width(i) for i in range(len(self.columns))}
        kept = list(natural)
        if self._whole:
            return kept, natural
        while True:
            widths = {i: natural[i] for i in kept}
            over = self._sum(widths) - width
            if self._narrow(widths, over):
                return kept, widths
            least = max(kept, key=lambda i: self.columns[i].drop)
            if not self.columns[least].drop:
                return kept, widths  # longer than the terminal, which then wraps the lines itself
            kept.remove(least)

    def _narrow(self, widths: dict[int, int], over: int) -> bool:
        """Take `over` from the columns that can be narrower. Return whether it sufficed."""
        least = {i: self._least(i) for i in widths}
        while over > 0:
            widest = max(widths, key=lambda i: (widths[i] > least[i], widths[i]))
            if widths[widest] <= least[widest]:
                return False
            widths[widest] -= 1
            over -= 1
        return True

    def _sum(self, widths: dict[int, int]) -> int:
        return sum(widths.values()) + self._gap * (len(widths) - 1)

    def _cells(self, i: int) -> Iterator[str]:
        return (row[i] for row in self.rows)

    def _width(self, i: int) -> int:
        return max(map(cell_len, (self.columns[i].head, *self._cells(i))))

    def _least(self, i: int) -> int:
        column = self.columns[i]
        words = column.head.split()
        if column.short:
            words += [
                each if cell_len(each) < SHORTEST else " " * SHORTEST for each in self._cells(i)
            ]
        elif column.wraps:
            words += [word for cell in self._cells(i) for word in cell.split()]
            words.append("x" * min(LEAST_TEXT, self._width(i)))
        else:
            words += self._cells(i)
        return max(map(cell_len, words), default=0)

    def _table(self, kept: Sequence[int], widths: dict[int, int], *, has_heads: bool) -> Table:
        table = Table(
            box=None,
            pad_edge=False,
            header_style="bold",
            padding=(0, self._gap, 0, 0),
            show_header=has_heads and any(each.head for each in self.columns),
            width=self._sum(widths),
        )
        for i in kept:
            column = self.columns[i]
            table.add_column(
                column.head,
                justify="right" if column.right else "left",
                style="dim" if column.dim else "",
                width=widths[i],
            )
        for row in self.rows:
            table.add_row(*(Text(self._shown(i, row[i], widths[i])) for i in kept))
        return table

    def _shown(self, i: int, text: str, width: int) -> str:
        return shorten(text, width) if self.columns[i].short else text


def shorten(text: str, width: int) -> str:
    """Return a name. An ellipsis replaces the middle of a name that is longer than `width`."""
    if cell_len(text) <= width:
        return text
    end = (width - 1) // 2
    return f"{text[: width - 1 - end]}…{text[len(text) - end :]}"
