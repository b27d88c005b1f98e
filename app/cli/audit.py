"""Arguments of `fairgate audit`. The implementation is in commands/audit."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from app.core.kubeconfig import KubeconfigOptions
from app.terminal.help import CommandLine, examples
from app.terminal.options import Kubeconfig, ReportOutput, with_groups

audit_app = CommandLine(
    no_args_is_help=True,
    help="The record of what Fairgate did: whether it is whole, and all of it as text.",
)


Redis = Annotated[
    str | None,
    typer.Option(
        "--redis-url",
        envvar="FAIRGATE_REDIS_URL",
        help="The Redis of Fairgate.",
        show_default=False,
        show_envvar=True,
    ),
]
ClusterOption = Annotated[
    str, typer.Option(envvar="FAIRGATE_CLUSTER", help="Name of the cluster in the keys of Redis.")
]
Namespace = Annotated[
    str,
    typer.Option(
        "--namespace", "-n", envvar="FAIRGATE_NAMESPACE", help="The namespace of Fairgate."
    ),
]
PublicKeyOption = Annotated[
    Path | None,
    typer.Option(
        "--public-key",
        metavar="FILE",
        dir_okay=False,
        help="The key that must have signed the newest head, as PEM or as the base64 text in "
        "publicKey of a head. Keep it where accounts of the cluster cannot change it.",
        show_default=False,
    ),
]


@audit_app.command(
    epilog=examples(
        "fairgate audit verify --redis-url redis://localhost:6379/0",
        "fairgate audit verify audit.ndjson --public-key audit.pub",
        "fairgate audit verify /var/lib/fairgate/audit --copies --public-key audit.pub",
        "kubectl logs POD -n fairgate-system | fairgate audit verify - --copies",
    )
)
@with_groups
def verify(
    files: Annotated[
        list[Path] | None,
        typer.Argument(
            metavar="[FILE|FOLDER]...",
            allow_dash=True,
            help="A file with the whole chain instead of Redis; - is standard input.",
            show_default=False,
        ),
    ] = None,
    redis_url: Redis = None,
    cluster: ClusterOption = "default",
    namespace: Namespace = "fairgate-system",
    head: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            dir_okay=False,
            help="A signed head that must be among the entries, as JSON: what "
            "kubectl get configmap fairgate-audit -o json prints.",
            show_default=False,
        ),
    ] = None,
    public_key: PublicKeyOption = None,
    copies: Annotated[
        bool,
        typer.Option(
            "--copies",
            help="The files are logs, or copies of parts of the chain: repeated entries and other "
            "lines are accepted, and missing or unsigned entries at both ends are counted.",
        ),
    ] = False,
    *,
    output: ReportOutput,
    connection: Kubeconfig,
) -> None:
    """Check that the audit chain is complete, unchanged and signed.

    If it is not, print the first entry that does not match and exit with code 1. Entries in Redis
    are checked against the signed head in the ConfigMap fairgate-audit of the cluster, or against
    --head. A file must be a whole chain with a signed end, as an export is.
    """
    from app.commands.audit import command

    source = command.AuditSource(redis_url, cluster, namespace, connection)
    command.verify(
        source,
        tuple(files or ()),
        head,
        public_key,
        copies=copies,
        output=output,
    )


@audit_app.command(
    epilog=examples(
        "fairgate audit export --since 24h --tenant team-a | jq .facts",
        "fairgate audit export --output audit.ndjson",
    )
)
def export(
    redis_url: Redis = None,
    cluster: ClusterOption = "default",
    since: Annotated[
        str | None,
        typer.Option(
            metavar="TIME",
            help="From this time on: 2026-01-31T08:00:00Z, or 2h, which is two hours ago.",
            show_default=False,
        ),
    ] = None,
    until: Annotated[
        str | None,
        typer.Option(
            metavar="TIME", help="Before this time, in the same form.", show_default=False
        ),
    ] = None,
    tenant: Annotated[
        str | None, typer.Option(help="Only entries about this tenant.", show_default=False)
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output",
            "-o",
            metavar="FILE",
            dir_okay=False,
            writable=True,
            help="Where to write. (default: standard output)",
            show_default=False,
        ),
    ] = None,
) -> None:
    """Print the entries in Redis as JSON lines.

    A complete export ends with the signed head, so that it can be verified on its own.
    """
    from app.commands.audit import command

    source = command.AuditSource(redis_url, cluster, "", KubeconfigOptions())
    command.export(source, since, until, tenant, output)
