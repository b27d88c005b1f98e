"""The arguments of `fairgate release`; what it does is in kube/break_glass."""

from __future__ import annotations

from typing import Annotated

import typer

from app.arguments import Form, Kubeconfig, Output

EXAMPLES = (
    "Examples: [bold]fairgate release train-0 -n team-a[/bold], "
    "[bold]fairgate release --all[/bold], before [bold]helm uninstall fairgate[/bold]"
)


def release(
    pod: Annotated[
        str | None, typer.Argument(metavar="POD", help="The held pod.", show_default=False)
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
            help="Of the pod. [dim]\\[default: that of the kubeconfig][/dim]",
            show_default=False,
        ),
    ] = None,
    kubeconfig: Kubeconfig = None,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask first.")] = False,
    output: Form = Output.TEXT,
) -> None:
    """Break glass: take Fairgate's gate off a held pod, or off all of them, whatever the order.

    It takes the right "release" on podgates.fairgate.io: ClusterRole fairgate-operator.
    The API server's audit log names who did it. It cannot be undone.
    Gates that are not Fairgate's stay. The pod counts as used from then on.
    """
    from app.kube import break_glass, telling

    break_glass.run(telling.Options(pod, everything, namespace, kubeconfig, yes, output.value))
