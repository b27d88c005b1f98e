"""Arguments of `fairgate check`. The implementation is in commands/check."""

from __future__ import annotations

from typing import Annotated

import typer

from app.config.settings import MANAGED
from app.core.errors import InvalidInput
from app.terminal.help import examples
from app.terminal.options import Kubeconfig, Output, with_groups

EXAMPLES = examples(
    "fairgate check",
    "fairgate check --wait 120",
    "helm test fairgate -n fairgate-system  # runs it in the cluster",
)


@with_groups
def check(
    namespace: Annotated[
        str,
        typer.Option(
            "--namespace", "-n", envvar="FAIRGATE_NAMESPACE", help="The namespace of Fairgate."
        ),
    ] = "fairgate-system",
    managed: Annotated[
        str,
        typer.Option(
            "--managed-resources",
            envvar="FAIRGATE_MANAGED_RESOURCES",
            help="The managed resources; a pod of the first is tried.",
        ),
    ] = ",".join(MANAGED),
    wait: Annotated[
        float, typer.Option(min=0, help="Seconds until a check that fails counts as failed.")
    ] = 30.0,
    *,
    output: Output,
    connection: Kubeconfig,
) -> None:
    """Test an installation: its objects exist, pods are held, changes refused, a controller leads.

    Pods are created as dry runs, except one held pod in the namespace fairgate-canary. In mode
    Observe only the leader is tested. A check is skipped if its result would only show the rights
    of the caller. Exits with code 1 if a check fails, or if all are skipped. Needs permission to
    create pods in fairgate-canary, and to read Lease, ConfigMap, Policy, webhook configurations and
    admission policies of Fairgate.
    """
    from app.commands.check import command

    resources = tuple(filter(None, map(str.strip, managed.split(","))))
    if not resources:
        raise InvalidInput("--managed-resources is empty; name at least one resource.")
    command.run(command.CheckOptions(connection, namespace, resources, wait, output))
