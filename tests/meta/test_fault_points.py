"""The fault points of a test build, and that the product does not contain them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

import pytest

from tests.faults.points import POINTS, Points

ROOT = Path(__file__).parents[2]


def run(program: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", program],
        cwd=ROOT,
        env={"PATH": os.defpath, "PYTHONPATH": str(ROOT), **environment},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.parametrize("word", ["FAIRGATE_CRASH_AT", "FAIRGATE_STOP_AT", "FAIRGATE_TEST_"])
def test_product_knows_no_point_to_break_at(word: str) -> None:
    assert [path for path in sources() if word in path.read_text()] == []


def test_product_ignores_a_wrong_time_of_day_for_tests(tmp_path: Path) -> None:
    shift = tmp_path / "clock"
    shift.write_text("3600")
    asked = (
        "import time; a = time.time(); import app.wiring.process as p; print(p.now() - a * 1000)"
    )
    done = run(asked, FAIRGATE_TEST_CLOCK=str(shift))
    assert abs(float(done.stdout)) < 600_000, done.stderr


def test_test_build_obeys_a_wrong_time_of_day(tmp_path: Path) -> None:
    shift = tmp_path / "clock"
    shift.write_text("3600")
    asked = "import time; a = time.time(); import tests.faults.fairgate; print(time.time() - a)"
    done = run(asked, FAIRGATE_TEST_CLOCK=str(shift))
    assert 3000 < float(done.stdout) < 4200, done.stderr


def test_process_crashes_at_the_nth_call_and_not_before() -> None:
    asked = "import os; from tests.faults.points import Points; p = Points(os.environ)\n"
    asked += "for n in (1, 2, 3): print(n, flush=True); p.reached('after_patch')"
    done = run(asked, FAIRGATE_CRASH_AT="after_patch:2")
    assert done.returncode == -signal.SIGKILL, done.stderr
    assert done.stdout.split() == ["1", "2"]


def test_unknown_point_is_an_error() -> None:
    with pytest.raises(AssertionError, match="no point nowhere"):
        Points({"FAIRGATE_CRASH_AT": "nowhere"})


def test_no_point_is_reached_by_other_names() -> None:
    points = Points({})
    for point in POINTS:
        points.reached(point)


def sources() -> Iterable[Path]:
    return [*(ROOT / "app").rglob("*.py"), *(ROOT / "charts").rglob("*.yaml")]
