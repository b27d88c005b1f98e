"""Each command of Fairgate that a page shows exists, with its options and columns."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.main import get_command

from app.cli.main import cli
from app.kubectl.cli import cli as plugin
from loadtest.__main__ import cli as loadtest

ROOT = Path(__file__).parents[2]
PAGES = {*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md"), *(ROOT / "charts").rglob("*.md")}
PAGES -= {ROOT / "CHANGELOG.md", ROOT / "docs" / "cli.md"}
"""The changelog names commands that were removed. cli.md is made of the programs."""

PROGRAMS = {
    "kubectl fairgate": get_command(plugin),
    "fairgate": get_command(cli),
    "python -m loadtest": get_command(loadtest),
}
LINE = re.compile(
    r"(?:^ {4}(?:\$ )?|[|&] |`|<\()(?:\.venv/bin/)?"
    r"((?:(?:kubectl )?fairgate|python -m loadtest) [^`\n]+)",
    re.M,
)
END = re.compile(r" #| [|&>)]|[;)]| \.\.\.")
"""The end of a command: a comment, a further command, a redirection, or an ellipsis."""


def shown() -> list[tuple[str, str]]:
    """Return each command with the name of its page."""
    found = []
    for page in sorted(PAGES):
        text = page.read_text().replace(" \\\n      ", " ")
        found += [(page.name, END.split(line)[0].strip()) for line in LINE.findall(text)]
    return found


def fault(line: str) -> str | None:
    """Return the missing command or option as text. Values and arguments are not judged."""
    name = next(name for name in PROGRAMS if line.startswith(name))
    command, args = PROGRAMS[name], shlex.split(line.removeprefix(name))
    context: Any = typer.Context(command, info_name=name)
    while True:
        try:
            _, args, _ = command.make_parser(context).parse_args(args)
        except Exception as error:  # typer does not publish the class of usage errors
            return f"{type(error).__name__}: {error}"
        if not hasattr(command, "get_command") or not args:
            return None
        word, *args = args
        inner = command.get_command(context, word)
        if inner is None:
            return f"there is no command {word}"
        command, context = inner, typer.Context(inner, info_name=word, parent=context)


@pytest.mark.parametrize(("page", "line"), sorted(set(shown())))
def test_a_shown_command_exists_with_its_options(page: str, line: str) -> None:
    assert fault(line) is None


def test_the_columns_of_shown_tables_exist() -> None:
    source = "\n".join(path.read_text() for path in (ROOT / "app").rglob("*.py"))
    tables = {
        (page.name, tuple(re.split("  +", line.strip())))
        for page in PAGES
        for line in re.findall(r"^ {4}[A-Z0-9 ]+  [A-Z0-9 ]+$", page.read_text(), re.MULTILINE)
        if not line.startswith("    NAME ")  # a table of kubectl
    }
    assert len(tables) > 10
    unknown = [
        (page, column)
        for page, columns in sorted(tables)
        for column in columns
        if f'"{column}"' not in source
    ]
    assert unknown == []


def test_commands_are_found_and_judged() -> None:
    assert len(set(shown())) > 100
    assert fault("fairgate nothing") is not None
    assert fault("kubectl fairgate why POD --nothing") is not None
