"""The arguments of `fairgate nodes`; what it does is in kube/nodes."""

from __future__ import annotations

from typing import Annotated

import typer

from app.arguments import Form, Kubeconfig, Output
from app.settings import EXEMPT, MANAGED

RESOURCES, NAMESPACES = ",".join(MANAGED), ",".join(EXEMPT)

nodes_app = typer.Typer(
    no_args_is_help=True,
    help="Nodes with GPUs: whether their labels say which, and how they fit the pools.",
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
)


Managed = Annotated[
    str,
    typer.Option(
        "--managed-resources",
        envvar="FAIRGATE_MANAGED_RESOURCES",
        help="What counts as a GPU, as Fairgate is told.",
    ),
]
Exempt = Annotated[
    str,
    typer.Option(
        "--exempt-namespaces",
        envvar="FAIRGATE_EXEMPT_NAMESPACES",
        help="Whose pods belong wherever they are.",
    ),
]


@nodes_app.command(
    epilog="Examples: [bold]fairgate nodes check[/bold], "
    "[bold]fairgate nodes check --output json | jq '.findings[].node'[/bold]"
)
def check(
    kubeconfig: Kubeconfig = None,
    managed: Managed = RESOURCES,
    exempt: Exempt = NAMESPACES,
    output: Form = Output.TEXT,
) -> None:
    """Find nodes whose labels do not tell what GPUs they have, or which no pool or two select.

    Changes nothing. Exit code 1 if anything is found. Also counts the pods without GPUs that run
    on nodes with GPUs; these are told, and are no finding. It takes the right to list nodes;
    to list pools and pods for the rest.
    """
    from app.kube import nodes

    options = nodes.Options(kubeconfig, managed, exempt, output.value)
    nodes.run(options, nodes.check)


@nodes_app.command(
    epilog="Examples: [bold]fairgate nodes label --dry-run[/bold], "
    "[bold]fairgate nodes label gpu-7 gpu-8 --product NVIDIA-A100-SXM4-40GB --yes[/bold]"
)
def label(
    names: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[NODE]...", help="Only these; all without one.", show_default=False
        ),
    ] = None,
    product: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="What to call the GPUs of nodes that do not tell themselves.",
            show_default=False,
        ),
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only say what would be done.")
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask first.")] = False,
    kubeconfig: Kubeconfig = None,
    managed: Managed = RESOURCES,
    output: Form = Output.TEXT,
) -> None:
    """Label nodes with the product of their GPUs, where the label is missing.

    The product comes from the node's own data: what its device plugin noted, or the labels of
    its cloud; else from --product. A label that is there is never replaced, so doing it twice
    does nothing more. Exit code 1 if a node is left without. It takes the right to patch nodes.
    """
    from app.kube import nodes

    options = nodes.Options(kubeconfig, managed, "", output.value)
    wish = nodes.Wish(tuple(names or ()), product, dry_run, yes)
    nodes.run(options, lambda survey, options: nodes.label(survey, options, wish))
