"""The `fairgate dev node` commands: arguments and output. Only results go to standard output."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated

import msgspec
import typer
from rich.console import Console
from rich.table import Table

from app.devcluster.node.component_files import POD_LIMIT
from app.devcluster.node.real_node import GPUS, NodeDetails, RealNode
from app.devcluster.progress import ConsoleProgress
from app.devcluster.signals import signals_as_interrupt
from app.terminal.help import CommandLine, examples
from app.terminal.options import ReportOutput, with_groups
from app.terminal.output import OutputOptions, as_text

NOT_UP = 1

FolderOption = Annotated[
    Path | None,
    typer.Option(
        "--dir",
        help="The folder of the node. (default: ~/.local/state/fairgate/node)",
        show_default=False,
    ),
]

node_app = CommandLine(
    no_args_is_help=True,
    help="A real node on this machine (Linux, as root) that runs the image and the chart.",
)


@node_app.command(
    epilog=examples(
        "sudo fairgate dev node up",
        "fairgate dev node up --gpus 4 --output json",
    )
)
@with_groups
def up(
    gpus: Annotated[
        int, typer.Option(min=1, max=1000, help="GPUs that the node offers; none of them exists.")
    ] = GPUS,
    folder: FolderOption = None,
    *,
    output: ReportOutput,
) -> None:
    """Start Kubernetes with one real node; return when the node offers its GPUs.

    The node has containerd, kubelet, kube-proxy, cluster DNS, and a device plugin without devices.
    It has its own network, mounts and processes. A machine can have one node at a time.
    """
    _print_details(RealNode(folder).up(gpus, ConsoleProgress()), output, folder)


@node_app.command(
    epilog=examples(
        "fairgate dev node down",
    )
)
def down(folder: FolderOption = None) -> None:
    """End every process of the node, and remove its mounts, network devices and folder."""
    node = RealNode(folder)
    with signals_as_interrupt(), ConsoleProgress().step("Taking the node down"):
        was_up = node.down()
    typer.echo(
        f"The node in {node.folder} is gone." if was_up else f"There was no node in {node.folder}."
    )


@node_app.command(
    epilog=examples(
        "fairgate dev node status --output json",
    )
)
@with_groups
def status(folder: FolderOption = None, *, output: ReportOutput) -> None:
    """Show addresses, images and processes; exit 1 if no node is up or a process has died."""
    node = RealNode(folder)
    details = node.status()
    if details is None:
        typer.echo(
            f"No node is up in {node.folder}; start one by `fairgate dev node up`.", err=True
        )
        raise typer.Exit(NOT_UP)
    _print_details(details, output, folder)
    if details.dead:
        typer.echo(
            f"Ended by itself: {', '.join(details.dead)}; the logs are in {details.logs}. "
            "`fairgate dev node up` starts a new node.",
            err=True,
        )
        raise typer.Exit(NOT_UP)


@node_app.command(
    epilog=examples(
        "docker save localhost/fairgate:dev -o image.tar && fairgate dev node load image.tar",
    )
)
def load(
    archive: Annotated[Path, typer.Argument(help="An OCI archive, or one of `docker save`.")],
    folder: FolderOption = None,
) -> None:
    """Import an image into the node. Pods then run it by its name, without a registry."""
    with ConsoleProgress().step(f"Loading {archive}"):
        names = RealNode(folder).load(archive)
    for name in names:
        typer.echo(name)


def _print_details(details: NodeDetails, output: OutputOptions, folder: Path | None) -> None:
    if output.is_data:
        typer.echo(as_text(output, msgspec.to_builtins(details)))
        return
    console = Console()
    table = Table.grid(padding=(0, 2))
    rows = {
        "API server": f"KUBECONFIG={details.kubeconfig}",
        "node": f"{details.node}, {details.gpus} nvidia.com/gpu, at most {POD_LIMIT} pods",
        "images": ", ".join(details.images),
        "logs": details.logs,
        **{name: f"pid {pid}" for name, pid in details.pids.items()},
    }
    for name, value in rows.items():
        table.add_row(f"[dim]{name}[/dim]", value)
    console.print(table, soft_wrap=True)
    own = "" if folder is None else f" --dir {shlex.quote(str(folder))}"
    programs = f"{Path(details.kubectl).parent}:{Path(details.helm).parent}"
    console.print("\nTry it:", style="bold")
    for line in (
        f"export KUBECONFIG={shlex.quote(details.kubeconfig)} PATH={shlex.quote(programs)}:$PATH",
        f"fairgate dev node load{own} IMAGE.tar",
        "helm install fairgate charts/fairgate --namespace fairgate-system --create-namespace ...",
        f"fairgate dev node down{own}",
    ):
        console.print(f"  {line}", soft_wrap=True, highlight=False)
