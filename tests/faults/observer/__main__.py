"""Follows and checks the cluster until SIGTERM or FILE.stop; exits with 0 if all is well, or 1."""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import time
import types
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

import redis

from tests.faults.observer import chain, redis_copy, writers
from tests.faults.observer.cluster import Refused
from tests.faults.observer.follow import Follower
from tests.faults.observer.judge import Allowed, Judge
from tests.faults.observer.objects import Managed

MANAGED = (
    "nvidia.com/gpu,amd.com/gpu,nvidia.com/mig-*,nvidia.com/gpu.shared,nvidia.com/gpucores,"
    "nvidia.com/gpumem"
)
EXEMPT = "kube-system,kube-public,kube-node-lease,fairgate-system,fairgate-canary,gpu-operator"
POLL_SECONDS = 0.1


class Observer:
    """One run. `step` checks new observations, `finish` checks the final state."""

    def __init__(self, told: argparse.Namespace) -> None:
        self._told = told
        self._follower = Follower(told.kubeconfig)
        allowed = Allowed(told.grace, told.allow_bypass, told.allow_by_hand)
        exempt = frozenset(told.exempt.split(","))
        self._judge = Judge(Managed(told.managed.split(",")), exempt, allowed)
        self._told_of = 0
        log: Path | None = told.audit_log
        self._log_start = log.stat().st_size if log and log.exists() else 0

    def start(self) -> None:
        """Start to follow the API server."""
        self._follower.start()

    @property
    def follows(self) -> bool:
        """Return whether every kind is followed."""
        return self._follower.follows

    def step(self) -> None:
        """Check the observations that are final; print each violation."""
        for seen in self._follower.sightings():
            self._judge.take(seen)
        for each in self._judge.violations[self._told_of :]:
            _say("violation", asdict(each))
        self._told_of = len(self._judge.violations)

    def finish(self) -> bool:
        """Check the rest, write the report, and return whether all is well."""
        self._follower.hurry()
        version = self._catch_up()
        self._judge.finish(version)
        if self._told.redis:
            self._compare("I8", self._copy_differs)
            self._compare("I7", self._chain_is_wrong)
        if self._told.audit_log:
            log = writers.read(self._told.audit_log, self._log_start)
            cuts = self._follower.cuts
            for what in writers.judge(self._judge.releases, log, self._told.writer, cuts):
                self._judge.blame("I2", what, version)
        self.step()
        self._follower.end()
        report = {
            "violations": [asdict(each) for each in self._judge.violations],
            "counts": dict(self._judge.counts) | {"late": self._follower.late},
            "bypassed": sorted(self._judge.bypassed.values()),
            "blind": [asdict(hole) for hole in self._follower.holes],
        }
        draft = self._told.report.with_suffix(".new")
        draft.write_text(json.dumps(report, indent=1) + "\n")
        draft.rename(self._told.report)
        return not self._judge.violations

    def _catch_up(self) -> int:
        """Check everything up to now; return the current version."""
        newest = 0

        def is_done() -> bool:
            nonlocal newest
            try:
                newest = newest or self._follower.newest()
            except (OSError, Refused):
                return False
            self.step()
            return self._follower.settled >= newest

        if not self._until(is_done):
            self._judge.blame("observer", "could not catch up with the API server", newest)
        return newest

    def _compare(self, invariant: str, differences: Callable[[], list[str]]) -> None:
        """Compare Redis with the observations repeatedly, until they agree or time runs out."""
        found: list[str] = []

        def is_equal() -> bool:
            nonlocal found
            try:
                found = differences()
            except (redis.RedisError, OSError, Refused, ValueError, KeyError) as error:
                found = [f"not readable: {error!r}"]
            return not found

        if not self._until(is_equal):
            for what in found:
                self._judge.blame(invariant, f"Redis: {what}", self._follower.settled)

    def _copy_differs(self) -> list[str]:
        found = redis_copy.read(self._told.redis, self._told.cluster)
        wanted = redis_copy.recount(self._judge.layout, self._judge.pods.values())
        return redis_copy.compare(wanted, found)

    def _chain_is_wrong(self) -> list[str]:
        anchor = self._follower.find(chain.ANCHOR)
        found = chain.read(self._told.redis, self._told.cluster, (anchor or {}).get("data"))
        self._judge.counts["audit entries"] = len(found.entries)
        if not found.present:
            return ["pods were released, and there is no chain"] if self._judge.releases else []
        return chain.verify(found) + chain.agree(found, self._judge.releases)

    def _until(self, true: Callable[[], bool]) -> bool:
        deadline = time.monotonic() + self._told.settle
        while not true():
            if time.monotonic() > deadline:
                return False
            time.sleep(POLL_SECONDS)
            self.step()
        return True


def main(arguments: list[str] | None = None) -> int:
    """Run until a stop is requested; return the exit code."""
    told = _parser().parse_args(arguments)
    stopping = False

    def stop(number: int, frame: types.FrameType | None) -> None:
        nonlocal stopping
        stopping = True

    signal.signal(signal.SIGTERM, stop)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    told_to_stop = told.report.with_name(told.report.name + ".stop")
    observer = Observer(told)
    observer.start()
    said = False
    while not stopping and not told_to_stop.exists():
        observer.step()
        if not said and observer.follows:
            said = True
            print("watching", flush=True)
        time.sleep(POLL_SECONDS)
    good = observer.finish()
    _say("verdict", "good" if good else "violations")
    return 0 if good else 1


def _say(word: str, what: object) -> None:
    print(word, json.dumps(what), flush=True)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tests.faults.observer", description=__doc__)
    add = parser.add_argument
    add("--kubeconfig", type=Path, required=True, help="of an administrator")
    add("--report", type=Path, required=True, metavar="FILE", help="where the verdict goes")
    redis_url = os.environ.get("FAIRGATE_REDIS_URL", "")
    add("--redis", default=redis_url, metavar="URL", help="absent: Redis is not compared")
    add("--cluster", default="default", help="its name in the keys of Redis")
    add("--audit-log", type=Path, metavar="PATH", help="of the API server, JSON lines")
    add("--exempt", default=EXEMPT, help="namespaces that are left alone")
    add("--managed", default=MANAGED, help="resources; a trailing * stands for any ending")
    add("--grace", type=float, default=5.0, help="seconds in which an older bound still counts")
    add("--settle", type=float, default=30.0, help="seconds for the last comparisons")
    add("--writer", default=writers.WRITER, help="the only user that may release")
    add("--allow-bypass", action="store_true", help="the scenario lets pods slip through")
    add("--allow-by-hand", action="store_true", help="the scenario breaks the glass")
    return parser


if __name__ == "__main__":
    sys.exit(main())
