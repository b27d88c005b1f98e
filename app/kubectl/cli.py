"""The `kubectl-fairgate` command line, built with typer.

Exit codes: 0 done, 1 refused, 2 wrong usage or input, 3 Fairgate or the cluster is unreachable,
4 a defect of Fairgate. Commands import heavy modules only when they run.
"""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Callable
from typing import Annotated, Any

import typer

from app.core.errors import ClusterRefused, FairgateError, InvalidInput
from app.kubectl import cli_reports
from app.kubectl.options import (
    Connection,
    Limit,
    ListedPods,
    NamedPods,
    OneNamespace,
    OneTenant,
    SomeTenant,
    TenantArgument,
    connection_of,
    installed_version,
)
from app.terminal.help import CommandLine, examples
from app.terminal.options import Output, ReportOutput, WatchedOutput, with_groups
from app.terminal.output import warn
from app.terminal.streams import PIPE_CLOSED, run_with_streams

NO, WRONG_INPUT, UNREACHABLE, DEFECT, INTERRUPTED = 1, 2, 3, 4, 130
COMPLETE = "_KUBECTL_FAIRGATE_COMPLETE"

_INPUT = (400, 404, 405, 413, 422)
"""HTTP statuses that mean a wrong request."""

cli = CommandLine(
    name="kubectl-fairgate",
    help="Show waiting GPU pods and the reasons, weigh tenants and users, and report usage.\n\n"
    "It asks Fairgate through the cluster of your kubeconfig, as you. Your rights there decide.\n\n"
    "`fairgate doctor` checks a cluster and its installation. It is part of the server's package.",
    epilog=examples(
        "kubectl fairgate why train-0 -n team-a",
        "kubectl fairgate queue team-a --watch",
        "kubectl fairgate weights set team-a --user alice 2 --dry-run",
        "kubectl fairgate usage --by user --from 24h -o csv",
    ),
    invoke_without_command=True,
)
weights_app = CommandLine(
    invoke_without_command=True,
)


def _pods(context: typer.Context, incomplete: str) -> list[str]:
    from app.kubectl import completion

    return completion.pods(
        connection_of(context.params), context.params.get("namespace"), incomplete
    )


@cli.command(
    epilog=examples(
        "kubectl fairgate queue",
        "kubectl fairgate queue team-a --user alice -o wide",
        "kubectl fairgate queue -n team-a -l app=train --no-headers",
        "kubectl fairgate queue team-a -o json | jq '.items[].reason'",
    )
)
@with_groups
def queue(
    tenant: SomeTenant = None,
    user: Annotated[
        str | None,
        typer.Option(help="Only workloads that this user submitted.", show_default=False),
    ] = None,
    limit: Limit = None,
    *,
    scope: ListedPods,
    output: WatchedOutput,
    connection: Connection,
) -> None:
    """Show what waits: each user's place, what holds it back, when it is likely to start."""
    from app.kubectl import commands

    commands.queue(connection.create_client(), output, tenant, user, scope, limit)


@cli.command(
    epilog=examples(
        "kubectl fairgate mine",
        "kubectl fairgate mine -o wide",
        "kubectl fairgate mine --watch",
    )
)
@with_groups
def mine(*, scope: ListedPods, output: WatchedOutput, connection: Connection) -> None:
    """Show your own pods with place, reason and estimate, and your use against your fair share."""
    from app.kubectl import commands

    commands.mine(connection.create_client(), output, scope)


@cli.command(
    epilog=examples(
        "kubectl fairgate why train-0",
        "kubectl fairgate why train-0 -n team-a --watch",
        "kubectl fairgate why job/train",
        "kubectl fairgate why -l app=train",
    )
)
@with_groups
def why(
    pod: Annotated[
        str | None,
        typer.Argument(
            metavar="POD|KIND/NAME",
            help="A held pod; or a job, jobset, deployment or statefulset, such as job/train.",
            autocompletion=_pods,
            show_default=False,
        ),
    ] = None,
    *,
    scope: NamedPods,
    output: WatchedOutput,
    connection: Connection,
) -> None:
    """Show why pods wait, until when, and the remedies. You need the right to get the pods."""
    from app.kubectl import commands

    commands.why(connection.create_client(), output, scope, pod)


