"""One process of Fairgate with its own proxies to the API server and to Redis."""

from __future__ import annotations

import json
import os
import signal
import urllib.request
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from app.devcluster.fairgate_install import ops_url
from app.devcluster.processes import ChildProcess, Processes, is_alive
from app.devcluster.readiness import answers_ready
from tests.faults.clock import VARIABLE as CLOCK
from tests.faults.tcp_proxy import Cable

ANSWER_SECONDS = 2.0


@dataclass(frozen=True)
class Program:
    """A process of one role. `listens` is the port of its webhook or API, if it has one."""

    role: str
    process: ChildProcess
    processes: Processes
    api: Cable
    redis: Cable
    listens: int

    @property
    def name(self) -> str:
        return self.process.name

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def identity(self) -> str:
        """Its holder identity in the lease."""
        return self.process.environment["FAIRGATE_IDENTITY"]

    @property
    def alive(self) -> bool:
        return is_alive(self.process)

    @property
    def stopped(self) -> bool:
        """Return whether it is suspended by SIGSTOP."""
        try:
            status = Path(f"/proc/{self.pid}/stat").read_text()
        except OSError:
            return False
        return status.rpartition(")")[2].split()[0] == "T" and self.alive

    @property
    def log(self) -> Path:
        return self.processes.log(self.name)

    def kill(self, sign: int = signal.SIGKILL) -> None:
        """Kill it; return after it has ended."""
        self.cont()
        self.processes.stop([self.process], sign)

    def send(self, sign: int) -> None:
        """Send it a signal, if it lives."""
        if self.alive:
            os.kill(self.pid, sign)

    def stop(self) -> None:
        """Suspend it (SIGSTOP). Its connections stay open."""
        self.send(signal.SIGSTOP)

    def cont(self) -> None:
        """Resume it."""
        self.send(signal.SIGCONT)

    def set_clock(self, shift: float) -> None:
        """Set its wall clock to an offset in seconds; requires a program with a `clock`."""
        file = Path(self.process.environment[CLOCK])
        draft = file.with_suffix(".new")
        draft.write_text(str(shift))
        draft.rename(file)

    def ready(self) -> bool:
        """Return whether it reports itself ready."""
        return self.alive and not self.stopped and answers_ready(ops_url(self.process))()

    def lines(self, message: str = "") -> list[dict[str, Any]]:
        """Return its log entries with this message, or all entries, oldest first."""
        found = []
        for line in self.log.read_text(errors="replace").splitlines():
            if message not in line:  # many polls read a long log
                continue
            try:
                entry = json.loads(line)
            except ValueError:
                continue
            if isinstance(entry, dict) and message in ("", entry.get("message")):
                found.append(entry)
        return found

    def metric(self, name: str, label: str = "") -> float | None:
        """Return the sum of a metric over the series with a label; None if it does not answer."""
        if not self.alive or self.stopped:
            return None
        try:
            with urllib.request.urlopen(
                f"{ops_url(self.process)}/metrics", timeout=ANSWER_SECONDS
            ) as answer:
                text = answer.read().decode()
        except OSError:
            return None
        series = (
            line
            for line in text.splitlines()
            if line.startswith(name) and line[len(name) :][:1] in (" ", "{") and label in line
        )
        return sum(float(line.rpartition(" ")[2]) for line in series)
