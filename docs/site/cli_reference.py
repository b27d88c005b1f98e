"""Writes the reference part of docs/cli.md from the two typer programs.

Run `python docs/site/cli_reference.py` after a change of a command or an option. A test fails if
the page differs.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "cli.md"
MARK = "<!-- The following part is written by docs/site/cli_reference.py. -->"
COMMON = "Connection"
"""A section that all commands of the plugin share. For the plugin it is printed once."""


def reference() -> str:
    """Return the reference of all commands of both programs."""
    from typer.main import get_command

    from app.cli.main import cli as fairgate
    from app.kubectl.cli import cli as plugin

    lines: list[str] = []
    for name, program in (("kubectl fairgate", plugin), ("fairgate", fairgate)):
        lines += [f"## {name}", ""]
        lines += _command(get_command(program), name, None)
        if program is plugin:
            lines += _common(get_command(plugin))
    return "\n".join(lines).rstrip() + "\n"


def page(text: str) -> str:
    """Return the page with its reference part replaced."""
    head, mark, _ = text.partition(MARK)
    return f"{head}{mark}\n\n{reference()}"


def _command(command: Any, name: str, parent: Any) -> Iterator[str]:
    import typer

    from app.terminal import help as parts

    ctx = typer.Context(command, info_name=name, parent=parent)
    if parent is not None:
        yield from (f"### {ctx.command_path}", "")
    for each in parts.paragraphs(command):
        yield from (each, "")
    yield from (f"    {parts.usage(command, ctx)}", "")
    for section in parts.sections(command, ctx):
        rows = [row for row in section.rows if not row[0].endswith("--help")]
        is_common = section.title == COMMON and ctx.command_path.startswith("kubectl ")
        if section.title == "Commands" or is_common or not rows:
            continue
        yield from ("| | |", "|---|---|")
        yield from (f"| `{_cell(option)}` | {_cell(text)} |" for option, text in rows)
        yield ""
    lines = parts.example_lines(command)
    if lines:
        yield from (*(f"    {each}" for each in lines), "")
    for inner, each in parts.subcommands(command, ctx):
        yield from _command(each, inner, ctx)


def _common(program: Any) -> Iterator[str]:
    """Yield the options that every command of the plugin has."""
    import typer

    from app.terminal import help as parts

    ctx = typer.Context(program)
    _, first = next(parts.subcommands(program, ctx))
    yield from ("### Options of every kubectl fairgate command", "")
    for section in parts.sections(first, typer.Context(first, parent=ctx)):
        if section.title == COMMON:
            yield from ("| | |", "|---|---|")
            yield from (f"| `{_cell(option)}` | {_cell(text)} |" for option, text in section.rows)
            yield ""


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("<", "&lt;")


if __name__ == "__main__":
    sys.path.insert(0, str(ROOT))
    PAGE.write_text(page(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
