"""Arguments of `fairgate nodes`. The implementation is in commands/nodes."""

from __future__ import annotations

from typing import Annotated

import typer

from app.config.settings import EXEMPT, MANAGED
from app.terminal.help import CommandLine, examples
from app.terminal.options import Kubeconfig, Output, with_groups

RESOURCES, NAMESPACES = ",".join(MANAGED), ",".join(EXEMPT)

nodes_app = CommandLine(
    no_args_is_help=True,
    help="Nodes with GPUs: whether their labels say which, and how they fit the pools.",
)


Managed = Annotated[
    str,
    typer.Option(
        "--managed-resources",
        envvar="FAIRGATE_MANAGED_RESOURCES",
        help="The managed resources.",
    ),
]
Exempt = Annotated[
    str,
    typer.Option(
        "--exempt-namespaces",
        envvar="FAIRGATE_EXEMPT_NAMESPACES",
        help="Namespaces whose pods may be on any node.",
    ),
]


@nodes_app.command(
    epilog=examples(
        "fairgate nodes check",
        "fairgate nodes check --output json | jq '.findings[].node'",
    )
)
@with_groups
def check(
    managed: Managed = RESOURCES,
    exempt: Exempt = NAMESPACES,
    *,
    output: Output,
    connection: Kubeconfig,
) -> None:
    """Find nodes with GPUs that lack a GPU label, or that match no pool or two pools.

    Read-only. Exits with code 1 if there is a finding. Pods without GPUs on nodes with GPUs are
    also counted, but they are no finding. Needs permission to list nodes, and to list pools and
    pods for the complete report.
    """
    from app.commands.nodes import command

    options = command.NodesOptions(connection, managed, exempt, output)
    command.run(options, command.check)


@nodes_app.command(
    epilog=examples(
        "fairgate nodes label --dry-run",
        "fairgate nodes label gpu-7 gpu-8 --product NVIDIA-A100-SXM4-40GB --yes",
    )
)
@with_groups
def label(
    names: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[NODE]...", help="Only these nodes. (default: all)", show_default=False
        ),
    ] = None,
    product: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="GPU product of nodes without data about it.",
            show_default=False,
        ),
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only print the changes.")] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask first.")] = False,
    managed: Managed = RESOURCES,
    *,
    output: Output,
    connection: Kubeconfig,
) -> None:
    """Add the missing label with the GPU product to nodes.

    The product comes from the node's own data: data of its device plugin, or labels of its cloud.
    --product is used otherwise. Existing labels are never replaced, so it is safe to repeat the
    command. Exits with code 1 if a node remains without the label. Needs permission to patch nodes.
    """
    from app.commands.nodes import command

    options = command.NodesOptions(connection, managed, "", output)
    request = command.LabelRequest(tuple(names or ()), product, dry_run, yes)
    command.run(options, lambda survey, options: command.label(survey, options, request))
