"""The shell commands that the pages show, and a shell that runs them as a reader would."""

from __future__ import annotations

import re
import shlex
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache
from itertools import chain
from pathlib import Path

from app.devcluster.go_build import SOURCE

FOLDERS = (SOURCE, SOURCE / "docs", SOURCE / "certs", SOURCE / "charts" / "fairgate")
PAGES = {
    str(path.relative_to(SOURCE)): path
    for folder in FOLDERS
    for path in sorted(folder.glob("*.md"))
    if path.name != "CHANGELOG.md"
}
"""The pages that show commands, by their paths."""

WRITTEN = "<!-- The following part is written by "
"""The part of a page after this comment is made of the programs, so it does not count."""

PROGRAMS = (
    "apt-get|cosign|curl|docker|export|fairgate|for|git|grep|helm|kind|kubectl|make|oc|openssl|pip"
    "|python|sacctmgr|sudo"
)
COMMAND = re.compile(rf"\$ |(?:\.venv/bin/)?(?:{PROGRAMS}) |[A-Z_]+=\$\(")
BLOCK = re.compile(
    r"^(?:((?: {4}[^\n]*\n)(?: {4}[^\n]*\n|\n(?= {4}))*)"
    r"|```(?:sh|console)\n(.*?)```\n|```.*?```\n)",
    re.MULTILINE | re.DOTALL,
)
"""Indented lines, or a fence of the shell. The last part skips fences of other languages."""


@dataclass(frozen=True, slots=True)
class Command:
    """A command of a page, with the output that the page shows for it."""

    page: str
    text: str
    output: str = ""


def commands(page: str, after: str = "", start: str = "") -> tuple[Command, ...]:
    """Return the commands of a page that begin with `start`.

    With `after` they are those of the first block after this sentence. Spaces and line ends are
    equal. tests/meta/test_documented_runs.py finds the calls, so write the arguments as texts.
    """
    text = _text(page)
    found = re.search(r"\s+".join(map(re.escape, after.split())), text)
    assert found is not None, f"{page} does not have: {after}"
    blocks = (lines for begin, lines in _blocks(page) if begin >= found.end() and lines)
    lines = next(blocks) if after else tuple(chain(*blocks))
    return tuple(each for each in lines if each.text.startswith(start))


def run_documented(page: str, after: str, kubectl: Path | str, kubeconfig: Path) -> None:
    """Run the first commands that follow a sentence of a page."""
    program = f"{kubectl} --kubeconfig {shlex.quote(str(kubeconfig))}"
    lines = "\n".join(each.text for each in commands(page, after))
    script = f'kubectl() {{ {program} "$@"; }}\n{lines}'
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def _text(page: str) -> str:
    return PAGES[page].read_text().partition(WRITTEN)[0]


@cache
def _blocks(page: str) -> tuple[tuple[int, tuple[Command, ...]], ...]:
    """Return the blocks of a page: where each begins, and its commands."""
    found = BLOCK.finditer(_text(page))
    return tuple((each.start(), tuple(_commands(page, *each.groups()))) for each in found)


def _commands(page: str, indented: str | None, fenced: str | None) -> Iterator[Command]:
    """Yield the commands of a block. A fence without prompts is one command."""
    if fenced and not fenced.startswith("$ "):
        if COMMAND.match(fenced):
            yield Command(page, fenced)
        return
    found: Command | None = None
    lines = re.sub(r"^ {4}", "", indented or fenced or "", flags=re.MULTILINE)
    depth = len(lines) - len(lines.lstrip(" "))  # of a block in a list
    for line in (each[depth:] for each in lines.splitlines()):
        if COMMAND.match(line):
            if found:
                yield found
            found = Command(page, line.removeprefix("$ "), "")
        elif found and not found.output and _goes_on(found.text, line):
            found = replace(found, text=f"{found.text}\n{line}")
        elif found:
            found = replace(found, output=f"{found.output}{line}\n".lstrip("\n"))
    if found:
        yield found


def _goes_on(text: str, line: str) -> bool:
    """Return whether a line continues a command: it is open, or the line is indented."""
    return text.endswith("\\") or line.startswith("  ") or _is_open(text)


@cache
def _is_open(text: str) -> bool:
    done = subprocess.run(["bash", "-n"], input=text, capture_output=True, text=True, check=False)
    return done.returncode != 0
