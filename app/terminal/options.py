"""Groups of options. Several commands of a program take the same group as one value."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any, cast, get_args

import typer

from app.core.kubeconfig import KubeconfigOptions
from app.terminal.output import (
    FORMATS_HELP,
    REPORT_FORMATS_HELP,
    OutputFormat,
    OutputOptions,
    ReportFormat,
)


@dataclass(frozen=True, slots=True)
class OptionGroup:
    """Options, and the function that makes one value of theirs.

    A command takes the value by a parameter with the type `Annotated[TYPE, OptionGroup(...)]`.
    """

    make: Callable[..., Any]
    options: tuple[inspect.Parameter, ...]

    def value(self, given: dict[str, Any]) -> Any:
        """Return the value of the group. `given`: values by parameter; others are ignored."""
        return self.make(**{each.name: given.get(each.name) for each in self.options})


def option(name: str, kind: Any, *flags: str, default: Any = None, **more: Any) -> Any:
    """Return an option of a group. Its help does not show None as the default."""
    more.setdefault("show_default", default is not None)
    return inspect.Parameter(
        name,
        inspect.Parameter.KEYWORD_ONLY,
        default=typer.Option(default, *flags, **more),
        annotation=kind,
    )


def with_groups(command: Callable[..., None]) -> Callable[..., None]:
    """Replace each parameter that is a group by the options of the group."""
    parameters = inspect.signature(command, eval_str=True).parameters.values()
    groups = {each.name: group for each in parameters if (group := _group(each)) is not None}

    def run(**given: Any) -> None:
        inner = {each.name for group in groups.values() for each in group.options}
        own = {name: value for name, value in given.items() if name not in inner}
        command(**own, **{name: group.value(given) for name, group in groups.items()})

    shown = [
        one
        for each in parameters
        for one in (groups[each.name].options if each.name in groups else (each,))
    ]
    run.__name__, run.__doc__ = command.__name__, command.__doc__
    cast(Any, run).__signature__ = inspect.Signature(
        [each.replace(kind=inspect.Parameter.KEYWORD_ONLY) for each in shown]
    )
    return run


def _group(parameter: inspect.Parameter) -> OptionGroup | None:
    found = (each for each in get_args(parameter.annotation) if isinstance(each, OptionGroup))
    return next(found, None)


NO_HEADERS = option(
    "no_headers",
    bool,
    "--no-headers",
    default=False,
    help="Leave out the heads of columns, in tables and in csv.",
)


def _format(kind: type[OutputFormat] | type[ReportFormat], help: str) -> Any:
    return option("form", kind, "--output", "-o", default=kind.TABLE, metavar="FORMAT", help=help)


_OUTPUT = (_format(OutputFormat, FORMATS_HELP), NO_HEADERS)
_WATCH = option(
    "watch",
    bool,
    "--watch",
    "-w",
    default=False,
    help="Print the answer again when it changes, until Ctrl-C.",
)
Output = Annotated[OutputOptions, OptionGroup(OutputOptions, _OUTPUT)]
"""The output options of a command that prints once."""

WatchedOutput = Annotated[OutputOptions, OptionGroup(OutputOptions, (_WATCH, *_OUTPUT))]
"""The output options of a command that can print again."""


def _report_output(form: ReportFormat) -> OutputOptions:
    return OutputOptions(OutputFormat(form.value))


ReportOutput = Annotated[
    OutputOptions, OptionGroup(_report_output, (_format(ReportFormat, REPORT_FORMATS_HELP),))
]
"""The output option of a command that prints one report."""

CONNECTION_PANEL = "Connection"
KUBECONFIG = (
    option(
        "context",
        str | None,
        "--context",
        metavar="NAME",
        help="Context of the kubeconfig. (default: the current one)",
        rich_help_panel=CONNECTION_PANEL,
    ),
    option(
        "kubeconfig",
        str | None,
        "--kubeconfig",
        metavar="FILE",
        help="The kubeconfig. (default: KUBECONFIG, ~/.kube/config)",
        rich_help_panel=CONNECTION_PANEL,
    ),
    option(
        "as_user",
        str | None,
        "--as",
        metavar="USER",
        help="Act as this user, which needs the right to impersonate.",
        rich_help_panel=CONNECTION_PANEL,
    ),
    option(
        "as_groups",
        list[str] | None,
        "--as-group",
        metavar="GROUP",
        help="With --as: act as a member of this group; may be repeated.",
        rich_help_panel=CONNECTION_PANEL,
    ),
)


def kubeconfig_options(
    context: str | None,
    kubeconfig: str | None,
    as_user: str | None,
    as_groups: list[str] | None,
) -> KubeconfigOptions:
    """Return the values of `KUBECONFIG` as one value."""
    return KubeconfigOptions(kubeconfig or "", context or "", as_user or "", tuple(as_groups or ()))


Kubeconfig = Annotated[KubeconfigOptions, OptionGroup(kubeconfig_options, KUBECONFIG)]
"""The options of a command that reads the cluster of a kubeconfig."""