@cli.command(
    "try",
    epilog=examples(
        "kubectl fairgate try -f train.yaml",
        "kustomize build . | kubectl fairgate try -f -",
        "kubectl fairgate try -f train.yaml --contexts east,west",
    ),
)
@with_groups
def try_(
    file: Annotated[
        str,
        typer.Option(
            "--filename",
            "-f",
            metavar="FILE",
            help="A manifest with pods, Jobs, Deployments, StatefulSets or JobSets; - is standard "
            "input.",
            show_default=False,
        ),
    ],
    contexts: Annotated[
        str | None,
        typer.Option(
            metavar="A,B",
            help="Contexts of the kubeconfig to compare, one row each.",
            show_default=False,
        ),
    ] = None,
    *,
    scope: OneNamespace,
    output: Output,
    connection: Connection,
) -> None:
    """Test a manifest: show a refusal, or where and when its pods would start, and remedies."""
    from app.kubectl import commands

    names = list(dict.fromkeys(each for each in (contexts or "").split(",") if each))
    code = commands.attempt(connection, output, file, scope.namespace, names)
    if code:
        raise typer.Exit(code)


@cli.command(
    epilog=examples(
        "kubectl fairgate tenants",
        "kubectl fairgate tenants -o wide",
    )
)
@with_groups
def tenants(
    limit: Limit = None,
    *,
    output: WatchedOutput,
    connection: Connection,
) -> None:
    """Show tenants: weight, share of the cluster, used and borrowed amounts, pending pods."""
    from app.kubectl import commands

    commands.tenants(connection.create_client(), output, limit)


@cli.command(
    epilog=examples(
        "kubectl fairgate pools --watch",
    )
)
@with_groups
def pools(
    limit: Limit = None,
    *,
    output: WatchedOutput,
    connection: Connection,
) -> None:
    """Show pools: nodes, capacity, used and free amounts."""
    from app.kubectl import commands

    commands.pools(connection.create_client(), output, limit)


@cli.command(
    epilog=examples(
        "kubectl fairgate usage --by tenant,pool --from 7d",
        "kubectl fairgate usage --tenant team-a --by user -o csv > usage.csv",
    )
)
@with_groups
def usage(
    by: Annotated[
        str,
        typer.Option(
            help="Sum by tenant, user, pool, node or workload, or by several with commas."
        ),
    ] = "tenant",
    since: Annotated[
        str | None,
        typer.Option(
            "--from",
            metavar="TIME",
            help="Begin of the time: 2026-01-31T08:00:00Z, or 2h for two hours ago. (default: 1h)",
            show_default=False,
        ),
    ] = None,
    until: Annotated[
        str | None,
        typer.Option(
            "--to",
            metavar="TIME",
            help="End of the time, in the same form. (default: now)",
            show_default=False,
        ),
    ] = None,
    total: Annotated[
        bool,
        typer.Option(
            "--total", help="Totals since the installation, by tenant, user and pool only."
        ),
    ] = False,
    tenant: OneTenant = None,
    limit: Limit = None,
    *,
    output: Output,
    connection: Connection,
) -> None:
    """Show usage, in hours of each resource: the time for which released pods reserved it."""
    from app.kubectl import commands

    commands.usage(
        connection.create_client(), output, by, (since, until), tenant, limit, total=total
    )


@cli.command(
    epilog=examples(
        "kubectl fairgate simulate --weight team-a=3",
        "kubectl fairgate simulate --user team-a/alice=2 --hours 8",
    )
)
@with_groups
def simulate(
    weight: Annotated[
        list[str] | None,
        typer.Option(
            metavar="TENANT=WEIGHT", help="Weight of a tenant; may be repeated.", show_default=False
        ),
    ] = None,
    user: Annotated[
        list[str] | None,
        typer.Option(
            metavar="TENANT/USER=WEIGHT",
            help="Weight of a user; may be repeated.",
            show_default=False,
        ),
    ] = None,
    hours: Annotated[float, typer.Option(min=0.1, max=48, help="Hours to simulate.")] = 4.0,
    *,
    output: Output,
    connection: Connection,
) -> None:
    """Show the effect of other weights on the pods that wait now. The cluster is not changed."""
    from app.kubectl import commands

    commands.simulate(connection.create_client(), output, weight or (), user or (), hours)


def _is_written(context: typer.Context) -> Callable[[str], bool]:
    """Return a function that tests whether an option is on the command line.

    Options that environment variables set do not count.
    """
    return lambda name: getattr(context.get_parameter_source(name), "name", "") == "COMMANDLINE"


