"""Arguments of `fairgate convert`. The implementation is in commands/convert."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from app.config.settings import MANAGED
from app.terminal.help import CommandLine, examples

convert_app = CommandLine(
    no_args_is_help=True,
    help="Convert queues of other systems to Tenants, and published logs for replay.",
)

MANAGED_DEFAULT = ",".join(MANAGED)

Objects = Annotated[
    list[Path],
    typer.Argument(
        metavar="FILE...",
        allow_dash=True,
        help="Objects as kubectl get -o yaml prints them; - is standard input.",
        show_default=False,
    ),
]
Managed = Annotated[
    str,
    typer.Option(
        "--managed-resources",
        help="The managed resources. Quotas of other resources are not converted.",
    ),
]
PoolOption = Annotated[str, typer.Option(help="The Pool that amounts without a pool apply to.")]


def _log(columns: str) -> typer.models.ArgumentInfo:
    argument: typer.models.ArgumentInfo = typer.Argument(
        metavar="FILE", help=f"{columns}, gzipped or not.", show_default=False
    )
    return argument


@convert_app.command(
    epilog=examples(
        "kubectl get clusterqueues,localqueues,cohorts,resourceflavors -A -o yaml "
        "| fairgate convert kueue - > tenants.yaml",
    )
)
def kueue(files: Objects, managed: Managed = MANAGED_DEFAULT) -> None:
    """Convert ClusterQueues, LocalQueues, Cohorts and ResourceFlavors to Tenants and Pools.

    Settings without an equivalent are listed on standard error.
    """
    from app.commands.convert import command

    command.convert_kueue(files, managed.split(","))


@convert_app.command(
    epilog=examples(
        "kubectl get queues.scheduling.volcano.sh,namespaces -o yaml "
        "| fairgate convert volcano - > tenants.yaml",
    )
)
def volcano(
    files: Objects, pool: PoolOption = "default", managed: Managed = MANAGED_DEFAULT
) -> None:
    """Convert Queues to Tenants. Namespaces whose annotation names a queue become theirs.

    Settings without an equivalent are listed on standard error.
    """
    from app.commands.convert import command

    command.convert_volcano(files, pool, managed.split(","))


@convert_app.command(
    epilog=examples(
        "sacctmgr dump CLUSTER file=accounts.cfg",
        "fairgate convert slurm accounts.cfg > tenants.yaml",
    )
)
def slurm(
    file: Annotated[
        Path,
        typer.Argument(
            allow_dash=True,
            help="A file of sacctmgr dump; - is standard input.",
            show_default=False,
        ),
    ],
    pool: PoolOption = "default",
) -> None:
    """Convert accounts and their users to Tenants.

    Settings without an equivalent are listed on standard error.
    """
    from app.commands.convert import command

    command.convert_slurm(file, pool)


@convert_app.command(
    epilog=examples(
        "fairgate convert philly cluster_job_log > philly.csv",
    )
)
def philly(file: Annotated[Path, _log("cluster_job_log")]) -> None:
    """Convert Microsoft's Philly log for fairgate replay."""
    from app.commands.convert import command
    from app.commands.convert import philly as log

    command.print_log(log.convert(file))


@convert_app.command(
    epilog=examples(
        "fairgate convert helios data/Venus/cluster_log.csv > venus.csv",
    )
)
def helios(file: Annotated[Path, _log("cluster_log.csv")]) -> None:
    """Convert a log of SenseTime's Helios clusters for fairgate replay."""
    from app.commands.convert import command
    from app.commands.convert import helios as log

    command.print_log(log.convert(file))


@convert_app.command(
    epilog=examples(
        "fairgate convert pai pai_task_table.csv pai_job_table.csv > pai.csv",
    )
)
def pai(
    tasks: Annotated[Path, _log("pai_task_table.csv")],
    jobs: Annotated[Path, _log("pai_job_table.csv")],
) -> None:
    """Convert the log of Alibaba's PAI clusters of 2020 for fairgate replay."""
    from app.commands.convert import command
    from app.commands.convert import pai as log

    command.print_log(log.convert(tasks, jobs))
