"""Shell completion. Errors produce no candidates and no message.

`kubectl` runs the program `kubectl_complete-fairgate`. It answers in the format of Cobra: one
candidate a line, then a directive for the shell.
"""

from __future__ import annotations

import contextlib
import os
import shlex
import sys
from urllib.parse import quote

from app.core.errors import FairgateError
from app.kubectl.options import ConnectionOptions

NO_FILES, FILES = 4, 0
"""Cobra's directives for the shell."""

_TAKES_A_FILE = ("--kubeconfig", "--certificate-authority")


def tenants(connection: ConnectionOptions, incomplete: str) -> list[str]:
    """Return the tenants that the caller may list."""
    with contextlib.suppress(FairgateError):
        found = connection.create_client().get("/tenants", [("limit", "500")]).as_object()["items"]
        return [each["name"] for each in found if each["name"].startswith(incomplete)]
    return []


def pods(connection: ConnectionOptions, namespace: str | None, incomplete: str) -> list[str]:
    """Return the pods of a namespace that have no node yet; empty without the API server."""
    with contextlib.suppress(FairgateError):
        client = connection.create_client()
        if not client.aggregated:
            return []
        path = f"/api/v1/namespaces/{quote(namespace or client.namespace, safe='')}/pods"
        query = [("fieldSelector", "spec.nodeName=,status.phase=Pending"), ("limit", "500")]
        names = [
            each["metadata"]["name"]
            for each in client.get_kubernetes(path, query).as_object()["items"]
        ]
        return [each for each in names if each.startswith(incomplete)]
    return []


def main() -> None:
    """Print candidates for `kubectl`. The last argument is the word to complete."""
    from app.kubectl.cli import COMPLETE, cli, outcome

    words = sys.argv[1:] or [""]
    line = " ".join(["kubectl-fairgate", *map(shlex.quote, words[:-1]), words[-1]])
    os.environ |= {
        COMPLETE: "complete_fish",
        "_TYPER_COMPLETE_FISH_ACTION": "get-args",
        "_TYPER_COMPLETE_ARGS": line,
    }
    outcome(lambda: cli(prog_name="kubectl-fairgate", complete_var=COMPLETE))
    print(f":{FILES if words[-2:-1] and words[-2] in _TAKES_A_FILE else NO_FILES}")
    sys.exit(0)