@weights_app.callback(
    epilog=examples(
        "kubectl fairgate weights",
        "kubectl fairgate weights --tenant team-a",
        "kubectl fairgate weights set team-a --user alice 2",
    )
)
@with_groups
def weights(
    context_: typer.Context,
    tenant: OneTenant = None,
    *,
    output: WatchedOutput,
    connection: Connection,
) -> None:
    """Show the same as `shares`. `set` changes weights."""
    from app.kubectl import reports

    if context_.invoked_subcommand is None:
        reports.shares(connection.create_client(), output, tenant)
    elif any(map(_is_written(context_), context_.params)):
        raise InvalidInput("Write options after the word set: kubectl fairgate weights set --help.")


@weights_app.command(
    "set",
    epilog=examples(
        "kubectl fairgate weights set team-a 3",
        "kubectl fairgate weights set team-a --user alice 2 --dry-run",
    ),
)
@with_groups
def set_weight(
    tenant: TenantArgument,
    weight: Annotated[str, typer.Argument(metavar="WEIGHT", help="A decimal, such as 2 or 0.5.")],
    user: Annotated[
        str | None,
        typer.Option(help="Set the weight of this user of the tenant.", show_default=False),
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only show the effect.")] = False,
    *,
    output: ReportOutput,
    connection: Connection,
) -> None:
    """Set the weight of a tenant (a right on its parent) or of a user (a right on the tenant)."""
    from app.kubectl import commands

    commands.set_weight(connection.create_client(), output, tenant, user, weight, dry_run)


cli.add_typer(weights_app, name="weights")
cli.command(epilog=cli_reports.SHARES)(cli_reports.shares)
cli.command(epilog=cli_reports.QUOTAS)(cli_reports.quotas)
cli.command(epilog=cli_reports.AUDIT)(cli_reports.audit)
cli.command("open", epilog=cli_reports.OPEN)(cli_reports.open_page)


@cli.command(
    hidden=True, context_settings={"ignore_unknown_options": True, "allow_extra_args": True}
)
def doctor() -> None:
    """Say which program has this command."""
    raise InvalidInput("doctor is a command of the server's package: run `fairgate doctor`.")


cli.command("version", epilog=cli_reports.VERSION)(cli_reports.version)


def _print_version(wanted: bool) -> None:
    if wanted:
        found = installed_version()
        typer.echo(f"kubectl-fairgate {found or '(not installed)'}")
        raise typer.Exit


@cli.callback()
def root(
    context_: typer.Context,
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Print the version."
        ),
    ] = False,
) -> None:
    """Options of all commands. Without a command it prints the help."""
    if context_.invoked_subcommand is None:
        typer.echo(context_.get_help())


def main() -> None:
    """Run the command line and exit with its exit code."""
    sys.exit(outcome(lambda: cli(prog_name=_name(sys.argv[1:]), complete_var=COMPLETE)))


def _name(arguments: list[str]) -> str:
    """Return the program name in help texts; for completion, the name of the program file."""
    about_completion = any(each.endswith("-completion") for each in arguments)
    return "kubectl-fairgate" if about_completion or COMPLETE in os.environ else "kubectl fairgate"


def outcome(command: Callable[[], Any]) -> int:
    """Run a command and return its exit code. Print an error as one sentence to stderr."""
    try:
        run_with_streams(command)
    except SystemExit as leaving:
        return leaving.code if isinstance(leaving.code, int) else int(bool(leaving.code))
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        return PIPE_CLOSED
    except InvalidInput as error:
        return _report_errors(error, WRONG_INPUT)
    except ClusterRefused as error:
        return _report_errors(error, _code(error.status))
    except FairgateError as error:
        return _report_errors(error, UNREACHABLE)
    except Exception as error:
        what = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
        where = "run it again with FAIRGATE_DEBUG=1 to see where"
        sentence = f"this is a defect of Fairgate ({what}); {where}, and please report it."
        return _report_errors(FairgateError(sentence), DEFECT)
    return 0


def _code(status: int) -> int:
    if status == 429:
        return UNREACHABLE
    if status == 500:
        return DEFECT
    return WRONG_INPUT if status in _INPUT else NO


def _report_errors(error: FairgateError, code: int) -> int:
    warn(" ".join(str(error).split()))
    if os.environ.get("FAIRGATE_DEBUG", "") not in ("", "0"):
        traceback.print_exc()
    return code
