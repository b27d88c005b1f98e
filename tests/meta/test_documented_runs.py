"""A test runs each shell command of the pages, or commands_not_run.txt says why none can."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

from tests.support.documented_lines import PAGES, Command, commands

ROOT = Path(__file__).parents[2]
READERS = ("commands", "run_documented", "documented")
"""Functions that take commands from a page: the page first, then a sentence before the block."""

NOT_RUN = [
    line
    for line in (ROOT / "tests/meta/commands_not_run.txt").read_text().splitlines()
    if line and not line.startswith("# ")
]
"""Commands that no test runs, each as one line without comments. The file has the reasons."""


def taken() -> Iterator[Command]:
    """Yield the commands that tests take from pages."""
    for file in sorted((ROOT / "tests").rglob("*.py")):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.Call) and _name(node.func) in READERS:
                words = [each.value for each in node.args if isinstance(each, ast.Constant)]
                if words and str(words[0]).endswith(".md"):
                    yield from commands(*map(str, words))


def _name(function: ast.expr) -> str:
    return getattr(function, "attr", None) or getattr(function, "id", "")


def one_line(command: Command) -> str:
    lines = [line.partition(" # ")[0].rstrip(" \\") for line in command.text.splitlines()]
    return " ".join(" ".join(lines).split())


def test_each_command_is_run_or_the_list_has_a_reason() -> None:
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
