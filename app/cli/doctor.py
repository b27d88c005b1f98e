"""Arguments of `fairgate doctor`. The implementation is in commands/doctor."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from app.terminal.help import examples
from app.terminal.options import NO_HEADERS, Kubeconfig, OptionGroup, option, with_groups
from app.terminal.output import FORMATS_HELP, OutputFormat, OutputOptions

EXAMPLES = examples(
    "fairgate doctor",
    "fairgate doctor --context prod --write values.yaml",
    "fairgate doctor --values values.yaml",
    "fairgate doctor --output json | jq '.findings[] | select(.level == \"problem\")'",
)


class DoctorFormat(StrEnum):
    """The output formats of lists, and the values of the chart."""

    TABLE = "table"
    WIDE = "wide"
    JSON = "json"
    YAML = "yaml"
    CSV = "csv"
    NAME = "name"
    VALUES = "values"


def _output(form: DoctorFormat, no_headers: bool) -> OutputOptions | None:
    """Return None for the values of the chart."""
    if form is DoctorFormat.VALUES:
        return None
    return OutputOptions(OutputFormat(form.value), no_headers)


_FORMAT = option(
    "form",
    DoctorFormat,
    "--output",
    "-o",
    default=DoctorFormat.TABLE,
    metavar="FORMAT",
    help=f"{FORMATS_HELP} values prints values of the chart.",
)
DoctorOutput = Annotated[OutputOptions | None, OptionGroup(_output, (_FORMAT, NO_HEADERS))]


@with_groups
def doctor(
    namespace: Annotated[
        str, typer.Option("--namespace", "-n", help="The namespace of Fairgate.")
    ] = "fairgate-system",
    values: Annotated[
        Path | None,
        typer.Option(
            "--values",
            "-f",
            metavar="FILE",
            help="Judge the cluster by this values file of the chart. "
            "(default: the installed settings, or the chart's defaults)",
            show_default=False,
        ),
    ] = None,
    redis_url: Annotated[
        str,
        typer.Option(
            envvar="FAIRGATE_REDIS_URL",
            help="Also check this Redis, and write it into the values.",
            show_default=False,
            show_envvar=False,
        ),
    ] = "",
    image: Annotated[
        str,
        typer.Option(
            metavar="REPOSITORY[:TAG][@DIGEST]",
            help="Image of Fairgate, for the values.",
            show_default=False,
        ),
    ] = "",
    write: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Write values of the chart that fit the cluster to this new file.",
            show_default=False,
        ),
    ] = None,
    *,
    output: DoctorOutput,
    connection: Kubeconfig,
) -> None:
    """Check whether a cluster is ready for Fairgate, and print values of the chart that fit it.

    It works before and after the installation, and only reads. Each finding is one line with its
    level: ok, warning or problem. A right that the caller lacks is a problem that names the right.
    Exit codes: 0 no problem, 1 a problem, 2 wrong arguments, 3 the cluster cannot be reached.
    """
    from app.commands.doctor import command

    command.run(
        command.DoctorOptions(connection, namespace, values, redis_url, image, write, output)
    )
