"""A soak: random faults under load, from a seed, until the first violation or the end of time.

`python -m tests.faults.soak --minutes 30 --seed 7`. The same seed gives the same plan. A soak
consists of chapters, and each chapter ends with the observer's full verdict.
"""

from __future__ import annotations

import argparse
import json
import random
import shutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from app.devcluster import state_dir as folders
from app.devcluster.cluster import LocalCluster
from app.devcluster.signals import signals_as_interrupt
from tests.faults.actions import FAULTS
from tests.faults.fault_cluster import Rig, open_rig
from tests.faults.load import Load

CHAPTER = 20
"""Faults per chapter."""

LONG = 60.0
"""Seconds of the one long fault per chapter. It is longer than every time-out."""

LOAD = {"pods": 100_000, "rate": 4.0, "runtime": "3s", "gang_every": 25}
HEAL_SECONDS = 180.0
COUNTED = ("pods", "released", "bound", "finished", "deleted", "epochs")


@dataclass(frozen=True)
class Step:
    """One fault of the plan: its duration, the pause after it, and its random numbers."""

    fault: str
    lasts: float
    pause: float
    seed: int

    def __str__(self) -> str:
        return f"{self.fault} for {self.lasts:.1f} s"


def plan(seed: int) -> Iterator[list[Step]]:
    """Yield the endless chapters of a seed. A fault repeats only after all others."""
    draw = random.Random(seed)
    deck: list[str] = []
    while True:
        chapter = []
        long = draw.randrange(CHAPTER)
        for number in range(CHAPTER):
            if not deck:
                deck = sorted(FAULTS)
                draw.shuffle(deck)
            lasts = LONG if number == long else draw.uniform(0.5, 8.0)
            chapter.append(Step(deck.pop(), lasts, draw.uniform(0.5, 4.0), draw.getrandbits(32)))
        yield chapter


class Violation(Exception):
    """An invariant was violated."""


class Soak:
    """One run. `play` ends when the time is up; raises Violation."""

    def __init__(self, rig: Rig, folder: Path, seed: int, minutes: float) -> None:
        self._rig, self._folder, self._seed = rig, folder, seed
        self._until = time.monotonic() + minutes * 60
        self.played: list[str] = []
        self.counts: Counter[str] = Counter()

    def play(self) -> None:
        """Play the chapters."""
        for number, chapter in enumerate(plan(self._seed), 1):
            folder = self._folder / f"chapter-{number}"
            folder.mkdir()
            self._rig.begin(folder)
            self._populate()
            load = self._rig.load(seed=self._seed + number, **LOAD)
            for step in chapter:
                if time.monotonic() > self._until:
                    break
                self._step(step, load)
            self._conclude(number, load)
            if time.monotonic() > self._until:
                return

    def _populate(self) -> None:
        """Start two processes of each role that may have two. Keep more if faults left more."""
        for role in ("webhook", "controller"):
            while len(self._rig.of(role)) < 2:
                self._rig.start(role)

    def _step(self, step: Step, load: Load) -> None:
        self.played.append(step.fault)
        print(f"{len(self.played):4} {step} ({load.total} pods created)", flush=True)
        mend = FAULTS[step.fault](self._rig, random.Random(step.seed))
        self._wait(step.lasts)
        mend()
        self._rig.until("the API server is ready", self._rig.api_ready, HEAL_SECONDS)
        self._populate()
        try:
            self._rig.leader(seconds=HEAL_SECONDS)
        except AssertionError as error:
            raise Violation(f"nobody leads after {step.fault}: {error}") from error
        self._wait(step.pause)
        for extra in self._rig.of("controller")[2:]:
            extra.kill()

    def _wait(self, seconds: float) -> None:
        end = time.monotonic() + seconds
        while True:
            assert self._rig.observer is not None
            if found := self._rig.observer.violations:
                raise Violation("\n".join(found))
            left = end - time.monotonic()
            if left <= 0:
                return
            time.sleep(min(left, 0.5))

    def _conclude(self, number: int, load: Load) -> None:
        try:
            report = self._rig.verdict()
        except AssertionError as error:
            raise Violation(str(error)) from error
        self.counts["created"] += load.total
        self.counts["creations refused"] += len(load.refused) + len(load.unanswered)
        for name in COUNTED:
            self.counts[name] += report["counts"].get(name, 0)
        self._rig.clear()
        print(f"chapter {number} is good: {json.dumps(dict(self.counts))}", flush=True)


def main() -> int:
    """Run a soak; return 0 if no invariant was violated, 1 otherwise."""
    told = _parser().parse_args()
    seed = told.seed if told.seed is not None else random.SystemRandom().randrange(10**6)
    print(f"seed {seed}, {told.minutes:g} minutes", flush=True)
    folder = Path(tempfile.mkdtemp(prefix=f"fairgate-soak-{seed}-"))
    cluster = LocalCluster(folders.own_folder("soak"))
    began = time.monotonic()
    with signals_as_interrupt(), open_rig(cluster, folder) as rig:
        soak = Soak(rig, folder, seed, told.minutes)
        try:
            soak.play()
        except BaseException as error:
            shutil.copytree(cluster.folder / "logs", folder / "logs", dirs_exist_ok=True)
            print(f"VIOLATION, or the soak broke: {error!r}\n{error}")
            print(f"seed {seed}; faults so far: {soak.played}\nlogs and reports: {folder}")
            if isinstance(error, Violation):
                return 1
            raise
    shutil.rmtree(folder)
    took = (time.monotonic() - began) / 60
    print(f"seed {seed}: clean after {took:.1f} minutes, violations 0, faults {len(soak.played)}")
    print(json.dumps({"faults": dict(Counter(soak.played)), **soak.counts}, indent=1))
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tests.faults.soak", description=__doc__)
    parser.add_argument("--minutes", type=float, default=30.0, help="default: 30")
    parser.add_argument("--seed", type=int, help="of an earlier run, to play it again")
    return parser


if __name__ == "__main__":
    sys.exit(main())
