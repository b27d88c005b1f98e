"""Packages the chart for `helm push`, and keeps the table of values in its README.

`python charts/build.py table` writes the table. `python charts/build.py package` writes it, lints
the chart, and packages it into dist/ with the version of pyproject.toml.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
CHART = ROOT / "charts" / "fairgate"
DIST = ROOT / "dist"
BEGIN, END = "<!-- table of values: begin -->", "<!-- table of values: end -->"
KEY = re.compile(r"( *)([A-Za-z][A-Za-z0-9]*):(?: +(.*))?$")
LINT_VALUES = ("image.repository=registry.example/fairgate", "redis.url=redis://redis:6379/0")
"""The values without a default."""


@dataclass(frozen=True, slots=True)
class ChartValue:
    """One row of the table. A map without a default of its own has an empty `default`."""

    name: str
    default: str
    description: str


def read_values(text: str) -> Iterator[ChartValue]:
    """Yield the values of a values.yaml in order. The comment above a key describes it."""
    path: list[tuple[int, str]] = []
    comment: list[str] = []
    lines = text.splitlines()
    for at, line in enumerate(lines):
        if line.strip().startswith("#"):
            comment.append(line.strip().lstrip("#").strip())
            continue
        found = KEY.fullmatch(line)
        if not found:
            comment = []
            continue
        indent, key, default = len(found[1]), found[2], found[3] or ""
        path = [each for each in path if each[0] < indent]
        path.append((indent, key))
        if not default and not _is_map_of_values(lines[at + 1 :]):
            default = "see values.yaml"
        name = ".".join(part for _, part in path)
        if default or comment:
            yield ChartValue(name, default, " ".join(comment))
        comment = []


def _is_map_of_values(below: list[str]) -> bool:
    """Return whether the first line without a comment has a key, not an item of a list."""
    first = next((line for line in below if not line.strip().startswith("#")), "")
    return KEY.fullmatch(first) is not None


def render_table(text: str) -> str:
    """Return the Markdown table of a values.yaml."""
    rows = ["| value | default | meaning |", "|---|---|---|"]
    for value in read_values(text):
        default = (
            value.default if value.default in ("", "see values.yaml") else f"`{value.default}`"
        )
        cells = (f"`{value.name}`", default, value.description)
        rows.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    return "\n".join(rows)


def with_table(readme: str, values: str) -> str:
    """Return the README with the table of these values."""
    before, _, rest = readme.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n{render_table(values)}\n{END}{after}"


def write_table() -> None:
    """Write the table into the README of the chart."""
    readme = CHART / "README.md"
    readme.write_text(with_table(readme.read_text(), (CHART / "values.yaml").read_text()))


def version() -> str:
    """Return the version of Fairgate."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    return str(project["version"])


def described(chart: str, release: str, source: str) -> str:
    """Return Chart.yaml with the version, and with the URL of the source if there is one."""
    for key in ("version", "appVersion"):
        chart = re.sub(rf"(?m)^{key}: .*$", f"{key}: {release}", chart)
    return chart + (f"home: {source}\nsources: [{source}]\n" if source else "")


def find_helm() -> str:
    """Return helm of the PATH, or the one that `make tools` builds. Raises SystemExit."""
    found = shutil.which("helm")
    if found:
        return found
    from app.core.errors import ToolMissing
    from app.devcluster import binaries

    try:
        return str(binaries.find().helm)
    except ToolMissing as error:
        raise SystemExit(
            f"There is no helm; install Helm 3.14 or newer, or run make tools: {error}"
        ) from error


def package(destination: Path, source: str = "") -> Path:
    """Lint the chart and package it. Return the package. Raises SystemExit if helm refuses."""
    helm, release = find_helm(), version()
    given = [part for value in LINT_VALUES for part in ("--set", value)]
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder) / CHART.name
        shutil.copytree(CHART, copy)
        shutil.copy(ROOT / "LICENSE", copy)
        (copy / "Chart.yaml").write_text(
            described((copy / "Chart.yaml").read_text(), release, source)
        )
        _run(helm, "lint", "--strict", "--namespace", "fairgate-system", *given, str(copy))
        _run(helm, "package", str(copy), "--destination", str(destination))
    return destination / f"{CHART.name}-{release}.tgz"


def _run(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{' '.join(command[:2])} failed:\n{done.stdout}{done.stderr}")


if __name__ == "__main__":
    if sys.argv[1:] not in (["table"], ["package"]):
        raise SystemExit("Usage: python charts/build.py table|package")
    write_table()
    if sys.argv[1] == "package":
        DIST.mkdir(exist_ok=True)
        print(package(DIST, os.environ.get("SOURCE", "")).relative_to(ROOT))
