"""CSV rows with their file and line, so that every error names the place and the remedy.

Files may be gzipped. Numbers are exact: no value passes through a float.
"""

from __future__ import annotations

import csv
import gzip
import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from zlib import error as BrokenGzip

from app.core.errors import InvalidInput, InvalidQuantity
from app.core.quantities import parse_quantity

LARGEST = 10**12
"""Largest number in a cell. Seconds since 1970, and each real amount, are far below it."""


@dataclass(frozen=True, slots=True)
class CsvRow:
    """One line of a file. An empty cell is a missing value."""

    origin: str
    cells: Mapping[str, str]

    def text(self, column: str) -> str:
        """Return a cell; empty string if the file has no such column."""
        return self.cells.get(column, "")

    def required_text(self, column: str) -> str:
        """Return a cell that must not be empty. Raises InvalidInput."""
        return self.text(column) or self._raise_invalid(column, "is empty", "write a value")

    def number(self, column: str, default: int | None = None) -> Fraction:
        """Return a cell as a number from 0 to `LARGEST`. Raises InvalidInput."""
        written = self.text(column)
        if not written:
            if default is None:
                self._raise_invalid(column, "is empty", "use a number of 0 or more")
            return Fraction(default or 0)
        try:
            value = parse_quantity(written)
        except InvalidQuantity:
            value = Fraction(-1)
        if value < 0:
            self._raise_invalid(
                column, f"{written[:40]!r} is not valid", "use a number of 0 or more"
            )
        self._refuse_large(column, value, LARGEST)
        return value

    def scaled_number(self, column: str, scale: int, default: int | None = None) -> int:
        """Return a number times `scale`, rounded up. Raises InvalidInput."""
        return math.ceil(self.number(column, default) * scale)

    def whole_number(
        self, column: str, least: int, default: int | None = None, most: int = LARGEST
    ) -> int:
        """Return a cell as a whole number from `least` to `most`. Raises InvalidInput."""
        value = self.number(column, default)
        if value.denominator != 1 or value < least:
            shown = repr(self.text(column)[:40])
            self._raise_invalid(
                column, f"{shown} is not valid", f"use a whole number from {least} up"
            )
        self._refuse_large(column, value, most)
        return int(value)

    def signed_number(self, column: str) -> int:
        """Return a cell as a whole number from -`LARGEST` to `LARGEST`. Raises InvalidInput."""
        written = self.text(column)
        try:
            value = parse_quantity(written)
        except InvalidQuantity:
            value = Fraction(1, 2)
        if value.denominator != 1:
            self._raise_invalid(column, f"{written[:40]!r} is not valid", "use a whole number")
        self._refuse_large(column, abs(value), LARGEST)
        return int(value)

    def _refuse_large(self, column: str, value: Fraction, most: int) -> None:
        if value > most:
            shown = repr(self.text(column)[:40])
            self._raise_invalid(column, f"{shown} is too large", f"use {most} at most")

    def _raise_invalid(self, column: str, problem: str, remedy: str) -> str:
        raise InvalidInput(f"{self.origin}: {column}: {problem}; {remedy}.")


def read_rows(path: Path, columns: Collection[str], header: Sequence[str] = ()) -> Iterator[CsvRow]:
    """Yield the rows of a CSV file that has at least these columns. Raises InvalidInput.

    `header` names the columns of a file whose first line does not.
    """
    try:
        with gzip.open(path, "rb") if path.suffix == ".gz" else path.open("rb") as file:
            lines = file.read().decode("utf-8-sig").splitlines()
    except (gzip.BadGzipFile, EOFError, BrokenGzip) as error:
        raise InvalidInput(f"{path} is not a whole gzip file; fetch it again.") from error
    except OSError as error:
        raise InvalidInput(f"{path} cannot be read: {error.strerror}; check the path.") from error
    except UnicodeDecodeError as error:
        raise InvalidInput(f"{path} is not text; give a CSV file, or one ending in .gz.") from error
    if header and not (lines and lines[0].startswith(header[0])):
        lines.insert(0, ",".join(header))
    reader = csv.reader(lines, strict=True)
    try:
        yield from _rows(path, reader, columns)
    except csv.Error as error:
        raise InvalidInput(
            f"{path}:{reader.line_num}: this is not CSV ({error}); mend that line."
        ) from error


def _rows(path: Path, reader: Iterator[list[str]], columns: Collection[str]) -> Iterator[CsvRow]:
    header = [name.strip() for name in next(reader, [])]
    missing = [name for name in columns if name not in header]
    if missing:
        raise InvalidInput(
            f"{path}:1: the column {missing[0]} is missing; the first line must name the columns "
            f"{', '.join(columns)}."
        )
    for number, cells in enumerate(reader, 2):
        if not any(cells):
            continue
        if len(cells) != len(header):
            raise InvalidInput(
                f"{path}:{number}: {len(cells)} values for {len(header)} columns; mend that line."
            )
        yield CsvRow(f"{path}:{number}", dict(zip(header, map(str.strip, cells), strict=True)))
