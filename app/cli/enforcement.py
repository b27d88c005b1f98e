"""Arguments of `fairgate enforcement`. The implementation is in commands/enforcement."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from app.terminal.help import examples
from app.terminal.options import Kubeconfig, with_groups

EXAMPLES = examples("fairgate enforcement --static /etc/kubernetes/fairgate")


@with_groups
def enforcement(
    static: Annotated[
        Path,
        typer.Option(
            "--static",
            metavar="FOLDER",
            file_okay=False,
            help="Write the policies to this folder, for the staticManifestsDir of API servers.",
            show_default=False,
        ),
    ],
    namespace: Annotated[
        str,
        typer.Option(
            "--namespace", "-n", envvar="FAIRGATE_NAMESPACE", help="The namespace of Fairgate."
        ),
    ] = "fairgate-system",
    *,
    connection: Kubeconfig,
) -> None:
    """Write Fairgate's policies as files that no API client can change or delete.

    Needs Kubernetes 1.37, and access to the files of every API server. Reads the installed
    policies: permission to get the ConfigMap fairgate-enforcement. Write the files again after each
    change of the chart.
    """
    from app.commands.enforcement import command

    command.run(command.EnforcementOptions(static, connection, namespace))
