"""A test reads each shell command of the pages, or commands_not_run.txt has a reason.

This module checks that a test reads the command, and does not check that the test runs it.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

from tests.support.documented_lines import PAGES, Command, commands

ROOT = Path(__file__).parents[2]
READERS = {"commands": 3, "run_documented": 2, "documented": 2}
"""Functions that take commands from a page, and how many arguments choose the commands."""

NOT_RUN = [
    line
    for line in (ROOT / "tests/meta/commands_not_run.txt").read_text().splitlines()
    if line and not line.startswith("# ")
]
"""Commands that no test runs, each as one line without comments. The file has the reasons."""


def taken() -> Iterator[Command]:
    """Yield the commands that tests take from pages. The tests in this file do not count."""
    for file in sorted({*(ROOT / "tests").rglob("*.py")} - {Path(__file__)}):
        for call in _calls(ast.parse(file.read_text())):
            choice = call.args[: READERS[_name(call.func)]]
            words = [each.value for each in choice if isinstance(each, ast.Constant)]
            is_plain = len(words) == len(choice) > 0 and not call.keywords
            assert is_plain, f"{file}:{call.lineno}: choose the commands by texts, without keywords"
            found = commands(*map(str, words))
            assert found, f"{file}:{call.lineno}: the page has no such command"
            yield from found


def _calls(node: ast.AST) -> Iterator[ast.Call]:
    """Yield the calls of readers, except where one reader calls another."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.FunctionDef) and child.name in READERS:
            continue
        if isinstance(child, ast.Call) and _name(child.func) in READERS:
            yield child
        yield from _calls(child)


def _name(function: ast.expr) -> str:
    return getattr(function, "attr", None) or getattr(function, "id", "")


def one_line(command: Command) -> str:
    lines = [line.partition(" # ")[0].rstrip(" \\") for line in command.text.splitlines()]
    return " ".join(" ".join(lines).split())


def test_each_command_is_read_by_a_test_or_the_list_has_a_reason() -> None:
    shown = {each for page in PAGES for each in commands(page)}
    untested = {one_line(each) for each in shown - set(taken())}
    assert len(NOT_RUN) == len(set(NOT_RUN)), "a line is there twice"
    assert sorted(untested - set(NOT_RUN)) == [], "no test runs them"
    assert sorted(set(NOT_RUN) - untested) == [], "they are shown no longer, or a test runs them"


def test_the_reader_of_pages_finds_commands_and_outputs() -> None:
    [first, *_] = commands("docs/quickstart.md", "**See the effect**")
    assert first.text == "kubectl fairgate shares vision"
    assert first.output.startswith("USER   WEIGHT")
    several = commands("docs/install.md", "Let two teams ask for more")
    assert [each.text.split()[0] for each in several] == ["for", "kubectl"]
    assert commands("docs/install.md", "Let two teams ask for more", "kubectl") == several[1:]
