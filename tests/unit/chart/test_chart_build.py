"""`make chart`: the package, its description, and the table of values in the README."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import yaml

from app.devcluster.binaries import Tools
from app.devcluster.fairgate_install import CHART
from tests.support.chart import Chart


@pytest.fixture(scope="module")
def build() -> Iterator[ModuleType]:
    """The script charts/build.py, which is not part of a package."""
    spec = importlib.util.spec_from_file_location("chart_build", CHART.parent / "build.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    yield module
    del sys.modules[spec.name]


def leaves(values: dict[str, Any], before: str = "") -> set[str]:
    """Return the names of all values that are no map, or an empty one."""
    found = set()
    for key, value in values.items():
        inner = isinstance(value, dict) and value
        found |= leaves(value, f"{before}{key}.") if inner else {before + key}
    return found


def test_the_readme_has_the_table_of_the_values(build: ModuleType) -> None:
    readme, values = CHART / "README.md", CHART / "values.yaml"
    fresh = build.with_table(readme.read_text(), values.read_text())
    assert readme.read_text() == fresh, "run make chart"


def test_every_value_is_in_the_table_and_described(build: ModuleType) -> None:
    text = (CHART / "values.yaml").read_text()
    rows = {each.name: each for each in build.read_values(text)}
    # A flow map such as {cpu: 100m} is one row.
    missing = [
        name
        for name in leaves(yaml.safe_load(text))
        if not any(name == row or name.startswith(row + ".") for row in rows if rows[row].default)
    ]
    assert missing == []
    for name, row in rows.items():
        parent = rows.get(name.rpartition(".")[0])
        assert row.description or (parent is not None and parent.description), name


def test_a_comment_describes_the_next_key_only(build: ModuleType) -> None:
    text = "# All.\na:\n  # One\n  # two.\n  b: 1\n  c: {d: 2}\nlist:\n  - x\n"
    assert [(row.name, row.default, row.description) for row in build.read_values(text)] == [
        ("a", "", "All."),
        ("a.b", "1", "One two."),
        ("a.c", "{d: 2}", ""),
        ("list", "see values.yaml", ""),
    ]


def test_the_chart_has_the_version_of_the_programs(build: ModuleType) -> None:
    described = yaml.safe_load((CHART / "Chart.yaml").read_text())
    assert described["version"] == described["appVersion"] == build.version()


def test_the_package_is_complete(
    build: ModuleType, cluster_tools: Tools, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(build, "find_helm", lambda: str(cluster_tools.helm))
    package = build.package(tmp_path, "https://source.example/fairgate")
    shown = Chart(cluster_tools, tmp_path).run("show", "chart", str(package))
    assert shown.returncode == 0, shown.stderr
    described = yaml.safe_load(shown.stdout)
    assert described["home"] == "https://source.example/fairgate"
    assert described["sources"] == ["https://source.example/fairgate"]
    assert described["kubeVersion"] == ">=1.30.0-0"
    assert described["annotations"]["artifacthub.io/license"] == "Apache-2.0"


def test_the_described_kinds_are_those_of_the_chart() -> None:
    annotations = yaml.safe_load((CHART / "Chart.yaml").read_text())["annotations"]
    described = {each["name"] for each in yaml.safe_load(annotations["artifacthub.io/crds"])}
    definitions = [path.read_text() for path in CHART.glob("templates/crd-*.yaml")]
    assert len(described) == len(definitions)
    for name in described:
        assert any(f"name: {name}\n" in text for text in definitions)
