"""Help as plain text: each example on its own line, no type of a switch, no broken word."""

from __future__ import annotations

from typing import Annotated, Any

import pytest
import typer
from typer.models import CommandInfo
from typer.testing import CliRunner

from app.terminal.help import CommandLine, examples

program = CommandLine(name="tool", help="Does things.\n\nIt does them well.")


@program.callback()
def root() -> None:
    """Return nothing."""


@program.command(epilog=examples("tool show a-very-long-name | jq '.items[] | .name'", "tool show"))
def show(
    name: Annotated[str | None, typer.Argument(metavar="NAME", help="The thing.")] = None,
    limit: Annotated[int, typer.Option(help="Most rows.")] = 20,
    loud: Annotated[bool, typer.Option("--loud", "-l", help="Shout.")] = False,
    url: Annotated[str, typer.Option(envvar="TOOL_URL", help="Address.")] = "",
) -> None:
    """Show a thing with a description that is longer than a line of the terminal is wide, so wrap.

    A second paragraph.
    """


@program.command()
def hide() -> None:
    """Hide it."""


def told(*words: str) -> str:
    done = CliRunner().invoke(program, words, prog_name="tool")
    assert done.exit_code == 0
    return done.output


def test_the_help_of_a_command_has_all_parts() -> None:
    assert (
        told("show", "--help")
        == """\
Show a thing with a description that is longer than a line of the terminal is
wide, so wrap.

A second paragraph.

Usage: tool show [OPTIONS] [NAME]

Arguments:
  [NAME]  The thing.

Options:
  --limit LIMIT  Most rows. (default: 20)
  -l, --loud     Shout.
  --url URL      Address. (variable: TOOL_URL)
  -h, --help     Show this message and exit.

Examples:
  tool show a-very-long-name | jq '.items[] | .name'
  tool show
"""
    )


def test_the_help_of_a_group_lists_its_commands() -> None:
    shown = told("-h")
    assert shown.startswith("Does things.\n\nIt does them well.\n\nUsage: tool [OPTIONS] COMMAND\n")
    assert "Commands:\n  show  Show a thing" in shown


def test_only_the_named_command_is_built(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    built: list[str] = []
    build = typer.main.get_command_from_info

    def noted(command_info: CommandInfo, **settings: Any) -> Any:
        built.append(getattr(command_info.callback, "__name__", ""))
        return build(command_info, **settings)

    monkeypatch.setattr(typer.main, "get_command_from_info", noted)
    program(["hide"], standalone_mode=False)
    assert built == ["hide"]
    with pytest.raises(Exception, match=r"No such command 'hidden'\. Commands: "):
        program(["hidden"], standalone_mode=False)
    program(["--help"], standalone_mode=False)
    assert "show" in capsys.readouterr().out
