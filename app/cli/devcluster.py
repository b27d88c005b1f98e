"""The `fairgate dev` commands: arguments and output. Only results go to standard output.

`cluster`, `binaries` and `demo` implement them. The command line prints the errors they raise.
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
from rich.text import Text

from app.cli.devnode import node_app
from app.core.errors import ToolMissing
from app.devcluster import binaries as programs
from app.devcluster.cluster import LocalCluster
from app.devcluster.cluster_options import ClusterOptions, Details
from app.devcluster.demo import DemoResult, play
from app.devcluster.demo_display import Screen, print_result
from app.devcluster.kubernetes_versions import DEFAULT, VARIABLE, VERSIONS
from app.devcluster.node.requirements import find as find_node_programs
from app.devcluster.progress import ConsoleProgress
from app.devcluster.signals import signals_as_interrupt
from app.terminal.help import CommandLine, examples
from app.terminal.options import ReportOutput, with_groups
from app.terminal.output import OutputOptions, as_text

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
"""Overrides with which `kubectl run` requests GPUs."""

WATCH_SECONDS = 1.0


NodeCountOption = Annotated[
    int, typer.Option(min=0, max=5000, help="Number of nodes, which KWOK simulates.")
]
Gpus = Annotated[int, typer.Option(min=0, max=10_000, help="GPUs of each node.")]
FolderOption = Annotated[
    Path | None,
    typer.Option(
        "--dir",
        help="The folder of the cluster; a folder of its own makes a cluster of its own. "
        "(default: ~/.local/state/fairgate/dev)",
        show_default=False,
    ),
]

KubernetesOption = Annotated[
    str,
    typer.Option(
        envvar=VARIABLE,
        show_envvar=True,
        help="Version of Kubernetes: "
        + ", ".join(version.minor for version in VERSIONS)
        + f". (default: {DEFAULT.minor}, or that of the API server in --binaries)",
        show_default=False,
    ),
]
BinariesOption = Annotated[
    str,
    typer.Option(
        envvar=programs.ASSETS,
        show_envvar=True,
        metavar="FOLDER",
        help="A folder with programs such as kube-apiserver and etcd, to use instead of others.",
        show_default=False,
    ),
]

dev_app = CommandLine(
    no_args_is_help=True,
    help="A local control plane with Fairgate in it, for trying things out.",
)
dev_app.add_typer(node_app, name="node")


@dev_app.command(
    epilog=examples(
        "fairgate dev up",
        'export KUBECONFIG="$(fairgate dev up --output json | jq -r .kubeconfig)"',
        "fairgate dev up --kubernetes 1.37",
    )
)
@with_groups
def up(
    nodes: NodeCountOption = 8,
    gpus: Gpus = 8,
    folder: FolderOption = None,
    fairgate: Annotated[
        bool, typer.Option(help="Install and start Fairgate, or leave a bare cluster.")
    ] = True,
    durable: Annotated[
        bool,
        typer.Option(
            "--durable", help="etcd and Redis write each change to disk before they confirm it."
        ),
    ] = False,
    kubernetes: KubernetesOption = "",
    binaries: BinariesOption = "",
    *,
    output: ReportOutput,
) -> None:
    """Start etcd, Kubernetes, Redis and Fairgate; return when a pod can be created.

    All processes run in the background, on the loopback only, until `fairgate dev down`.
    """
    cluster = LocalCluster(folder)
    options = ClusterOptions(
        nodes=nodes,
        gpus=gpus,
        fairgate=fairgate,
        durable=durable,
        kubernetes=kubernetes,
        binaries=binaries,
    )
    details = cluster.up(options, ConsoleProgress())
    _print_details(cluster, details, output)


@dev_app.command(
    epilog=examples(
        "fairgate dev down",
    )
)
def down(folder: FolderOption = None) -> None:
    """End every process of the local cluster and remove its folder."""
    cluster = LocalCluster(folder)
    with signals_as_interrupt(), ConsoleProgress().step("Taking the cluster down"):
        was_up = cluster.down()
    typer.echo(
        f"The cluster in {cluster.folder} is gone."
        if was_up
        else f"There was no cluster in {cluster.folder}."
    )


@dev_app.command(
    epilog=examples(
        "fairgate dev status --output json",
    )
)
@with_groups
def status(folder: FolderOption = None, *, output: ReportOutput) -> None:
    """Show addresses, files and processes; exit 1 if no cluster is up or a process has died."""
    cluster = LocalCluster(folder)
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
            "`fairgate dev up` replaces the cluster by a new, empty one.",
            err=True,
        )
        raise typer.Exit(NOT_UP)


@dev_app.command(
    epilog=examples(
        "fairgate dev user alice --group team-a > alice.kubeconfig",
    )
)
def user(
    name: Annotated[str, typer.Argument(help="The name of the person.")],
    group: Annotated[
        list[str] | None, typer.Option("--group", "-g", help="A group they are in; repeat it.")
    ] = None,
    folder: FolderOption = None,
) -> None:
    """Print a kubeconfig for a new user, without rights until RBAC grants some."""
    typer.echo(LocalCluster(folder).create_user(name, group or ()), nl=False)


@dev_app.command(
    epilog=examples(
        "fairgate dev tools",
        "fairgate dev tools --kubernetes 1.37",
        "fairgate dev tools --node",
    )
)
def tools(
    kubernetes: KubernetesOption = "",
    binaries: BinariesOption = "",
    node: Annotated[
        bool, typer.Option("--node", help="Also build the programs of `fairgate dev node`.")
    ] = False,
) -> None:
    """Find the programs of the local cluster; build missing ones into the cache."""
    with signals_as_interrupt():
        found = programs.find(ConsoleProgress(), programs.choose(kubernetes, binaries))
        paths = [*found.paths(), programs.redis_server()]
        if node:
            paths += find_node_programs(ConsoleProgress())[1]
    for path in paths:
        typer.echo(path)


@dev_app.command(
    epilog=examples(
        "fairgate dev demo",
        "fairgate dev demo --stay",
    )
)
@with_groups
def demo(
    nodes: NodeCountOption = 8,
    gpus: Gpus = 8,
    folder: FolderOption = None,
    allocation: Annotated[
        bool, typer.Option("--stay", help="Leave the cluster up afterwards, until Ctrl-C.")
    ] = False,
    kubernetes: KubernetesOption = "",
    binaries: BinariesOption = "",
    *,
    output: ReportOutput,
) -> None:
    """Show a greedy and a modest team, first without Fairgate and then with it.

    If the programs of a cluster are missing, the demo is simulated in virtual time.
    """
    console, told = Console(stderr=output.is_data), ConsoleProgress()
    with signals_as_interrupt():
        try:
            _find_all(told, programs.choose(kubernetes, binaries))
        except ToolMissing as error:
            typer.echo(f"{error}\nSo the demo is played in virtual time.", err=True)
            _print_result(console, _rehearse(console, nodes, gpus), nodes * gpus, output)
            return
        cluster = LocalCluster(folder)
        options = ClusterOptions(nodes=nodes, gpus=gpus, kubernetes=kubernetes, binaries=binaries)
        was_up = cluster.status() is not None
        try:
            result = _play(console, told, cluster, options)
            _print_result(console, result, nodes * gpus, output)
            if allocation and not was_up:
                _stay(cluster)
        finally:
            if not was_up:
                cluster.down()


def _find_all(progress: ConsoleProgress, choice: programs.ToolChoice) -> None:
    if reason := programs.missing_reason(choice):
        raise ToolMissing(reason)
    programs.find(progress, choice)


def _play(
    console: Console, progress: ConsoleProgress, cluster: LocalCluster, options: ClusterOptions
) -> DemoResult:
    cluster.up(options, progress)
    capacity = options.nodes * options.gpus
    with Screen(console, capacity) as screen:
        return asyncio.run(play(cluster.kubeconfig, screen.show, capacity))


def _stay(cluster: LocalCluster) -> None:
    """Leave the cluster up until Ctrl-C, or until another process takes it down."""
    _print_text(Console(stderr=True), cluster, cluster.details())
    typer.echo("Ctrl-C takes all of it down.", err=True)
    with contextlib.suppress(KeyboardInterrupt):
        while cluster.status() is not None:
            time.sleep(WATCH_SECONDS)
    typer.echo("Taking it down.", err=True)


def _print_result(
    console: Console, result: DemoResult, capacity: int, output: OutputOptions
) -> None:
    if output.is_data:
        typer.echo(as_text(output, result.as_json()))
    else:
        print_result(console, result, capacity)


def _rehearse(console: Console, nodes: int, gpus: int) -> DemoResult:
    from app.devcluster.demo_simulated import play_simulated

    with Screen(console, nodes * gpus) as screen:
        return play_simulated(screen.show, nodes, gpus)


def _print_details(cluster: LocalCluster, details: Details, output: OutputOptions) -> None:
    if output.is_data:
        typer.echo(as_text(output, msgspec.to_builtins(details)))
    else:
        _print_text(Console(), cluster, details)


def _print_text(console: Console, cluster: LocalCluster, details: Details) -> None:
    rows = [
        ("API server", f"KUBECONFIG={details.kubeconfig}"),
        ("Fairgate's REST", details.api),
        ("its CA", details.ca),
        ("webhook", details.webhook),
        ("Redis", details.redis),
        ("logs", str(cluster.folder / "logs")),
    ]
    rows += [(name, "pid " + ", ".join(map(str, pids))) for name, pids in details.pids.items()]
    width = max(len(name) for name, _ in rows)
    for name, value in rows:
        if value is not None:  # a table would cut addresses where the output is no terminal
            text = Text.assemble((name.ljust(width), "dim"), "  ", value)
            console.print(text, soft_wrap=True)
    kubeconfig, kubectl = shlex.quote(details.kubeconfig), Path(details.kubectl)
    folders = [str(kubectl.parent), str(Path(sys.executable).parent)]
    console.print("\nTry it:", style="bold")
    own = "" if cluster.is_default else f" --dir {shlex.quote(str(cluster.folder))}"
    lines = [f"export KUBECONFIG={kubeconfig} PATH={shlex.quote(':'.join(folders))}:$PATH"]
    if details.api is None:
        lines.append("kubectl get nodes")
    else:
        lines.append(f"kubectl run train --image=train --overrides={shlex.quote(_GPU_POD)}")
        lines.append("kubectl fairgate tenants")
        lines.append("kubectl describe pod train")
    for line in (*lines, f"fairgate dev down{own}"):
        console.print(f"  {line}", soft_wrap=True, highlight=False)
