"""Help as plain text: each example on its own line, no type of a switch, no broken word."""

from __future__ import annotations

from typing import Annotated, Any

import pytest
import typer
from typer.models import CommandInfo
from typer.testing import CliRunner

from app.core.errors import InvalidInput
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


more = CommandLine()
program.add_typer(more, name="more")


@more.callback()
def group() -> None:
    """Do more."""


@more.command()
def cut(loud: Annotated[bool, typer.Option("--loud", "-l")] = False) -> None:
    """Cut it."""


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


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (("--url", "http://me:secret@host", "show"), "tool show [NAME] --url URL"),
        (("--url=http://me:secret@host", "-l", "show", "x"), "tool show [NAME] --url URL -l"),
        (("--limit", "show", "show"), "tool show [NAME] --limit LIMIT"),
        (("-l", "more", "cut"), "tool more cut -l"),
    ],
)
def test_options_before_the_command_are_refused_with_the_right_order(
    words: tuple[str, ...], line: str
) -> None:
    with pytest.raises(InvalidInput) as refusal:
        program([*words], prog_name="tool", standalone_mode=False)
    assert str(refusal.value) == f"Options follow the command: {line}"


@pytest.mark.parametrize("words", [("-l", "hide"), ("--limit", "show"), ("--none", "show")])
def test_options_that_the_command_does_not_have_are_not_moved(words: tuple[str, ...]) -> None:
    with pytest.raises(Exception, match="No such option"):
        program([*words], prog_name="tool", standalone_mode=False)
