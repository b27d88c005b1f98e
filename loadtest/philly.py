"""Duration of `fairgate replay` for the whole log of a real cluster."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

from app.devcluster.progress import ConsoleProgress
from loadtest.figures import Compared, Measure, Series, Target
from loadtest.load import BenchFailed

NAME = "replay"
TRACES = Path(os.environ.get("CLUSTER_LOGS") or Path(__file__).parents[2] / "shared" / "traces")
"""The folder of the logs of real clusters: $CLUSTER_LOGS, or one beside the project."""
GPUS = 1600
ROUNDS = 3
MOST_SECONDS = Target(most=10)


def traces() -> Path:
    """Return the folder of logs. Raises BenchFailed if it is not there."""
    if not TRACES.exists():
        raise BenchFailed(
            f"There is no folder {TRACES} with the logs of real clusters; name it in the variable "
            "CLUSTER_LOGS, or choose measures that do without them, by --only."
        )
    return TRACES


def log() -> Path:
    """Return the Philly log. Raises BenchFailed if it is not there."""
    return traces() / "philly_2017.csv.gz"


def measure(progress: ConsoleProgress, decisions: int | None, rounds: int | None) -> Measure:
    """Replay the Philly log, including the start of the command and its report."""
    rounds = rounds or ROUNDS
    command = [sys.executable, "-m", "app", "replay", str(log()), "--gpus", str(GPUS), "--flat"]
    taken = []
    for number in range(1, rounds + 1):
        with progress.step(f"replay, round {number} of {rounds}"):
            began = time.perf_counter()
            subprocess.run([*command, "--output", "json"], check=True, stdout=subprocess.DEVNULL)
            taken.append(time.perf_counter() - began)
    return Measure(
        NAME,
        "Replay of the whole Philly log",
        (f"`fairgate replay LOG --gpus {GPUS} --flat`, 10,897 jobs, one core.",),
        (),
        (Compared(Series("whole replay", "s", tuple(taken)), MOST_SECONDS),),
    )
