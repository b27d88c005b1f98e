"""The `fairgate` command: arguments and exit codes only.

Each command imports its modules itself, so that `--help` and completion are fast. Exit codes: 0
success, 1 negative result, 2 wrong usage or input, 3 the cluster, Redis or a program is
unavailable, 4 a defect of Fairgate.
"""

from __future__ import annotations

import gc
import inspect
import logging
import os
import sys
import traceback
from collections.abc import Callable
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, cast

import typer
from typer.core import TyperGroup

from app.cli import audit, convert, doctor, mcp_server, release
from app.cli import check as check_command
from app.cli import enforcement as enforcement_command
from app.cli import nodes as nodes_command
from app.config import settings
from app.core.errors import FairgateError, InvalidInput
from app.terminal.help import CommandLine, HelpGroup, examples
from app.terminal.options import ReportOutput, with_groups
from app.terminal.output import warn
from app.terminal.streams import PIPE_CLOSED, run_with_streams

NO, WRONG_INPUT, UNREACHABLE, DEFECT, INTERRUPTED = 1, 2, 3, 4, 130
NO_RIGHT = (401, 403)

cli = CommandLine(
    name="fairgate",
    help="Fair order for GPU pods on a shared Kubernetes cluster.",
    epilog=examples(
        "fairgate dev up",
    ),
    no_args_is_help=True,
)


class ReplayOrder(StrEnum):
    """Order of a replay: the fair order, or one of the baselines."""

    FAIR = "fair"
    FIFO = "fifo"
    BACKFILL = "backfill"


Picture = Annotated[
    Path | None,
    typer.Option(
        "--plot",
        metavar="FILE.png",
        dir_okay=False,
        help="Draw use over time, and waits by size or user. Needs matplotlib: "
        "pip install '.[plot]' in the source.",
        show_default=False,
    ),
]
TraceArgument = Annotated[
    Path,
    typer.Argument(
        metavar="TRACE.csv[.gz]",
        help="The log of a cluster, a row a job, with the columns submit_s, tenant, user, job_id, "
        "pods, gpus_per_pod and duration_s; docs/scenarios.md has them all.",
        show_default=False,
    ),
]
Gpus = Annotated[
    int | None,
    typer.Option(min=1, help="A cluster of this many GPUs, as one pool.", show_default=False),
]
NodesFileOption = Annotated[
    Path | None,
    typer.Option(
        metavar="NODES.csv",
        help="A cluster of these nodes instead, with the columns node, gpus, gpu_model.",
        show_default=False,
    ),
]
Flat = Annotated[bool, typer.Option("--flat", help="Make every user a tenant.")]
OneTenant = Annotated[
    str | None, typer.Option(help="Only the rows of this tenant.", show_default=False)
]
Tenants = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE.csv",
        help="Weights and quotas: tenant,weight,guarantee_gpus,limit_gpus. Every weight is 1 "
        "without it.",
        show_default=False,
    ),
]
PolicyFields = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="FIELD=VALUE",
        help="A field of the Policy, such as halfLife=4h; may be repeated.",
        show_default=False,
    ),
]
Start = Annotated[
    str | None,
    typer.Option(
        "--from",
        metavar="S",
        help="Report from this second of the log on, or a time such as 2d. The whole log is "
        "played always. (default: the first job)",
        show_default=False,
    ),
]
Span = Annotated[
    str | None,
    typer.Option(
        "--for",
        metavar="S",
        help="For how many seconds, or a time such as 48h. (default: to the last job)",
        show_default=False,
    ),
]
Jitter = Annotated[
    str | None,
    typer.Option(
        metavar="T",
        help="Shift each arrival at random by this at most, such as 30s.",
        show_default=False,
    ),
]
Seed = Annotated[int, typer.Option(help="Seed of the shifts, and of the choice of --elastic.")]
LargeGang = Annotated[int, typer.Option(min=1, help="GPUs that make a gang large.")]
Elastic = Annotated[
    int,
    typer.Option(
        min=0,
        max=100,
        metavar="PERCENT",
        help="Make this part of the jobs with several GPUs elastic, and compare.",
    ),
]


class DevGroup(HelpGroup):
    """The `dev` commands, imported on first use."""

    def list_commands(self, ctx: Any) -> list[str]:
        return self._loaded().list_commands(ctx)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        return self._loaded().get_command(ctx, cmd_name)

    def _loaded(self) -> TyperGroup:
        from app.cli.devcluster import dev_app

        return typer.main.get_group(dev_app)


cli.add_typer(
    CommandLine(cls=DevGroup, no_args_is_help=True),
    name="dev",
    help="A local control plane with Fairgate in it, for trying things out.",
)


def _print_version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import PackageNotFoundError, version

        try:
            typer.echo(f"fairgate {version('fairgate')}")
        except PackageNotFoundError:
            typer.echo("fairgate, run from its source folder without being installed")
        raise typer.Exit


@cli.callback()
def root(
    version: bool = typer.Option(
        False, "--version", callback=_print_version, is_eager=True, help="Print the version."
    ),
) -> None:
    """Options of all commands."""


def _with_settings(command: Callable[..., None]) -> Callable[..., None]:
    """Add one flag per setting to a command."""
    own = [
        parameter
        for parameter in inspect.signature(command, eval_str=True).parameters.values()
        if parameter.kind is not inspect.Parameter.VAR_KEYWORD
    ]
    flags = [
        inspect.Parameter(
            entry.name,
            inspect.Parameter.KEYWORD_ONLY,
            default=typer.Option(
                None,
                entry.option,
                envvar=entry.variable,
                help=f"{entry.help} (default: {entry.default})" if entry.default else entry.help,
                show_default=False,
                metavar="TEXT",
            ),
            annotation=list[str] | None if entry.name == "roles" else str | None,
        )
        for entry in settings.FIELDS
    ]
    cast(Any, command).__signature__ = inspect.Signature(own + flags)
    return command


