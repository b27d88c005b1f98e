"""Runs the observer as a separate program and reads its verdict."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

from app.devcluster.cluster import LocalCluster
from app.devcluster.go_build import SOURCE
from app.devcluster.processes import Program, is_alive, last_lines
from app.devcluster.readiness import wait_until
from app.devcluster.redis_server import URL as REDIS

READY_SECONDS = 60.0
VERDICT_SECONDS = 90.0


class Watching:
    """One run of the observer, from `watching` to its report."""

    def __init__(
        self, cluster: LocalCluster, name: str, report: Path, redis: str, *flags: str
    ) -> None:
        self._processes, self._report = cluster.processes, report
        argv = [sys.executable, "-P", "-m", "tests.faults.observer"]
        argv += ["--kubeconfig", str(cluster.kubeconfig)]
        argv += ["--cluster", "default", "--audit-log", str(cluster.audit_log)]
        argv += ["--report", str(report), *flags]
        environment = {"PATH": os.defpath, "PYTHONPATH": str(SOURCE), "PYTHONUNBUFFERED": "1"}
        environment[REDIS] = redis  # contains the password, so it must not be on the command line
        self._process = self._processes.start(Program(name, tuple(argv), environment))
        self.log = self._processes.log(name)
        wait_until(
            {"the observer": lambda: "watching" in self.log.read_text().split()},
            seconds=READY_SECONDS,
            check=lambda: self._processes.check([self._process]),
        )

    @property
    def violations(self) -> list[str]:
        """The violations so far. Violations of the final state come only with the verdict."""
        found = [
            line.partition(" ")[2]
            for line in self.log.read_text(errors="replace").splitlines()
            if line.startswith("violation ")
        ]
        return found if is_alive(self._process) else [*found, f"the observer broke: {self._tail()}"]

    def verdict(self) -> dict[str, Any]:
        """End the observer and return its report: `violations` and `counts`."""
        if is_alive(self._process):
            os.kill(self._process.pid, signal.SIGTERM)
        deadline = time.monotonic() + VERDICT_SECONDS
        while is_alive(self._process):
            assert time.monotonic() < deadline, f"the observer gives no verdict: {self._tail()}"
            time.sleep(0.05)
        self._processes.stop([self._process])
        assert self._report.exists(), f"the observer broke: {self._tail()}"
        return dict(json.loads(self._report.read_text()))

    def _tail(self) -> str:
        return last_lines(self.log, 30)
