"""The `fairgate dev` commands: arguments and what is printed. Only results go to stdout.

What they do is in cluster, tools and demo. Errors are raised, and told by the command line.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import shlex
import sys
import time
from pathlib import Path
from typing import Annotated

import msgspec
import typer
from rich.console import Console
from rich.table import Table

from app.arguments import Form, Output
from app.core.errors import ToolMissing
from app.dev import tools as programs
from app.dev.cluster import Cluster
from app.dev.demo import Result, play, to_text
from app.dev.interrupt import orderly
from app.dev.options import Details, Options
from app.dev.progress import Told
from app.dev.screen import Screen, print_result

NOT_UP = 1
_GPU_POD = json.dumps(
    {
        "spec": {
            "containers": [
                {"name": "train", "image": "train", "resources": {"limits": {"nvidia.com/gpu": 4}}}
            ]
        }
    }
)
"""What makes `kubectl run` ask for GPUs."""

LOOK_SECONDS = 1.0


Nodes = Annotated[int, typer.Option(min=0, max=5000, help="How many nodes, played by KWOK.")]
Gpus = Annotated[int, typer.Option(min=0, max=10_000, help="GPUs of each node.")]
Folder = Annotated[
    Path | None,
    typer.Option(
        "--dir",
        help="The folder of the cluster; a folder of its own makes a cluster of its own. "
        "[dim]\\[default: ~/.local/state/fairgate/dev][/dim]",
        show_default=False,
    ),
]

dev_app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode="rich",
    help="A local control plane with Fairgate in it, for trying things out.",
    context_settings={"help_option_names": ["-h", "--help"]},
)


@dev_app.command(
    epilog="Examples: [bold]fairgate dev up[/bold], "
    '[bold]export KUBECONFIG="$(fairgate dev up --output json | jq -r .kubeconfig)"[/bold]'
)
def up(
    nodes: Nodes = 8,
    gpus: Gpus = 8,
    folder: Folder = None,
    output: Form = Output.TEXT,
    fairgate: Annotated[
        bool, typer.Option(help="Install and start Fairgate, or leave a bare cluster.")
    ] = True,
    durable: Annotated[
        bool, typer.Option("--durable", help="etcd and Redis keep what they said they kept.")
    ] = False,
) -> None:
    """Start etcd, Kubernetes, Redis and Fairgate; return when a pod can be created.

    All goes on in the background, on the loopback only, until `fairgate dev down`.
    """
    cluster = Cluster(folder)
    options = Options(nodes=nodes, gpus=gpus, fairgate=fairgate, durable=durable)
    details = cluster.up(options, Told())
    _print_details(cluster, details, output)


@dev_app.command(epilog="Example: [bold]fairgate dev down[/bold]")
def down(folder: Folder = None) -> None:
    """End every process of the local cluster and remove its folder."""
    cluster = Cluster(folder)
    with orderly(), Told().step("Taking the cluster down"):
        was_up = cluster.down()
    typer.echo(
        f"The cluster in {cluster.folder} is gone."
        if was_up
        else f"There was no cluster in {cluster.folder}."
    )


@dev_app.command(epilog="Example: [bold]fairgate dev status --output json[/bold]")
def status(folder: Folder = None, output: Form = Output.TEXT) -> None:
    """Tell where everything is and what runs; exit 1 if no cluster is up, or not whole."""
    cluster = Cluster(folder)
    found = cluster.status()
    if found is None:
        typer.echo(
            f"No cluster is up in {cluster.folder}; start one by `fairgate dev up`.", err=True
        )
        raise typer.Exit(NOT_UP)
    details, dead = found
    _print_details(cluster, details, output)
    if dead:
        typer.echo(
            f"Ended by itself: {', '.join(dead)}; the logs are in {cluster.folder / 'logs'}. "
            "`fairgate dev up` starts anew.",
            err=True,
        )
        raise typer.Exit(NOT_UP)


@dev_app.command(
    epilog="Example: [bold]fairgate dev user alice --group team-a > alice.kubeconfig[/bold]"
)
def user(
    name: Annotated[str, typer.Argument(help="The name of the person.")],
    group: Annotated[
        list[str] | None, typer.Option("--group", "-g", help="A group they are in; repeat it.")
    ] = None,
    folder: Folder = None,
) -> None:
    """Print a kubeconfig that is this person, without rights until RBAC gives some."""
    typer.echo(Cluster(folder).user(name, group or ()), nl=False)


@dev_app.command(epilog="Example: [bold]fairgate dev tools[/bold]")
def tools() -> None:
    """Find the programs of the local cluster; build into the cache those that are nowhere."""
    with orderly():
        found = programs.find(Told())
    for path in (*found, programs.redis_server()):
        typer.echo(path)


@dev_app.command(
    epilog="Examples: [bold]fairgate dev demo[/bold], [bold]fairgate dev demo --stay[/bold]"
)
def demo(
    nodes: Nodes = 8,
    gpus: Gpus = 8,
    folder: Folder = None,
    output: Form = Output.TEXT,
    stay: Annotated[
        bool, typer.Option("--stay", help="Leave the cluster up afterwards, until Ctrl-C.")
    ] = False,
) -> None:
    """Show two teams, one of them greedy, without Fairgate and then with it.

    Without the programs of a cluster, the same is played in virtual time.
    """
    console, told = Console(stderr=output is Output.JSON), Told()
    with orderly():
        try:
            _find_all(told)
        except ToolMissing as error:
            typer.echo(f"{error}\nSo the demo is played in virtual time.", err=True)
            _print_result(console, _rehearse(console, nodes, gpus), nodes * gpus, output)
            return
        cluster, options = Cluster(folder), Options(nodes=nodes, gpus=gpus)
        was_up = cluster.status() is not None
        try:
            result = _play(console, told, cluster, options)
            _print_result(console, result, nodes * gpus, output)
            if stay and not was_up:
                _stay(cluster)
        finally:
            if not was_up:
                cluster.down()


def _find_all(told: Told) -> None:
    if reason := programs.missing():
        raise ToolMissing(reason)
    programs.find(told)


def _play(console: Console, told: Told, cluster: Cluster, options: Options) -> Result:
    cluster.up(options, told)
    capacity = options.nodes * options.gpus
    with Screen(console, capacity) as screen:
        return asyncio.run(play(cluster.kubeconfig, screen.show, capacity))


def _stay(cluster: Cluster) -> None:
    """Leave the cluster to the person until Ctrl-C, or until somebody else took it down."""
    _print_text(Console(stderr=True), cluster, cluster.details())
    typer.echo("Ctrl-C takes all of it down.", err=True)
    with contextlib.suppress(KeyboardInterrupt):
        while cluster.status() is not None:
            time.sleep(LOOK_SECONDS)
    typer.echo("Taking it down.", err=True)


def _print_result(console: Console, result: Result, capacity: int, output: Output) -> None:
    if output is Output.JSON:
        typer.echo(to_text(result))
    else:
        print_result(console, result, capacity)


def _rehearse(console: Console, nodes: int, gpus: int) -> Result:
    from app.dev.rehearsal import rehearse

    with Screen(console, nodes * gpus) as screen:
        return rehearse(screen.show, nodes, gpus)


def _print_details(cluster: Cluster, details: Details, output: Output) -> None:
    if output is Output.JSON:
        typer.echo(json.dumps(msgspec.to_builtins(details), indent=2))
    else:
        _print_text(Console(), cluster, details)


def _print_text(console: Console, cluster: Cluster, details: Details) -> None:
    table = Table.grid(padding=(0, 2))
    for name, value in (
        ("API server", f"KUBECONFIG={details.kubeconfig}"),
        ("Fairgate's REST", details.api),
        ("its CA", details.ca),
        ("webhook", details.webhook),
        ("Redis", details.redis),
        ("logs", str(cluster.folder / "logs")),
    ):
        if value is not None:
            table.add_row(f"[dim]{name}[/dim]", value)
    for name, pids in details.pids.items():
        table.add_row(f"[dim]{name}[/dim]", "pid " + ", ".join(map(str, pids)))
    console.print(table, soft_wrap=True)
    kubeconfig, kubectl = shlex.quote(details.kubeconfig), Path(details.kubectl)
    folders = [str(kubectl.parent), str(Path(sys.executable).parent)]
    console.print("\nTry it:", style="bold")
    own = "" if cluster.is_usual else f" --dir {shlex.quote(str(cluster.folder))}"
    lines = [f"export KUBECONFIG={kubeconfig} PATH={shlex.quote(':'.join(folders))}:$PATH"]
    if details.api is None:
        lines.append("kubectl get nodes")
    else:
        lines.append(f"kubectl run train --image=train --overrides={shlex.quote(_GPU_POD)}")
        lines.append("kubectl fairgate tenants")
        lines.append("kubectl describe pod train")
    for line in (*lines, f"fairgate dev down{own}"):
        console.print(f"  {line}", soft_wrap=True, highlight=False)
