"""The options that many commands share, and the decorator that adds them."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

from app.terminal.output import FORMATS_HELP, OutputFormat

if TYPE_CHECKING:
    from app.kubectl.client import ApiClient


@dataclass(frozen=True, slots=True)
class ConnectionOptions:
    """A kubeconfig and its context, or a server with a token and its CA."""

    kubeconfig: Path | None = None
    context: str | None = None
    server: str | None = None
    token: str | None = None
    authority: Path | None = None

    def open(self) -> ApiClient:
        """Return the HTTP client, without a request. Raises InvalidInput."""
        from app.kubectl import connect  # heavy

        if self.server is not None:
            return connect.direct(self.server, self.token, self.authority)
        return connect.through(self.kubeconfig, self.context)


OutputOption = Annotated[
    OutputFormat, typer.Option("--output", "-o", metavar="FORMAT", help=FORMATS_HELP)
]
WatchOption = Annotated[
    bool,
    typer.Option("--watch", "-w", help="Print the answer again when it changes, until Ctrl-C."),
]
Limit = Annotated[
    int | None,
    typer.Option(min=1, help="Print at most this many. (default: all)"),
]

_PANEL = "Connection"


def _option(name: str, kind: Any, flag: str, text: str, **more: Any) -> inspect.Parameter:
    return inspect.Parameter(
        name,
        inspect.Parameter.KEYWORD_ONLY,
        default=typer.Option(
            None, flag, help=text, show_default=False, rich_help_panel=_PANEL, **more
        ),
        annotation=kind | None,
    )


_FILE = {"exists": True, "dir_okay": False, "metavar": "FILE"}
WAY = (
    _option(
        "context", str, "--context", "Context of the kubeconfig. The default is the current one."
    ),
    _option(
        "kubeconfig",
        Path,
        "--kubeconfig",
        "The kubeconfig. (default: KUBECONFIG, ~/.kube/config)",
        **_FILE,
    ),
    _option(
        "server",
        str,
        "--server",
        "Fairgate's own URL, instead of the cluster of a kubeconfig.",
        metavar="URL",
        envvar="FAIRGATE_SERVER",
        show_envvar=True,
    ),
    _option(
        "token",
        str,
        "--token",
        "For --server: what `kubectl create token NAME --audience fairgate` prints.",
        envvar="FAIRGATE_TOKEN",
        show_envvar=True,
    ),
    _option(
        "authority",
        Path,
        "--certificate-authority",
        "For --server: the CA of its certificate, PEM.",
        envvar="FAIRGATE_CERTIFICATE_AUTHORITY",
        show_envvar=True,
        **_FILE,
    ),
)


def way_of(values: dict[str, Any]) -> ConnectionOptions:
    """Return the connection options among the values of a command."""
    return ConnectionOptions(**{each.name: values.get(each.name) for each in WAY})


def reaching(command: Callable[..., None]) -> Callable[..., None]:
    """Add the connection options to a command, which receives them as `way`."""

    def run(**values: Any) -> None:
        taken = {name: value for name, value in values.items() if name not in names}
        command(way=way_of(values), **taken)

    names = {each.name for each in WAY}
    own = [
        each
        for each in inspect.signature(command, eval_str=True).parameters.values()
        if each.name != "way"
    ]
    run.__name__, run.__doc__ = command.__name__, command.__doc__
    cast(Any, run).__signature__ = inspect.Signature([*own, *WAY])
    return run


def complete_tenants(context: typer.Context, incomplete: str) -> list[str]:
    """Return the tenants that begin so."""
    from app.kubectl import completion

    return completion.tenants(way_of(context.params), incomplete)


TenantArgument = Annotated[
    str,
    typer.Argument(
        metavar="TENANT",
        help="A tenant, as `tenants` lists it.",
        autocompletion=complete_tenants,
        show_default=False,
    ),
]
SomeTenant = Annotated[
    str | None,
    typer.Argument(
        metavar="TENANT",
        help="A tenant. (default: every tenant that you may list)",
        autocompletion=complete_tenants,
        show_default=False,
    ),
]
OneTenant = Annotated[
    str | None,
    typer.Option(help="Only this tenant.", autocompletion=complete_tenants, show_default=False),
]


def installed_version() -> str:
    """Return the version of this program; empty if it is run without being installed."""
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("fairgate")
    except PackageNotFoundError:
        return ""
