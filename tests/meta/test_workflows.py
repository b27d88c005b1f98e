"""The GitHub workflows: pinned actions, least rights, and no logic outside the Makefile."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from app.devcluster.kubernetes_versions import VERSIONS

ROOT = Path(__file__).parents[2]
FILES = sorted((ROOT / ".github" / "workflows").iterdir())
USES = re.compile(
    r"^\s*(?:- )?uses: (?P<action>[\w.-]+/[\w./-]+)@(?P<commit>\S+)(?P<rest>.*)$", re.M
)
PINNED = re.compile(r"[0-9a-f]{40}")
VERSION = re.compile(r" # v\d+\.\d+\.\d+")
MAKE = re.compile(r"make( [a-z][a-z-]*)+")

SETUP_LINES: frozenset[str] = frozenset()
"""Lines of `run` that are not a make target. Empty: actions do the set-up."""

READ = {"contents": "read"}
PUSH = {"contents": "read", "packages": "write", "id-token": "write"}
MORE_RIGHTS = {
    ("release.yml", "image"): PUSH,
    ("release.yml", "chart"): PUSH,
    ("release.yml", "release"): {"contents": "write"},
}
"""The jobs with more than the right to read the source."""


def jobs(file: Path) -> dict[str, dict[str, Any]]:
    found = yaml.safe_load(file.read_text())["jobs"]
    assert isinstance(found, dict)
    return found


def steps(file: Path) -> Iterator[dict[str, Any]]:
    for job in jobs(file).values():
        yield from job["steps"]


def targets() -> set[str]:
    """Return the targets of the Makefile."""
    return set(re.findall(r"^([a-z][a-z-]*):", (ROOT / "Makefile").read_text(), re.M))


def unpinned(text: str) -> list[str]:
    """Return the actions of a workflow that are not pinned by commit and version comment."""
    return [
        match["action"]
        for match in USES.finditer(text)
        if not PINNED.fullmatch(match["commit"]) or not VERSION.fullmatch(match["rest"])
    ]


def foreign(line: str, known: set[str]) -> list[str]:
    """Return the parts of a line that are not targets of the Makefile."""
    if line in SETUP_LINES:
        return []
    if not MAKE.fullmatch(line):
        return [line]
    return [target for target in line.split()[1:] if target not in known]


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.name)
class TestWorkflow:
    def test_every_action_is_pinned_by_commit_with_its_version(self, file: Path) -> None:
        text = file.read_text()
        used = [step["uses"] for step in steps(file) if "uses" in step]
        assert used
        assert len(USES.findall(text)) == len(used)
        assert unpinned(text) == []

    def test_jobs_have_only_the_rights_that_they_need(self, file: Path) -> None:
        assert yaml.safe_load(file.read_text())["permissions"] == READ
        for name, job in jobs(file).items():
            assert job.get("permissions", READ) == MORE_RIGHTS.get((file.name, name), READ), name

    def test_every_command_is_a_make_target(self, file: Path) -> None:
        lines = [line for step in steps(file) for line in step.get("run", "").splitlines()]
        assert lines
        assert [bad for line in lines for bad in foreign(line, targets())] == []

    def test_runs_are_bounded(self, file: Path) -> None:
        assert yaml.safe_load(file.read_text())["concurrency"]["group"]
        for name, job in jobs(file).items():
            assert 0 < job["timeout-minutes"] <= 180, name

    def test_checkout_does_not_persist_the_repository_token(self, file: Path) -> None:
        checkouts = [s for s in steps(file) if s.get("uses", "").startswith("actions/checkout@")]
        assert len(checkouts) == len(jobs(file))
        assert all(step["with"]["persist-credentials"] is False for step in checkouts)


def test_make_help_names_each_target() -> None:
    command = ["make", "--silent", "--no-print-directory", "help"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    lines = re.findall(r"^make ((?:[a-z-]+, )*[a-z-]+)\b", done.stdout, re.M)
    listed = {target for line in lines for target in line.split(", ")}
    assert sorted(targets() - listed) == ["help"]


def test_the_jobs_with_more_rights_exist() -> None:
    assert {(file.name, name) for file in FILES for name in jobs(file)} >= set(MORE_RIGHTS)


def test_an_action_has_one_version_in_all_workflows() -> None:
    pins: dict[str, set[tuple[str, str]]] = {}
    for file in FILES:
        for match in USES.finditer(file.read_text()):
            pins.setdefault(match["action"], set()).add((match["commit"], match["rest"]))
    assert [action for action, found in pins.items() if len(found) > 1] == []


def test_the_nightly_tests_run_on_every_version() -> None:
    matrix = jobs(ROOT / ".github/workflows/nightly.yml")["versions"]["strategy"]["matrix"]
    assert matrix["kubernetes"] == [version.minor for version in VERSIONS]


COMMIT = "0123456789abcdef0123456789abcdef01234567"


@pytest.mark.parametrize(
    "reference", ["v4", "main", f"{COMMIT}", f"{COMMIT} # v4", "0123456 # v4.0.0"]
)
def test_an_action_that_could_change_is_found(reference: str) -> None:
    assert unpinned(f"    - uses: owner/name@{reference}\n") == ["owner/name"]
    assert unpinned(f"    - uses: owner/name@{COMMIT} # v4.0.0\n") == []


@pytest.mark.parametrize(
    ("line", "bad"),
    [
        ("make check", []),
        ("make check test-unit", []),
        ("make no-such-target", ["no-such-target"]),
        ("make check; curl example.com", ["make check; curl example.com"]),
        ("make ${{ github.event.inputs.target }}", ["make ${{ github.event.inputs.target }}"]),
        ("pip install .", ["pip install ."]),
    ],
)
def test_a_command_outside_the_makefile_is_found(line: str, bad: list[str]) -> None:
    assert foreign(line, {"check", "test-unit"}) == bad
