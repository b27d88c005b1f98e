"""The import directions between packages are followed, and the contracts can fail."""

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
        ("core/engine.py", "import asyncio", "Core is pure"),
        ("core/fairshare/sort_key.py", "import time", "Core is pure"),
        ("core/admission/hold.py", "import msgspec", "Core is pure"),
        ("core/model.py", "import app.ports.cluster", "Core is pure"),
        ("kube/client.py", "import app.store", "Layers of the application"),
        ("controller/engine_loop.py", "import app.kube.client", "Layers of the application"),
        ("web/health.py", "import app.controller.engine_loop", "Layers of the application"),
        ("store/__init__.py", "import app.wiring.serve", "Layers of the application"),
        ("ports/cluster.py", "import app.web", "Layers of the application"),
        ("kubectl/client.py", "import app.web.api.problems", "The kubectl plugin"),
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
    "difflib", "hashlib", "json", "re",
    "sortedcontainers", "types", "typing", "weakref",
}  # fmt: skip


def test_the_core_imports_only_values_and_sortedcontainers() -> None:
    """An import contract can only forbid named modules. This test lists the allowed ones."""
    imported = set()
    for path in (ROOT / "app" / "core").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                imported |= {alias.name.partition(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom):
                imported.add((node.module or "").partition(".")[0])
    assert imported <= ALLOWED
