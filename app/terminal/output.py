"""The output formats of both programs: -o table, wide, json, yaml, csv and name."""

from __future__ import annotations

import csv
import io
import json
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any

from app.core.errors import InvalidInput
from app.core.safe_text import csv_cell, escape_hidden, escape_hidden_in_json

Item = Mapping[str, Any]

FORMATS_HELP = (
    "table, wide, json, yaml, csv or name. wide shows every column in full. json, yaml and csv are "
    "stable. name prints KIND/NAME."
)
REPORT_FORMATS_HELP = (
    "table, wide, json or yaml. wide shows every column in full. json and yaml are stable."
)


class OutputFormat(str, Enum):
    """Values of `--output`."""

    TABLE = "table"
    WIDE = "wide"
    JSON = "json"
    YAML = "yaml"
    CSV = "csv"
    NAME = "name"


class ReportFormat(str, Enum):
    """Values of `--output` for a report. It is one object, so it has no format of lists."""

    TABLE = "table"
    WIDE = "wide"
    JSON = "json"
    YAML = "yaml"


DATA = (OutputFormat.JSON, OutputFormat.YAML, OutputFormat.CSV, OutputFormat.NAME)
"""Formats for programs."""


@dataclass(frozen=True, slots=True)
class OutputOptions:
    """Output settings: the format, without heads of columns, and whether to watch for changes."""

    form: OutputFormat = OutputFormat.TABLE
    no_headers: bool = False
    watch: bool = False

    @property
    def wide(self) -> bool:
        """Return whether the table has all columns."""
        return self.form is OutputFormat.WIDE

    @property
    def is_data(self) -> bool:
        """Return whether the output is for programs."""
        return self.form in DATA


@dataclass(frozen=True, slots=True)
class Listing:
    """The list in a result: its items, which are rows of CSV, and the name of an item.

    `no_name`: the reason why items have no name, for the error message.
    """

    items: Callable[[Any], Sequence[Item]]
    name: Callable[[Item], str] = lambda item: ""
    no_name: str = ""


def as_text(output: OutputOptions, found: Any, listing: Listing | None = None) -> str:
    """Return a result as JSON, YAML, CSV or names. Raises InvalidInput if it has no such format.

    JSON and YAML have the values unchanged; hidden characters are escaped.
    """
    form = output.form
    if listing is None:
        need_object_format(form)
    elif form in (OutputFormat.CSV, OutputFormat.NAME):
        items = listing.items(escape_hidden_in_json(found))
        if form == OutputFormat.NAME:
            return _names(listing, items)
        return as_csv(items, has_heads=not output.no_headers)
    is_plain = escape_hidden_in_json(found) == found
    if form == OutputFormat.JSON:
        return json.dumps(found, indent=2, ensure_ascii=not is_plain)
    from app.terminal.yaml_text import dump_yaml

    return dump_yaml([found], allow_unicode=is_plain).rstrip("\n")


def need_object_format(form: OutputFormat) -> None:
    """Raise InvalidInput for the formats of lists, if a result is one object."""
    if form in (OutputFormat.CSV, OutputFormat.NAME):
        raise InvalidInput(
            f"-o {form.value} prints lists, and this result is one object; use -o json."
        )


def as_csv(items: Sequence[Item], *, has_heads: bool = True) -> str:
    """Return items as CSV (RFC 4180). The header has their keys; lists and objects are JSON.

    A text that a spreadsheet could take for a formula begins with a single quote.
    """
    text = io.StringIO()
    rows = csv.writer(text)
    columns = list(dict.fromkeys(key for each in items for key in each))
    if has_heads:
        rows.writerow(columns)
    rows.writerows([_cell(each.get(key)) for key in columns] for each in items)
    return text.getvalue().removesuffix("\r\n")


def _names(listing: Listing, items: Sequence[Item]) -> str:
    if listing.no_name:
        raise InvalidInput(f"-o name is not possible: {listing.no_name}; use -o csv or -o json.")
    return "\n".join(dict.fromkeys(map(listing.name, items)))


def _cell(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, str):
        return csv_cell(value)
    return json.dumps(value, separators=(",", ":"))  # digits, or an object: never a formula


def warn(sentence: str) -> None:
    """Print a message that is not the result to standard error, hidden characters escaped."""
    print(f"fairgate: {escape_hidden(sentence)}", file=sys.stderr)
