"""Runs the demo and the tests that depend on Kubernetes on each version, and records the results.

    python -m tests.versions [1.34 1.37 ...]

The results replace rows in the table of `docs/compatibility.md`. The exit
code is 1 if the demo or a test failed on any version.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as ET
from dataclasses import dataclass
from pathlib import Path

from app.core.errors import FairgateError
from app.devcluster import binaries
from app.devcluster.go_build import SOURCE
from app.devcluster.kubernetes_versions import VARIABLE, VERSIONS, KubernetesVersion, named
from app.devcluster.progress import ConsoleProgress

PAGE = SOURCE / "docs" / "compatibility.md"
BEGIN = "<!-- versions: begin; make test-versions writes the lines up to the end mark -->"
END = "<!-- versions: end -->"
HEAD = (
    "| Kubernetes | demo | passed | failed | skipped | date | known limits |",
    "|---|---|---|---|---|---|---|",
)

SELECTION = (
    "tests/contract/test_enforcement.py",
    "tests/contract/test_checkpoint_store.py",
    "tests/contract/test_leadership.py",
    "tests/contract/test_releaser.py",
    "tests/contract/test_tenants_pools.py",
    "tests/contract/test_secrets.py",
    "tests/e2e/attacks",
    "tests/e2e/test_device_claims.py",
    "tests/e2e/test_gang_kinds.py",
    "tests/e2e/test_gangs.py",
    "tests/e2e/test_gpu_nodes.py",
    "tests/e2e/test_webhook_protection.py",
    "tests/e2e/test_native_groups.py",
    "tests/e2e/test_preemption.py",
    "tests/e2e/test_release.py",
    "tests/e2e/test_static_policies.py",
)
"""Tests of enforcement, release, gangs, devices and attacks, and the contracts of the adapters to
the API server."""

PYTEST = ("-n", "3", "--no-loadscope-reorder")

NO_GROUPS = "no native pod groups"
SINCE_36 = "`gpuNodes.keepOthersOff` and `extendedResourceName` of a DeviceClass need 1.36"
LIMITS = {
    "1.34": f"{NO_GROUPS}; {SINCE_36}",
    "1.35": f"native pod groups have another format, which is not read; {SINCE_36}",
    "1.36": "none",
    "1.37": "none",
}


@dataclass(frozen=True, slots=True)
class VersionResult:
    """The results on one version of Kubernetes. `failed` includes errors of fixtures."""

    version: KubernetesVersion
    demo: bool
    passed: int
    failed: int
    skipped: int
    date: datetime.date

    @property
    def is_green(self) -> bool:
        """Return whether the demo and all tests passed."""
        return self.demo and self.passed > 0 and not self.failed

    def row(self) -> str:
        """Return the row of the table."""
        demo = "passed" if self.demo else "**failed**"
        failed = f"**{self.failed}**" if self.failed else "0"
        limits = LIMITS[self.version.minor]
        cells = (self.version.full, demo, self.passed, failed, self.skipped, self.date, limits)
        return f"| {' | '.join(map(str, cells))} |"


def counts(report: str) -> tuple[int, int, int]:
    """Return the passed, failed and skipped tests of a JUnit report."""
    passed = failed = skipped = 0
    for suite in ET.fromstring(report).iter("testsuite"):
        bad = int(suite.get("failures", 0)) + int(suite.get("errors", 0))
        failed += bad
        skipped += int(suite.get("skipped", 0))
        passed += int(suite.get("tests", 0)) - bad - int(suite.get("skipped", 0))
    return passed, failed, skipped


def with_rows(page: str, results: list[VersionResult]) -> str:
    """Return the page with these results. Raises ValueError if it lacks the marks."""
    head, begin, rest = page.partition(BEGIN)
    table, end, tail = rest.partition(END)
    if not begin or not end:
        raise ValueError(
            f"{PAGE} lacks the lines {BEGIN!r} and {END!r}; add them where the table is."
        )
    rows = {named(line.split("|")[1]).minor: line for line in table.splitlines() if _is_row(line)}
    rows |= {result.version.minor: result.row() for result in results}
    ordered = [rows[version.minor] for version in VERSIONS if version.minor in rows]
    return "\n".join((f"{head}{begin}", "", *HEAD, *ordered, "", f"{end}{tail}"))


def _is_row(line: str) -> bool:
    return line.startswith("| 1.")


def is_fair(demo: str) -> bool:
    """Return whether the result of the demo gives both teams the same GPUs, within a tenth."""
    try:
        used = json.loads(demo)["with"]
    except (ValueError, KeyError):
        return False
    return abs(used["greedy"] - used["modest"]) <= 0.1 * (used["greedy"] + used["modest"])


def run(version: KubernetesVersion) -> VersionResult:
    """Play the demo and run the tests on one version. Raises FairgateError if it is missing."""
    binaries.find(ConsoleProgress(), binaries.choose(version.minor))
    environment = {**os.environ, VARIABLE: version.minor, "REQUIRE_CLUSTER": "1"}
    with tempfile.TemporaryDirectory() as folder:
        demo = ["-m", "app", "dev", "demo", "--output", "json", "--dir", f"{folder}/demo"]
        played = _python(demo, environment, stdout=subprocess.PIPE)
        report = Path(folder) / "report.xml"
        tests = ["-m", "pytest", *PYTEST, f"--junitxml={report}", *SELECTION]
        _python(tests, environment)
        passed, failed, skipped = counts(report.read_text()) if report.exists() else (0, 1, 0)
    today = datetime.datetime.now(datetime.UTC).date()
    return VersionResult(version, is_fair(played.stdout), passed, failed, skipped, today)


def _python(
    arguments: list[str], environment: dict[str, str], stdout: int | None = None
) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, *arguments]
    return subprocess.run(
        command, cwd=SOURCE, env=environment, stdout=stdout, text=True, check=False
    )


def main() -> int:
    """Run the versions that the arguments name, or all; write each result as soon as it exists."""
    parser = argparse.ArgumentParser(description="Test Fairgate on several Kubernetes versions.")
    parser.add_argument("versions", nargs="*", help="such as 1.37; all by default")
    wanted = parser.parse_args().versions
    try:
        chosen = [named(each) for each in wanted] or list(VERSIONS)
        results = []
        for version in chosen:
            print(f"Kubernetes {version.full}", flush=True)
            results.append(run(version))
            PAGE.write_text(with_rows(PAGE.read_text(), results))
    except FairgateError as error:
        print(error, file=sys.stderr)
        return 2
    print("\n".join((*HEAD, *(result.row() for result in results))))
    return 0 if all(result.is_green for result in results) else 1


if __name__ == "__main__":
    sys.exit(main())
