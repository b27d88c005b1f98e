"""The version is the same in all files, the changelog has a section for it, and make changes it."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tomllib
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[2]
CHANGELOG = (ROOT / "CHANGELOG.md").read_text()
KINDS = ("Added", "Changed", "Deprecated", "Removed", "Fixed", "Security")


def project() -> dict[str, object]:
    found = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert isinstance(found, dict)
    return found


def sections() -> list[str]:
    return re.findall(r"^## (.*)$", CHANGELOG, re.MULTILINE)


def test_package_and_chart_have_one_version() -> None:
    chart = yaml.safe_load((ROOT / "charts" / "fairgate" / "Chart.yaml").read_text())
    assert [chart["version"], chart["appVersion"]] == [project()["version"]] * 2


def test_the_changelog_begins_with_unreleased_and_the_newest_version() -> None:
    first, newest = sections()[:2]
    assert first == "[Unreleased]"
    assert re.fullmatch(r"\[(\S+)\] - \d{4}-\d\d-\d\d", newest)
    assert newest.startswith(f"[{project()['version']}]")


def test_changelog_sections_have_one_of_six_kinds() -> None:
    kinds = re.findall(r"^### (\w+)", CHANGELOG, re.MULTILINE)
    assert kinds
    assert set(kinds) <= set(KINDS)


def test_licence_file_matches_the_licence_of_the_package() -> None:
    assert project()["license"] == "Apache-2.0"
    text = (ROOT / "LICENSE").read_text()
    assert "Apache License" in text
    assert "Version 2.0, January 2004" in text
    assert "END OF TERMS AND CONDITIONS" in text


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """The files that a release changes, and the Makefile."""
    names = ("Makefile", "pyproject.toml", "CHANGELOG.md", "README.md", "docs/install.md")
    for name in (*names, "charts/fairgate/Chart.yaml"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / name)
    return tmp_path


def make(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run make as a user would, without the variables of a release workflow."""
    clean = {name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ}
    command = ["make", "--no-print-directory", *arguments]
    return subprocess.run(
        command, cwd=folder, env=clean, capture_output=True, text=True, check=False
    )


def test_make_version_changes_every_file(copy: Path) -> None:
    assert make(copy, "version", "NEW=9.8.7").returncode == 0
    chart = yaml.safe_load((copy / "charts/fairgate/Chart.yaml").read_text())
    package = tomllib.loads((copy / "pyproject.toml").read_text())["project"]
    assert [chart["version"], chart["appVersion"], package["version"]] == ["9.8.7"] * 3
    headings = re.findall(r"^## (\S+)", (copy / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert headings[:3] == ["[Unreleased]", "[9.8.7]", f"[{project()['version']}]"]
    assert images((copy / "README.md").read_text()) == {"9.8.7"}
    assert images((copy / "docs/install.md").read_text()) == {"9.8.7"}
    assert make(copy, "release-check", "TAG=v9.8.7").returncode == 0


def images(text: str) -> set[str]:
    """Return the versions of Fairgate's images and archives that a page names."""
    return set(re.findall(r"fairgate[:-](\d+\.\d+\.\d+)", text))


def test_pages_name_images_of_this_version() -> None:
    pages = [ROOT / "README.md", *(ROOT / "docs").glob("*.md")]
    named = {str(page.relative_to(ROOT)): images(page.read_text()) for page in pages}
    wrong = {
        page: versions for page, versions in named.items() if versions - {project()["version"]}
    }
    assert wrong == {}
    assert named["README.md"]


def test_release_notes_are_the_section_of_the_version(copy: Path) -> None:
    (copy / "CHANGELOG.md").write_text(
        "# Changelog\n\n## [Unreleased]\n\n* next\n\n## [9.8.7] - 2026-01-02\n\n* this\n\n"
        "## [9.8.6] - 2026-01-01\n\n* last\n"
    )
    pyproject = copy / "pyproject.toml"
    pyproject.write_text(pyproject.read_text().replace(str(project()["version"]), "9.8.7", 1))
    assert make(copy, "release-notes").stdout.split() == ["*", "this"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("version",), "needs NEW"),
        (("version", "NEW=v1"), "needs NEW"),
        (("release-check", "TAG=v0.0.0"), "the version of pyproject.toml needs v"),
        (("release-check",), "set TAG"),
        (("publish-image",), "make publish-image needs REGISTRY"),
    ],
)
def test_a_wrong_release_command_is_refused_with_a_sentence(
    copy: Path, arguments: tuple[str, ...], message: str
) -> None:
    done = make(copy, *arguments)
    assert done.returncode != 0
    assert message in done.stderr
