"""The documentation pages: all links work, and lists are complete."""

from __future__ import annotations

import re
import tomllib
from itertools import chain
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from app.core.explain.reasons import Rule
from app.web import metrics
from tests.support.documented_lines import WRITTEN

ROOT = Path(__file__).parents[2]
PAGES = sorted(
    [
        *ROOT.glob("*.md"),
        *(ROOT / "docs").rglob("*.md"),
        *(ROOT / "charts").rglob("*.md"),
        *(ROOT / "certs").glob("*.md"),
    ]
)
OPENINGS = [
    page
    for page in PAGES
    if not page.name.startswith("0") and page not in (ROOT / "README.md", ROOT / "CHANGELOG.md")
]
"""Pages that begin with their readers and purpose: all but decisions, README and changelog."""

LINK = re.compile(r"\]\(([^)\s]+)\)")


def anchors(page: Path) -> set[str]:
    """Return the link anchors of the headings of a page."""
    heads = re.findall(r"^#+ (.*)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", head.lower()).replace(" ", "-") for head in heads}


def links(page: Path) -> list[str]:
    """Return the links of a page to other files of the repository, or within the page."""
    return [each for each in LINK.findall(page.read_text()) if "://" not in each]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_point_to_existing_files_and_anchors(page: Path) -> None:
    for link in links(page):
        name, _, anchor = link.partition("#")
        file = (page.parent / name).resolve() if name else page
        assert file.exists(), link
        assert not anchor or anchor in anchors(file), link


def test_documentation_has_more_than_fifty_links() -> None:
    assert sum(len(links(page)) for page in PAGES) > 50


def test_every_metric_is_on_the_operations_page() -> None:
    families = [each.name for each in metrics.REGISTRY.collect() if "fairgate" in each.name]
    page = (ROOT / "docs" / "operations.md").read_text()
    assert len(families) > 20
    assert [name for name in families if name not in page] == []


def test_every_rule_that_holds_a_pod_back_is_explained_to_users() -> None:
    page = (ROOT / "docs" / "users.md").read_text()
    assert [rule.value for rule in Rule if f"| `{rule.value}` |" not in page] == []


def test_each_decision_has_a_unique_number_in_its_heading() -> None:
    pages = sorted((ROOT / "docs" / "decisions").glob("[0-9]*.md"))
    numbers = [int(page.name[:4]) for page in pages]
    assert len(set(numbers)) == len(numbers)
    assert [page for page, n in zip(pages, numbers, strict=True) if not says(page, n)] == []


def test_each_decision_is_in_the_index() -> None:
    folder = ROOT / "docs" / "decisions"
    index = (folder / "README.md").read_text()
    listed = re.findall(r"^\| (\d+) \| \[[^\]]+\]\(([^)]+)\) \|", index, re.MULTILINE)
    assert listed == [(str(int(page.name[:4])), page.name) for page in sorted(folder.glob("0*.md"))]


def test_each_dependency_has_a_row() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = [each for name, each in project["optional-dependencies"].items() if name != "dev"]
    declared = [Requirement(each).name for each in chain(project["dependencies"], *extras)]
    page = (ROOT / "docs" / "dependencies.md").read_text()
    cells = re.findall(r"^\| ([^|]+?)(?: \([^|]*)? \|", page, re.MULTILINE)
    rows = {name for cell in cells for name in cell.split(", ")}
    assert len(declared) > 15
    assert [name for name in declared if name not in rows] == []


def says(page: Path, number: int) -> bool:
    """Return whether the heading of a decision begins with its number."""
    return page.read_text().startswith(f"# {number}. ")


def test_each_number_of_the_comparison_is_a_source_and_each_source_is_used() -> None:
    page = (ROOT / "docs" / "comparison.md").read_text()
    claims, _, sources = page.partition("## Sources")
    cited = set(re.findall(r"\[(\d+)\](?!\()", claims))
    listed = re.findall(r"^\| (\d+) \| .*\(https://", sources, re.MULTILINE)
    assert len(listed) > 20
    assert sorted(cited, key=int) == listed


def test_tests_that_a_page_names_exist() -> None:
    named = {
        (file, name)
        for page in PAGES
        for file, name in re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", page.read_text())
    }
    missing = [
        f"{file}::{name}"
        for file, name in sorted(named)
        if not re.search(rf"^(async )?def {name}\(", (ROOT / file).read_text(), re.MULTILINE)
    ]
    assert len(named) > 50
    assert missing == []


def test_files_that_a_page_names_exist() -> None:
    folders = "app|tests|charts|docs|loadtest|plugin|certs"
    named = {
        (page, file)
        for page in PAGES
        for file in re.findall(rf"`((?:{folders})/[\w./-]+)`", page.read_text())
    }
    assert len(named) > 100
    missing = [(page, file) for page, file in sorted(named) if not (ROOT / file).exists()]
    assert missing == []


@pytest.mark.parametrize("page", OPENINGS, ids=lambda page: str(page.relative_to(ROOT)))
def test_a_page_begins_with_its_readers_and_its_purpose(page: Path) -> None:
    _, _, text = page.read_text().partition("\n")
    opening = " ".join(text.strip().split("\n\n")[0].split())
    sentence = opening.partition(". ")[0]
    form = "write: This page is for READERS who want ..., or: This page is for READERS: it ..."
    assert re.match(r"This page is for [a-z]", sentence), form
    assert re.search(r": |\b(who|that|and want)\b", sentence), form


def test_prose_is_wrapped_at_120_characters() -> None:
    kept = ("|", "#", "    ", "<", "![")
    long = []
    for page in PAGES:
        written, _, _ = page.read_text().partition(WRITTEN)
        prose = re.sub(r"^ *```.*?^ *```", "", written, flags=re.MULTILINE | re.DOTALL)
        lines = [at for at in prose.split("\n") if len(at) > 120 and not at.startswith(kept)]
        long += [f"{page.relative_to(ROOT)}: {at}" for at in lines]
    assert long == []
