"""Recovery times of Fairgate after faults, compared with the promised times.

Runs tests of tests/faults in a child process, and compares the times that they record.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from xml.etree import ElementTree

from app.devcluster.progress import ConsoleProgress
from loadtest.figures import Compared, Measure, Series, Target
from loadtest.load import BenchFailed

NAME = "recovery"
ROUNDS = 1
ROOT = Path(__file__).parent.parent
LAST = 1000


@dataclass(frozen=True, slots=True)
class Promise:
    """A promised time: the tests and the records that measure it, and the limit in seconds."""

    title: str
    file: str
    test: str
    noted: str
    most: float

    def is_in(self, test: str, noted: str) -> bool:
        """Return whether a record of a test belongs to this promise."""
        return test.startswith(self.test) and re.search(self.noted, noted) is not None


PROMISES = (
    Promise("webhooks stopped: held again", "f01_webhook_killed", "test_f02", "held again", 5),
    Promise("enforcement: back", "f05_enforcement_deleted", "test_f05_with", " back$", 2),
    Promise("enforcement: proven", "f05_enforcement_deleted", "test_f05_with", " proven$", 10),
    Promise("cut off: resumed", "f08_cut_off", "test_f08", "resumed after healing", 5),
    Promise("leader stops: another leads", "hand_over", "test_another_leads_soon[p", "leads", 2),
    Promise("leader killed: another leads", "hand_over", "test_another_leads_soon[k", "leads", 3),
)
"""The last limit is the lease duration in that test."""


def measure(progress: ConsoleProgress, pods: int | None, rounds: int | None) -> Measure:
    """Run the tests and return the times; `pods` is ignored. Raises BenchFailed."""
    noted: list[tuple[str, str, float]] = []
    for number in range(1, (rounds or ROUNDS) + 1):
        with progress.step(f"recovery, round {number} of {rounds or ROUNDS} (about 4 minutes)"):
            noted += _play()
    return Measure(
        NAME,
        "Recovery from faults",
        (
            "Times noted by tests/faults, from the fault's end (or, of a leader and of what was "
            "deleted, its beginning) until the promise holds; each time is judged.",
        ),
        (),
        tuple(_judge(promise, noted) for promise in PROMISES),
    )


def _play() -> list[tuple[str, str, float]]:
    """Run the tests once; return test, name and seconds of each record. Raises BenchFailed."""
    files = sorted({f"tests/faults/test_{promise.file}.py" for promise in PROMISES})
    with tempfile.TemporaryDirectory() as folder:
        told = Path(folder) / "noted.xml"
        # The newer report format has no properties of a test.
        report = (f"--junitxml={told}", "-o", "junit_family=xunit1")
        command = [sys.executable, "-m", "pytest", "-q", *report, *files]
        environment = {**os.environ, "FAIRGATE_TEST_NO_FORKS": "1"}  # a start has its imports
        done = subprocess.run(
            command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False
        )
        if done.returncode:
            raise BenchFailed(f"a fault test failed: {done.stdout[-LAST:].strip()}")
        return list(_read(told.read_text()))


def _read(report: str) -> Iterable[tuple[str, str, float]]:
    for case in ElementTree.fromstring(report).iter("testcase"):
        for entry in case.iter("property"):
            yield case.attrib["name"], entry.attrib["name"], float(entry.attrib["value"])


def _judge(promise: Promise, noted: list[tuple[str, str, float]]) -> Compared:
    values = tuple(seconds for test, what, seconds in noted if promise.is_in(test, what))
    if not values:
        raise BenchFailed(f"no test noted the time of: {promise.title}.")
    return Compared(Series(promise.title, "s", values), Target(most=promise.most), each=True)
