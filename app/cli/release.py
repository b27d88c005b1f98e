"""Arguments of `fairgate release`. The implementation is in commands/release."""

from __future__ import annotations

from typing import Annotated

import typer

from app.terminal.help import examples
from app.terminal.options import Kubeconfig, ReportOutput, with_groups

EXAMPLES = examples(
    "fairgate release train-0 -n team-a",
    "fairgate release --all  # before helm uninstall fairgate",
)


@with_groups
def release(
    pod: Annotated[
        str | None,
        typer.Argument(metavar="POD", help="The held pod: NAME or pod/NAME.", show_default=False),
    ] = None,
    everything: Annotated[
        bool,
        typer.Option(
            "--all", help="Every held pod of the cluster, and hold none from now on (Observe)."
        ),
    ] = False,
    namespace: Annotated[
        str | None,
        typer.Option(
            "--namespace",
            "-n",
            help="Namespace of the pod. (default: that of the kubeconfig)",
            show_default=False,
        ),
    ] = None,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask first.")] = False,
    *,
    output: ReportOutput,
    connection: Kubeconfig,
) -> None:
    """Break glass: remove Fairgate's gate from a held pod, or from all held pods, out of order.

    Needs the verb "release" on podgates.fairgate.io: ClusterRole fairgate-operator. The API
    server's audit log names the user. It cannot be undone. Gates of other controllers stay. The pod
    counts as used from then on.
    """
    from app.commands.release import command, console
    from app.kubectl import arguments

    pod = arguments.pod(pod) if pod is not None else None
    command.run(console.ReleaseOptions(pod, everything, namespace, connection, yes, output))
