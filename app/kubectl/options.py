"""The options that many commands share."""

from __future__ import annotations

import inspect
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from app.core.errors import InvalidInput
from app.core.kubeconfig import KubeconfigOptions
from app.terminal.options import (
    CONNECTION_PANEL,
    KUBECONFIG,
    OptionGroup,
    kubeconfig_options,
    option,
)

if TYPE_CHECKING:
    from app.kubectl.client import ApiClient


@dataclass(frozen=True, slots=True)
class ConnectionOptions:
    """A kubeconfig, or a server with a token and its CA."""

    kubeconfig: KubeconfigOptions
    server: str | None = None
    token: str | None = None
    authority: Path | None = None

    def create_client(self) -> ApiClient:
        """Return the HTTP client, without a request. Raises InvalidInput."""
        from app.kubectl import connect  # heavy

        if self.server is None:
            return connect.kubeconfig_client(self.kubeconfig)
        if self.kubeconfig.as_user or self.kubeconfig.as_groups:
            raise InvalidInput("--as needs the API server, which --server leaves out.")
        return connect.direct_client(self.server, self.token, self.authority)

    def with_context(self, name: str) -> ConnectionOptions:
        """Return the same options with another context."""
        return replace(self, kubeconfig=replace(self.kubeconfig, context=name))


@dataclass(frozen=True, slots=True)
class NamespaceScope:
    """The namespaces and labels of pods that a command shows, as kubectl takes them."""

    namespace: str | None = None
    all_namespaces: bool = False
    selector: str | None = None
    """A label selector in the form of Kubernetes."""

    def only_namespace(self, default: str | None) -> str | None:
        """Return the only namespace; None for all. `default`: without an option."""
        return None if self.all_namespaces else self.namespace or default


_SELECTOR = option(
    "selector",
    str | None,
    "--selector",
    "-l",
    metavar="KEY=VALUE",
    help="Only pods with these labels, in one namespace unless -A is given.",
)
_ALL = option(
    "all_namespaces",
    bool,
    "--all-namespaces",
    "-A",
    default=False,
    help="All namespaces; overrides -n.",
)


def _namespace(text: str) -> inspect.Parameter:
    found: inspect.Parameter = option("namespace", str | None, "--namespace", "-n", help=text)
    return found


def _scope(*options: inspect.Parameter) -> OptionGroup:
    return OptionGroup(NamespaceScope, options)


_OF_KUBECONFIG = _namespace("The namespace. (default: that of the kubeconfig)")
OneNamespace = Annotated[NamespaceScope, _scope(_OF_KUBECONFIG)]
NamedPods = Annotated[NamespaceScope, _scope(_OF_KUBECONFIG, _ALL, _SELECTOR)]
ListedPods = Annotated[
    NamespaceScope,
    _scope(
        _namespace("Only this namespace. (default: all; for -l, that of the kubeconfig)"),
        _ALL,
        _SELECTOR,
    ),
]
ListedNamespaces = Annotated[
    NamespaceScope, _scope(_namespace("Only this namespace. (default: all)"), _ALL)
]
Limit = Annotated[
    int | None,
    typer.Option(min=1, help="Print at most this many. (default: all)"),
]


def _connection(
    server: str | None, token: str | None, authority: Path | None, **kubeconfig: Any
) -> ConnectionOptions:
    return ConnectionOptions(kubeconfig_options(**kubeconfig), server, token, authority)


CONNECTION = OptionGroup(
    _connection,
    (
        *KUBECONFIG,
        option(
            "server",
            str | None,
            "--server",
            help="Fairgate's own URL, instead of the cluster of a kubeconfig.",
            rich_help_panel=CONNECTION_PANEL,
            metavar="URL",
            envvar="FAIRGATE_SERVER",
            show_envvar=True,
        ),
        option(
            "token",
            str | None,
            "--token",
            help="For --server: what `kubectl create token NAME --audience fairgate` prints.",
            rich_help_panel=CONNECTION_PANEL,
            envvar="FAIRGATE_TOKEN",
            show_envvar=True,
        ),
        option(
            "authority",
            Path | None,
            "--certificate-authority",
            help="For --server: the CA of its certificate, PEM.",
            rich_help_panel=CONNECTION_PANEL,
            envvar="FAIRGATE_CERTIFICATE_AUTHORITY",
            show_envvar=True,
            exists=True,
            dir_okay=False,
            metavar="FILE",
        ),
    ),
)
Connection = Annotated[ConnectionOptions, CONNECTION]


def connection_of(values: dict[str, Any]) -> ConnectionOptions:
    """Return the connection options among the values of a command."""
    found: ConnectionOptions = CONNECTION.value(values)
    return found


def complete_tenants(context: typer.Context, incomplete: str) -> list[str]:
    """Return the tenants that begin so."""
    from app.kubectl import completion

    return completion.tenants(connection_of(context.params), incomplete)


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
