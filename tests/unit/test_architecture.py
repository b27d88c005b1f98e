"""The directions between rooms hold, and the contracts that guard them can fail."""

from __future__ import annotations

import ast
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def lint(folder: Path) -> subprocess.CompletedProcess[str]:
    program = "import sys; sys.path.insert(0, '.'); from importlinter.cli import lint_imports; "
    program += "sys.exit(lint_imports(no_cache=True))"
    return subprocess.run(
        [sys.executable, "-c", program], cwd=folder, capture_output=True, text=True, check=False
    )


def copy(tmp_path: Path) -> Path:
    ignore = shutil.ignore_patterns("__pycache__")
    shutil.copytree(ROOT / "app", tmp_path / "app", ignore=ignore)
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    return tmp_path


def test_the_contracts_hold(tmp_path: Path) -> None:
    result = lint(copy(tmp_path))
    assert result.returncode == 0, result.stdout + result.stderr


@pytest.mark.parametrize(
    ("module", "line", "contract"),
    [
        ("core/engine.py", "import asyncio", "The core"),
        ("core/fair/shares.py", "import time", "The core"),
        ("core/admission/gate.py", "import msgspec", "The core"),
        ("core/model.py", "import app.ports", "The core"),
        ("kube/client.py", "import app.store", "Rooms"),
        ("control/loop.py", "import app.kube.client", "Rooms"),
        ("web/ops.py", "import app.control.loop", "Rooms"),
        ("store/__init__.py", "import app.wiring", "Rooms"),
        ("ports.py", "import app.web", "Rooms"),
        ("plugin/door.py", "import app.web.problems", "The plugin"),
    ],
)
def test_a_forbidden_import_fails(tmp_path: Path, module: str, line: str, contract: str) -> None:
    folder = copy(tmp_path)
    path = folder / "app" / module
    path.write_text(path.read_text() + f"\n{line}  # noqa\n")
    result = lint(folder)
    assert result.returncode == 1
    broken = [row for row in result.stdout.splitlines() if row.endswith("BROKEN")]
    assert any(row.startswith(contract) for row in broken)


ALLOWED = {
    "__future__", "app", "bisect", "collections", "dataclasses", "enum", "fractions",
    "functools", "heapq", "itertools", "math", "operator",
    "hashlib", "json", "re",
    "sortedcontainers", "types", "typing",
}  # fmt: skip


def test_the_core_imports_only_values_and_sortedcontainers() -> None:
    """A contract can only forbid what it names; this names what is allowed."""
    imported = set()
    for path in (ROOT / "app" / "core").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                imported |= {alias.name.partition(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom):
                imported.add((node.module or "").partition(".")[0])
    assert imported <= ALLOWED
