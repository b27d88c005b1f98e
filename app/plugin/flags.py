"""The options that many commands share, and how they are added to each."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, cast

import typer

from app.plugin.way import Way


class Form(StrEnum):
    """How an answer is printed, if not as a table."""

    WIDE = "wide"
    JSON = "json"
    YAML = "yaml"


class Sheet(StrEnum):
    """How usage is printed, if not as a table."""

    WIDE = "wide"
    JSON = "json"
    YAML = "yaml"
    CSV = "csv"


Output = Annotated[
    Form | None,
    typer.Option(
        "--output",
        "-o",
        help="wide shows more; json and yaml are the API's own answer, and stable.",
        show_default=False,
    ),
]
Watch = Annotated[
    bool, typer.Option("--watch", "-w", help="Show it anew when it changes, until Ctrl-C.")
]
Limit = Annotated[
    int | None,
    typer.Option(min=1, help="Show so many at most. [dim]\\[default: all][/dim]"),
]

_PANEL = "Where to ask, and as whom"


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
    _option("context", str, "--context", "Of the kubeconfig, if not the current one."),
    _option(
        "kubeconfig",
        Path,
        "--kubeconfig",
        "Whose credentials are used. [dim]\\[default: KUBECONFIG, ~/.kube/config][/dim]",
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


def way_of(values: dict[str, Any]) -> Way:
    """Return the way that options name; they may hold other values, too."""
    return Way(**{each.name: values.get(each.name) for each in WAY})


def reaching(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command the options that say where to ask; it takes them as `way`."""

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
