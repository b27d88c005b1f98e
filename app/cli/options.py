"""Command-line options that several commands share."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer


class Output(StrEnum):
    """Output format of a result."""

    TEXT = "text"
    JSON = "json"


OutputFormatOption = Annotated[
    Output, typer.Option("--output", "-o", help="text, or json which is stable.")
]

Kubeconfig = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE",
        help="Whose credentials are used. (default: KUBECONFIG, ~/.kube/config)",
        show_default=False,
    ),
]
