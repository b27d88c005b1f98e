"""Arguments of `shares`, `quotas`, `audit`, `open` and `version`.

The implementation is in `reports`, which is imported when a command runs.
"""

from __future__ import annotations

from typing import Annotated

import typer

from app.kubectl.options import (
    Connection,
    ListedNamespaces,
    OneTenant,
    SomeTenant,
    installed_version,
)
from app.terminal.help import examples
from app.terminal.options import Output, WatchedOutput, with_groups

SHARES = examples(
    "kubectl fairgate shares", "kubectl fairgate shares team-a", "kubectl fairgate shares -o wide"
)
QUOTAS = examples(
    "kubectl fairgate quotas",
    "kubectl fairgate quotas team-a",
    "kubectl fairgate quotas --at 2026-01-31T12:00:00Z -o csv",
)
AUDIT = examples(
    "kubectl fairgate audit --limit 50",
    "kubectl fairgate audit --pod team-a/train-0 --since 7d",
    "kubectl fairgate audit --tenant team-a --type reclaimed -o json",
)
OPEN = examples("kubectl fairgate open", "kubectl fairgate open --port 8080 --no-browser")
VERSION = examples("kubectl fairgate version", "kubectl fairgate version -o json")


def _types(incomplete: str) -> list[str]:
    from app.kubectl.audit_entries import TYPES

    return [each for each in TYPES if each.startswith(incomplete)]


@with_groups
def shares(
    tenant: SomeTenant = None,
    *,
    output: WatchedOutput,
    connection: Connection,
) -> None:
    """Show fair share, use and weight of tenants, or of a tenant's users.

    FAIR SHARE is the part of the cluster to which the weights entitle it now. SHARE is the part
    that it uses.
    """
    from app.kubectl import reports

    reports.shares(connection.create_client(), output, tenant)


@with_groups
def quotas(
    tenant: SomeTenant = None,
    at: Annotated[
        str | None,
        typer.Option(
            metavar="TIME",
            help="The quotas in force at this time, from the audit chain. (default: now)",
            show_default=False,
        ),
    ] = None,
    *,
    output: WatchedOutput,
    connection: Connection,
) -> None:
    """Show guarantee, limit and use of tenants in each pool; of a tenant also its users' use."""
    from app.kubectl import reports

    reports.quotas(connection.create_client(), output, tenant, at)


@with_groups
def audit(
    pod: Annotated[
        str | None,
        typer.Option(
            metavar="POD",
            help="Only entries of this pod: NAME or NAMESPACE/NAME.",
            show_default=False,
        ),
    ] = None,
    person: Annotated[
        str | None,
        typer.Option(
            "--user", help="Only entries of pods or changes of this user.", show_default=False
        ),
    ] = None,
    tenant: OneTenant = None,
    kind: Annotated[
        str | None,
        typer.Option(
            "--type",
            help="Only entries of this type, such as released, reclaimed or changed.",
            autocompletion=_types,
            show_default=False,
        ),
    ] = None,
    since: Annotated[
        str,
        typer.Option(
            metavar="TIME",
            help="At or after this time: 2026-01-31T08:00:00Z, or 2h for two hours ago.",
        ),
    ] = "24h",
    until: Annotated[
        str | None,
        typer.Option(metavar="TIME", help="Before this time. (default: now)", show_default=False),
    ] = None,
    limit: Annotated[
        int, typer.Option(min=1, max=10_000, help="Print at most this many entries, 10000 at most.")
    ] = 20,
    *,
    scope: ListedNamespaces,
    output: WatchedOutput,
    connection: Connection,
) -> None:
    """Show the newest entries of the audit chain, oldest first.

    You need the right to get audit. `fairgate audit verify` checks the whole chain.
    """
    from app.kubectl import reports
    from app.kubectl.audit_entries import AuditFilter

    wanted = AuditFilter(pod, person, tenant, kind, scope.only_namespace(None))
    reports.audit(connection.create_client(), output, wanted, (since, until), limit)


@with_groups
def open_page(
    port: Annotated[
        int, typer.Option(min=0, max=65535, help="Port on the loopback; 0 is any free port.")
    ] = 0,
    browser: Annotated[
        bool, typer.Option("--browser/--no-browser", help="Open the browser, or print only.")
    ] = True,
    *,
    connection: Connection,
) -> None:
    """Open the page in the browser, with the credentials of your kubeconfig.

    A proxy on the loopback adds your credentials, so certificates, OIDC and login programs work. It
    accepts only the browser that opens the printed address first. It ends with Ctrl-C.
    """
    from app.kubectl import reports

    reports.open_page(connection.create_client(), port, browser=browser)


@with_groups
def version(
    *,
    output: Output,
    connection: Connection,
) -> None:
    """Show the versions of the client and of the server, and whether they fit."""
    from app.kubectl import reports

    reports.server_version(connection.create_client(), output, installed_version() or "unknown")