@cli.command(
    epilog=examples(
        "fairgate serve --role webhook",
        "fairgate serve --kubeconfig ~/.kube/config --redis-url redis://localhost:6379/0 "
        "--check-settings",
    )
)
@_with_settings
def serve(
    check_settings: bool = typer.Option(
        False, "--check-settings", help="Print the settings, or every mistake in them, and stop."
    ),
    **flags: Any,
) -> None:
    """Run Fairgate: one role or several in one process. Flags override variables."""
    roles = flags.pop("roles", None)
    chosen = settings.load(os.environ, {**flags, "roles": ",".join(roles or ())})
    if check_settings:
        rows = settings.describe(chosen)
        width = max(len(flag) for flag, _, _ in rows)
        wider = max(len(variable) for _, variable, _ in rows)
        for flag, variable, value in rows:
            typer.echo(f"{flag:{width}}  {variable:{wider}}  {value or '-'}")
        return
    gc.disable()  # imported modules stay, so a collection finds nothing
    from app.wiring import serve as wiring

    wiring.serve(chosen)


@cli.command(
    epilog=examples(
        "fairgate simulate docs/examples/two-teams.yaml",
        "fairgate simulate - --output json < scenario.yaml | jq .tenants",
    )
)
@with_groups
def simulate(
    scenario: Annotated[
        Path,
        typer.Argument(
            metavar="SCENARIO.yaml",
            allow_dash=True,
            help="Nodes, tenants and the work that they submit; - is standard input.",
            show_default=False,
        ),
    ],
    plot: Picture = None,
    *,
    output: ReportOutput,
) -> None:
    """Simulate a scenario in virtual time, with the engine that decides in a cluster.

    The defaults differ from a cluster: reclaim is off and minRuntime is 0s.
    docs/scenarios.md describes every field of a scenario.
    """
    from app.sim.scenario import command as simulation

    simulation.run(simulation.SimulateOptions(str(scenario), output, plot))


@cli.command(
    epilog=examples(
        "fairgate replay philly.csv.gz --gpus 1600 --flat",
        "fairgate replay log.csv --gpus 512 --tenant vision --policy fifo",
        "fairgate replay log.csv --nodes nodes.csv --set reserveAfter=10m --from 3600 --for 48h",
    )
)
@with_groups
def replay(
    trace: TraceArgument,
    gpus: Gpus = None,
    nodes: NodesFileOption = None,
    flat: Flat = False,
    tenant: OneTenant = None,
    tenants: Tenants = None,
    settings_: PolicyFields = None,
    start: Start = None,
    span: Span = None,
    jitter: Jitter = None,
    seed: Seed = 0,
    policy: Annotated[
        ReplayOrder, typer.Option(help="The order of workloads: fair, fifo or backfill.")
    ] = ReplayOrder.FAIR,
    large_gang: LargeGang = 16,
    elastic: Elastic = 0,
    plot: Picture = None,
    *,
    output: ReportOutput,
) -> None:
    """Replay the job log of a real cluster in fair order, or in a baseline order. Measure it."""
    from app.sim.replay import command as replaying

    replaying.run(
        replaying.ReplayOptions(
            trace=trace,
            gpus=gpus,
            nodes=nodes,
            flat=flat,
            tenant=tenant,
            tenants=tenants,
            settings=tuple(settings_ or ()),
            start=start,
            span=span,
            jitter=jitter,
            seed=seed,
            policy=policy.value,
            large_gang=large_gang,
            elastic=elastic,
            output=output,
            plot=plot,
        )
    )


cli.add_typer(audit.audit_app, name="audit")
cli.add_typer(nodes_command.nodes_app, name="nodes")
cli.add_typer(convert.convert_app, name="convert")
cli.command(epilog=check_command.EXAMPLES)(check_command.check)
cli.command(epilog=enforcement_command.EXAMPLES)(enforcement_command.enforcement)
cli.command(epilog=mcp_server.EXAMPLES)(mcp_server.mcp)
cli.command(epilog=release.EXAMPLES)(release.release)
cli.command(epilog=doctor.EXAMPLES)(doctor.doctor)


def main() -> None:
    """Run the command line and exit the process with the exit code of the command."""
    sys.exit(_outcome(cli))


def _outcome(command: Callable[[], Any]) -> int:
    """Run a command and return its exit code. Errors are printed as one sentence on stderr."""
    try:
        run_with_streams(command)
    except SystemExit as leaving:
        return leaving.code if isinstance(leaving.code, int) else int(bool(leaving.code))
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        return PIPE_CLOSED
    except InvalidInput as error:
        _report(str(error))
        return WRONG_INPUT
    except FairgateError as error:
        _report(str(error))
        _show_trace()
        return NO if getattr(error, "status", None) in NO_RIGHT else UNREACHABLE
    except Exception as error:
        _report_defect(error)
        return DEFECT
    return 0


def _report(sentence: str) -> None:
    for line in sentence.splitlines():
        warn(line.expandtabs())


def _report_defect(error: Exception) -> None:
    what = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
    if _show_trace():
        where = "the traceback is above"
    elif logging.getLogger().handlers:
        logging.getLogger("fairgate.cli").error("stopped by a defect", exc_info=error)
        where = "the traceback is in the log"
    else:
        where = "run it again with FAIRGATE_DEBUG=1 to see where"
    _report(f"this is a defect of Fairgate ({what}); {where}, and please report it.")


def _show_trace() -> bool:
    if os.environ.get("FAIRGATE_DEBUG", "") in ("", "0"):
        return False
    traceback.print_exc()
    return True
