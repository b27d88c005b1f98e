"""The `kubectl-fairgate` command: arguments, and what each asks of the API.

Exit codes: 0 done, 1 the answer is no, 2 wrong usage or input, 3 Fairgate or the cluster cannot be
reached, 4 a defect of ours. Nothing heavy is imported before a command needs it.
"""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Callable
from typing import Annotated, Any

import typer

from app.core.errors import ClusterRefused, FairgateError, InvalidInput
from app.plugin.flags import Form, Limit, Output, Sheet, Watch, reaching, way_of
from app.plugin.way import Way

NO, WRONG_INPUT, UNREACHABLE, DEFECT, INTERRUPTED = 1, 2, 3, 4, 130
COMPLETE = "_KUBECTL_FAIRGATE_COMPLETE"

_INPUT = (400, 404, 405, 413, 422)
"""Statuses that say something of what was asked, not of who asked."""

cli = typer.Typer(
    name="kubectl-fairgate",
    help="See who waits for GPUs, and why; weigh tenants and users; read what was used.\n\n"
    "It asks Fairgate through the cluster of your kubeconfig, as you. Your rights there decide.",
    epilog="Examples: [bold]kubectl fairgate why train-0 -n team-a[/bold], "
    "[bold]kubectl fairgate queue team-a --watch[/bold], "
    "[bold]kubectl fairgate weights set team-a --user alice 2 --dry-run[/bold], "
    "[bold]kubectl fairgate usage --by user --from 24h -o csv[/bold]",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
)
weights_app = typer.Typer(
    rich_markup_mode="rich",
    invoke_without_command=True,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _tenants(context: typer.Context, incomplete: str) -> list[str]:
    from app.plugin import completing

    return completing.tenants(way_of(context.params), incomplete)


def _pods(context: typer.Context, incomplete: str) -> list[str]:
    from app.plugin import completing

    return completing.pods(way_of(context.params), context.params.get("namespace"), incomplete)


Tenant = Annotated[
    str,
    typer.Argument(
        metavar="TENANT", help="As `tenants` lists it.", autocompletion=_tenants, show_default=False
    ),
]
SomeTenant = Annotated[
    str | None,
    typer.Argument(
        metavar="TENANT",
        help="Whose. [dim]\\[default: every tenant that you may list][/dim]",
        autocompletion=_tenants,
        show_default=False,
    ),
]
OneTenant = Annotated[
    str | None,
    typer.Option(help="Of this tenant only.", autocompletion=_tenants, show_default=False),
]


@cli.command(
    epilog="Examples: [bold]kubectl fairgate queue[/bold], "
    "[bold]kubectl fairgate queue team-a --user alice -o wide[/bold], "
    "[bold]kubectl fairgate queue team-a -o json | jq '.items\\[].reason'[/bold]"
)
@reaching
def queue(
    way: Way,
    tenant: SomeTenant = None,
    user: Annotated[
        str | None, typer.Option(help="Only what this user submitted.", show_default=False)
    ] = None,
    limit: Limit = None,
    watch: Watch = False,
    output: Output = None,
) -> None:
    """Show what waits: each user's place, what holds it back, when it is likely to start."""
    from app.plugin import asking

    asking.queue(way.open(), asking.look(output, watch), tenant, user, limit)


@cli.command(
    epilog="Examples: [bold]kubectl fairgate why train-0[/bold], "
    "[bold]kubectl fairgate why train-0 -n team-a --watch[/bold]"
)
@reaching
def why(
    way: Way,
    pod: Annotated[str, typer.Argument(metavar="POD", help="A held pod.", autocompletion=_pods)],
    namespace: Annotated[
        str | None,
        typer.Option(
            "--namespace",
            "-n",
            help="Of the pod. [dim]\\[default: that of the kubeconfig][/dim]",
            show_default=False,
        ),
    ] = None,
    watch: Watch = False,
    output: Output = None,
) -> None:
    """Tell why a pod waits, until when, and what would change it. Who may get the pod may ask."""
    from app.plugin import asking

    asking.why(way.open(), asking.look(output, watch), namespace, pod)


@cli.command(
    epilog="Examples: [bold]kubectl fairgate tenants[/bold], "
    "[bold]kubectl fairgate tenants -o wide[/bold]"
)
@reaching
def tenants(way: Way, limit: Limit = None, watch: Watch = False, output: Output = None) -> None:
    """Show tenants: weight, share of the cluster, what they use, borrow and wait for."""
    from app.plugin import asking

    asking.tenants(way.open(), asking.look(output, watch), limit)


@cli.command(epilog="Example: [bold]kubectl fairgate pools --watch[/bold]")
@reaching
def pools(way: Way, limit: Limit = None, watch: Watch = False, output: Output = None) -> None:
    """Show pools: their nodes, what they have, what of it is used."""
    from app.plugin import asking

    asking.pools(way.open(), asking.look(output, watch), limit)


@cli.command(
    epilog="Examples: [bold]kubectl fairgate usage --by tenant,pool --from 7d[/bold], "
    "[bold]kubectl fairgate usage --tenant team-a --by user -o csv > usage.csv[/bold]"
)
@reaching
def usage(
    way: Way,
    by: Annotated[
        str, typer.Option(help="What to sum by: tenant, user, pool, node, workload; with commas.")
    ] = "tenant",
    since: Annotated[
        str | None,
        typer.Option(
            "--from",
            metavar="TIME",
            help="2026-01-31T08:00:00Z, or 2h, which is two hours ago. [dim]\\[default: 1h][/dim]",
            show_default=False,
        ),
    ] = None,
    until: Annotated[
        str | None,
        typer.Option(
            "--to", metavar="TIME", help="Alike. [dim]\\[default: now][/dim]", show_default=False
        ),
    ] = None,
    tenant: OneTenant = None,
    limit: Limit = None,
    output: Annotated[
        Sheet | None,
        typer.Option(
            "--output",
            "-o",
            help="wide has seconds, exact; json, yaml and csv are the API's own, and stable.",
            show_default=False,
        ),
    ] = None,
) -> None:
    """Show what was used, in hours of each resource: the time it was reserved by released pods."""
    from app.plugin import asking

    asking.usage(way.open(), output.value if output else "", by, (since, until), tenant, limit)


@cli.command(
    epilog="Examples: [bold]kubectl fairgate simulate --weight team-a=3[/bold], "
    "[bold]kubectl fairgate simulate --user team-a/alice=2 --hours 8[/bold]"
)
@reaching
def simulate(
    way: Way,
    weight: Annotated[
        list[str] | None,
        typer.Option(metavar="TENANT=WEIGHT", help="Repeat it for more.", show_default=False),
    ] = None,
    user: Annotated[
        list[str] | None,
        typer.Option(metavar="TENANT/USER=WEIGHT", help="Repeat it for more.", show_default=False),
    ] = None,
    hours: Annotated[float, typer.Option(min=0.1, max=48, help="How far to look ahead.")] = 4.0,
    output: Output = None,
) -> None:
    """Tell what other weights would do to what waits now. Nothing is changed."""
    from app.plugin import asking

    asking.simulate(way.open(), asking.look(output, False), weight or (), user or (), hours)


def _is_written(context: typer.Context) -> Callable[[str], bool]:
    """Return what tells whether an option stands on the command line; variables are for all."""
    return lambda name: getattr(context.get_parameter_source(name), "name", "") == "COMMANDLINE"


@weights_app.callback(
    epilog="Examples: [bold]kubectl fairgate weights[/bold], "
    "[bold]kubectl fairgate weights --tenant team-a[/bold], "
    "[bold]kubectl fairgate weights set team-a --user alice 2[/bold]"
)
@reaching
def weights(
    way: Way,
    context_: typer.Context,
    tenant: OneTenant = None,
    watch: Watch = False,
    output: Output = None,
) -> None:
    """Show what tenants are owed next to each other, or the users of one; `set` changes it."""
    from app.plugin import asking

    if context_.invoked_subcommand is None:
        asking.weights(way.open(), asking.look(output, watch), tenant)
    elif any(map(_is_written(context_), context_.params)):
        raise InvalidInput("Write options after the word set: kubectl fairgate weights set --help.")


@weights_app.command(
    "set",
    epilog="Examples: [bold]kubectl fairgate weights set team-a 3[/bold], "
    "[bold]kubectl fairgate weights set team-a --user alice 2 --dry-run[/bold]",
)
@reaching
def set_weight(
    way: Way,
    tenant: Tenant,
    weight: Annotated[str, typer.Argument(metavar="WEIGHT", help="A decimal, such as 2 or 0.5.")],
    user: Annotated[
        str | None,
        typer.Option(help="Weigh this user of the tenant, not the tenant.", show_default=False),
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only tell what it would change.")
    ] = False,
    output: Annotated[
        Form | None,
        typer.Option("--output", "-o", help="json or yaml: the API's own.", show_default=False),
    ] = None,
) -> None:
    """Weigh a tenant (a right on its parent), or one of its users (a right on the tenant)."""
    from app.plugin import asking

    asking.set_weight(way.open(), asking.look(output, False), tenant, user, weight, dry_run)


cli.add_typer(weights_app, name="weights")


@cli.callback()
def root() -> None:
    """Options before any command; there are none."""


def main() -> None:
    """Run the command line; the process ends here, with an exit code that tells what happened."""
    sys.exit(outcome(lambda: cli(prog_name=_name(sys.argv[1:]), complete_var=COMPLETE)))


def _name(arguments: list[str]) -> str:
    """Return what people type; completion is set up for the program itself."""
    about_completion = any(each.endswith("-completion") for each in arguments)
    return "kubectl-fairgate" if about_completion or COMPLETE in os.environ else "kubectl fairgate"


def outcome(command: Callable[[], Any]) -> int:
    """Run a command and return its exit code; what went wrong is told in a sentence on stderr."""
    try:
        command()
    except SystemExit as leaving:
        return leaving.code if isinstance(leaving.code, int) else int(bool(leaving.code))
    except KeyboardInterrupt:
        return INTERRUPTED
    except InvalidInput as error:
        return _told(error, WRONG_INPUT)
    except ClusterRefused as error:
        return _told(error, _code(error.status))
    except FairgateError as error:
        return _told(error, UNREACHABLE)
    except Exception as error:
        what = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
        where = "run it again with FAIRGATE_DEBUG=1 to see where"
        sentence = f"this is a defect of Fairgate ({what}); {where}, and please report it."
        return _told(FairgateError(sentence), DEFECT)
    return 0


def _code(status: int) -> int:
    if status == 429:
        return UNREACHABLE
    if status == 500:
        return DEFECT
    return WRONG_INPUT if status in _INPUT else NO


def _told(error: FairgateError, code: int) -> int:
    print(f"fairgate: {' '.join(str(error).split())}", file=sys.stderr)
    if os.environ.get("FAIRGATE_DEBUG", "") not in ("", "0"):
        traceback.print_exc()
    return code
