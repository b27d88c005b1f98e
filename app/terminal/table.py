"""Tables that fit the terminal without a break inside a word.

If a table is too wide, long names are shortened in their middle and texts continue on the next
line. If that does not suffice, the least important columns are left out, and a line names them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import zip_longest

from app.terminal.text import Page, Text, cell_len, wrapped

SHORTEST = 12
"""Shorter names are never shortened."""

LEAST_TEXT = 20
"""Texts have at least this width: a narrower column of words is hard to read."""


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
    """A table. `is_full`: show all columns in full, in long lines."""

    def __init__(
        self,
        columns: Sequence[Column],
        rows: Sequence[Sequence[str]],
        *,
        is_full: bool = False,
        gap: int = 2,
    ) -> None:
        """`gap`: spaces between two columns."""
        used = [i for i, column in enumerate(columns) if column.head or any(row[i] for row in rows)]
        self.columns = [columns[i] for i in used]
        self.rows = [[row[i] for i in used] for row in rows]
        self._is_full = is_full
        self._gap = gap

    def lines(self, page: Page) -> Iterator[str]:
        """Yield the table, and the names of the columns that are left out."""
        kept, widths = self._fit(page.width)
        if page.has_heads and any(each.head for each in self.columns):
            yield from self._row(page, widths, {i: self.columns[i].head for i in kept}, "bold")
        for row in self.rows:
            shown = {i: self._cell_text(i, row[i], widths[i]) for i in kept}
            yield from self._row(page, widths, shown)
        left_out = [each.head for i, each in enumerate(self.columns) if i not in kept]
        if left_out:
            names = ", ".join(left_out)
            yield from Text(f"Left out: {names}; -o wide shows all columns.", "dim").lines(page)

    def _row(
        self, page: Page, widths: dict[int, int], texts: dict[int, str], style: str = ""
    ) -> Iterator[str]:
        """Yield the lines of a row. `texts` and `widths`: by column."""
        cells = [wrapped(text, widths[i]) for i, text in texts.items()]
        for parts in zip_longest(*cells, fillvalue=""):
            line = ""
            for i, part in zip(texts, parts, strict=True):
                column, space = self.columns[i], " " * (widths[i] - cell_len(part))
                text = page.styled(part, style or ("dim" if column.dim else ""))
                line += (space + text if column.right else text + space) + " " * self._gap
            yield line.rstrip()

    def _fit(self, width: int) -> tuple[list[int], dict[int, int]]:
        """Return the columns to show, and their widths."""
        natural = {i: self._width(i) for i in range(len(self.columns))}
        kept = list(natural)
        if self._is_full:
            return kept, natural
        while True:
            widths = {i: natural[i] for i in kept}
            over = self._total_width(widths) - width
            if self._narrow(widths, over):
                return kept, widths
            least = max(kept, key=lambda i: self.columns[i].drop)
            if not self.columns[least].drop:
                # Longer than the terminal, which then wraps the lines itself: heads stay whole.
                return kept, {i: max(widths[i], cell_len(self.columns[i].head)) for i in kept}
            kept.remove(least)

    def _narrow(self, widths: dict[int, int], over: int) -> bool:
        """Take `over` from the columns that can be narrower. Return whether it sufficed."""
        least = {i: self._min_width(i) for i in widths}
        while over > 0:
            widest = max(widths, key=lambda i: (widths[i] > least[i], widths[i]))
            if widths[widest] <= least[widest]:
                return False
            widths[widest] -= 1
            over -= 1
        return True

    def _total_width(self, widths: dict[int, int]) -> int:
        return sum(widths.values()) + self._gap * (len(widths) - 1)

    def _cells(self, i: int) -> Iterator[str]:
        return (row[i] for row in self.rows)

    def _width(self, i: int) -> int:
        return max(map(cell_len, (self.columns[i].head, *self._cells(i))))

    def _min_width(self, i: int) -> int:
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

    def _cell_text(self, i: int, text: str, width: int) -> str:
        return shorten(text, width) if self.columns[i].short else text


def shorten(text: str, width: int) -> str:
    """Return a name. An ellipsis replaces the middle of a name that is longer than `width`."""
    if cell_len(text) <= width:
        return text
    end = (width - 1) // 2
    return f"{text[: width - 1 - end]}…{text[len(text) - end :]}"
