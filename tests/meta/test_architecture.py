"""The import directions between packages are followed, and the contracts can fail."""

from __future__ import annotations

import ast
import re
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


FORBIDDEN = (
    ("app.core.engine", "asyncio", "Core is pure"),
    ("app.core.fairshare.sort_key", "time", "Core is pure"),
    ("app.core.admission.hold", "msgspec", "Core is pure"),
    ("app.core.model", "app.ports.cluster", "Core is pure"),
    ("app.kube.client", "app.store", "Layers of the application"),
    ("app.controller.engine_loop", "app.kube.client", "Layers of the application"),
    ("app.web.health", "app.controller.engine_loop", "Layers of the application"),
    ("app.store", "app.wiring.serve", "Layers of the application"),
    ("app.ports.cluster", "app.web", "Layers of the application"),
    ("app.kubectl.client", "app.web.api.problems", "The kubectl plugin imports no server code"),
)
"""Modules, imports that they must not have, and the contracts that forbid these."""


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Return the report about a copy with all forbidden imports."""
    folder = copy(tmp_path_factory.mktemp("broken"))
    for module, imported, _ in FORBIDDEN:
        path = folder.joinpath(*module.split("."))
        path = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
        path.write_text(f"{path.read_text()}\nimport {imported}  # noqa\n")
    result = lint(folder)
    assert result.returncode == 1
    return result.stdout


@pytest.mark.parametrize(("module", "imported", "contract"), FORBIDDEN)
def test_a_forbidden_import_fails(report: str, module: str, imported: str, contract: str) -> None:
    _, _, found = report.partition(f"\n{contract}\n{'-' * len(contract)}\n")
    found, _, _ = found.partition("\n---")  # the line below the name of the next contract
    assert re.search(rf"^- +{module} -> {imported} \(l", found, re.MULTILINE)


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
