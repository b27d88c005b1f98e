"""Decisions per second of the engine, next to an older version of Fairgate in another folder.

Each version runs in a process of its own. They take turns of a few hundred decisions, so that other
load on the machine affects both alike. The figure is CPU time, not elapsed time.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from app.core.errors import InvalidInput
from app.devcluster.progress import ConsoleProgress
from loadtest.figures import Measure, Target, columns, rate, ratio, turns

NAME = "decisions-against"
PENDING = 10_000
TURN = 320
"""Decisions in one turn."""

ROUNDS = 40
LEAST_RATIO = Target(least=1.6)
HERE = Path(__file__).parents[1]

WORKER = f"""
import gc, sys, time
from loadtest.crowd import Crowd
crowd = Crowd({PENDING})
crowd.churn(1000)
gc.collect()
gc.freeze()
print("ready", flush=True)
for line in sys.stdin:
    began = time.process_time()
    crowd.churn(int(line))
    print(time.process_time() - began, flush=True)
"""

ARMS = {"older": "the other folder", "newer": "this folder"}


def measure(progress: ConsoleProgress, folder: Path, rounds: int | None) -> Measure:
    """Compare this version with the one in `folder`, a work tree of the repository."""
    if not (folder / "loadtest" / "crowd.py").is_file():
        raise InvalidInput(f"{folder} is no work tree of Fairgate with loadtest/crowd.py.")
    rounds = rounds or ROUNDS
    taken: dict[str, list[float]] = {arm: [] for arm in ARMS}
    with ExitStack() as stack:
        with progress.step("decisions: both versions fill their queues"):
            folders = {"older": folder.resolve(), "newer": HERE}
            workers = {arm: stack.enter_context(_worker(each)) for arm, each in folders.items()}
            for worker in workers.values():
                _answer(worker)
        with progress.step(f"decisions: {rounds} rounds"):
            for _, arm in turns(list(ARMS), rounds):
                assert workers[arm].stdin is not None
                print(TURN, file=workers[arm].stdin, flush=True)
                taken[arm].append(rate(TURN, float(_answer(workers[arm]))))
    figures = columns(ARMS, "decisions/s of CPU time", taken)
    return Measure(
        NAME,
        "Decisions of the engine, next to another version",
        (f"{PENDING:,} pending; {rounds} rounds of {TURN} decisions in turns; {folder}.",),
        tuple(figures.values()),
        (ratio("this / other", figures["newer"], figures["older"], LEAST_RATIO),),
    )


@contextmanager
def _worker(folder: Path) -> Iterator[subprocess.Popen[str]]:
    """Run the load with the code of a folder and the packages of this environment."""
    environment = {**os.environ, "PYTHONPATH": str(folder), "PYTHONHASHSEED": "0"}
    with subprocess.Popen(
        [sys.executable, "-c", WORKER],
        cwd=folder,
        env=environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as worker:
        try:
            yield worker
        finally:
            worker.kill()


def _answer(worker: subprocess.Popen[str]) -> str:
    assert worker.stdout is not None
    line = worker.stdout.readline()
    if not line:
        raise InvalidInput("The engine of one of the two folders failed; its error is above.")
    return line
