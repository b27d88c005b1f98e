"""Command-line options that several commands share."""

from __future__ import annotations

from typing import Annotated

import typer

from app.core.errors import InvalidInput
from app.terminal.output import OutputFormat

ReportFormatOption = Annotated[
    OutputFormat,
    typer.Option("--output", "-o", metavar="FORMAT", help="table, or json, which is stable."),
]


def report_format(output: OutputFormat) -> str:
    """Return `text` or `json`. Raises InvalidInput for the formats of lists."""
    if output not in (OutputFormat.TABLE, OutputFormat.JSON):
        raise InvalidInput(
            f"-o {output.value} prints lists, and this result is a report; use -o table or json."
        )
    return "json" if output is OutputFormat.JSON else "text"
