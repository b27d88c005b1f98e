"""docs/cli.md has the reference of the commands as they are."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

ROOT = Path(__file__).parents[2]


def reference() -> ModuleType:
    spec = importlib.util.spec_from_file_location(
        "cli_reference", ROOT / "docs/site/cli_reference.py"
    )
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_page_is_equal_to_the_help_of_all_commands() -> None:
    script = reference()
    text = (ROOT / "docs" / "cli.md").read_text(encoding="utf-8")
    assert text == script.page(text), "run: python docs/site/cli_reference.py"


def test_every_command_has_an_example_and_a_description() -> None:
    parts = reference().reference().split("\n### ")[1:]
    parts = [part for part in parts if not part.startswith("Options of")]
    names = [part.partition("\n")[0] for part in parts]
    assert {"kubectl fairgate why", "kubectl fairgate weights set", "fairgate dev up"} <= {*names}
    groups = {
        "fairgate dev",
        "fairgate dev node",
        "fairgate audit",
        "fairgate nodes",
        "fairgate convert",
    }
    bare = [
        name
        for name, part in zip(names, parts, strict=True)
        if name not in groups and name not in " ".join(examples_of(part))
    ]
    assert bare == []


def examples_of(part: str) -> list[str]:
    """Return the lines of code after the usage."""
    lines = [line for line in part.splitlines() if line.startswith("    ")]
    return lines[1:]
