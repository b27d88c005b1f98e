"""Arguments of `fairgate doctor`. The implementation is in commands/doctor."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from app.cli.options import Kubeconfig, KubeContext
from app.terminal.help import examples
from app.terminal.options import NoHeaders
from app.terminal.output import FORMATS_HELP, Look, OutputFormat

EXAMPLES = examples(
    "fairgate doctor",
    "fairgate doctor --context prod --write values.yaml",
    "fairgate doctor --values values.yaml",
    "fairgate doctor --output json | jq '.findings[] | select(.level == \"problem\")'",
)


class DoctorOutput(StrEnum):
    """The output formats of lists, and the values of the chart."""

    TABLE = "table"
    WIDE = "wide"
    JSON = "json"
    YAML = "yaml"
    CSV = "csv"
    NAME = "name"
    VALUES = "values"


def doctor(
    kubeconfig: Kubeconfig = None,
    context: KubeContext = "",
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
            metavar="REPOSITORY[:TAG]",
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
    output: Annotated[
        DoctorOutput,
        typer.Option(
            "--output",
            "-o",
            metavar="FORMAT",
            help=f"{FORMATS_HELP} values prints values of the chart.",
        ),
    ] = DoctorOutput.TABLE,
    no_headers: NoHeaders = False,
) -> None:
    """Check whether a cluster is ready for Fairgate, and print values of the chart that fit it.

    It works before and after the installation, and only reads. Each finding is one line with its
    level: ok, warning or problem. A right that the caller lacks is a problem that names the right.
    Exit codes: 0 no problem, 1 a problem, 2 wrong arguments, 3 the cluster cannot be reached.
    """
    from app.commands.doctor import command

    look = None
    if output is not DoctorOutput.VALUES:
        look = Look(OutputFormat(output.value), no_headers)
    command.run(
        command.DoctorOptions(kubeconfig, context, namespace, values, redis_url, image, write, look)
    )
