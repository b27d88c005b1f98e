"""One process of Fairgate, with cables of its own to the API server and to Redis."""

from __future__ import annotations

import json
import os
import signal
import urllib.request
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from app.dev.fairgate import ops_url
from app.dev.processes import Process, Processes, is_alive
from app.dev.readiness import answers_ready
from tests.faults.cable import Cable
from tests.faults.clock import VARIABLE as CLOCK

ANSWER_SECONDS = 2.0


@dataclass(frozen=True)
class Program:
    """A process of one role. `listens` is the port of its webhook or API, of no use to others."""

    role: str
    process: Process
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
        """What it calls itself in the lease."""
        return self.process.environment["FAIRGATE_IDENTITY"]

    @property
    def alive(self) -> bool:
        return is_alive(self.process)

    @property
    def stopped(self) -> bool:
        """Tell whether it stands still under SIGSTOP."""
        try:
            status = Path(f"/proc/{self.pid}/stat").read_text()
        except OSError:
            return False
        return status.rpartition(")")[2].split()[0] == "T" and self.alive

    @property
    def log(self) -> Path:
        return self.processes.log(self.name)

    def kill(self, sign: int = signal.SIGKILL) -> None:
        """End it, and return once it is gone."""
        self.cont()
        self.processes.stop([self.process], sign)

    def send(self, sign: int) -> None:
        """Send it a signal, if it lives."""
        if self.alive:
            os.kill(self.pid, sign)

    def stop(self) -> None:
        """Let it stand still (SIGSTOP): its connections stay, it does nothing."""
        self.send(signal.SIGSTOP)

    def cont(self) -> None:
        """Let it go on."""
        self.send(signal.SIGCONT)

    def set_clock(self, shift: float) -> None:
        """Set its time of day, in seconds from the right one; for a program with a `clock`."""
        file = Path(self.process.environment[CLOCK])
        draft = file.with_suffix(".new")
        draft.write_text(str(shift))
        draft.rename(file)

    def ready(self) -> bool:
        """Tell whether it calls itself ready."""
        return self.alive and not self.stopped and answers_ready(ops_url(self.process))()

    def lines(self, message: str = "") -> list[dict[str, Any]]:
        """Return what it logged with this message, all of it without one; oldest first."""
        found = []
        for line in self.log.read_text(errors="replace").splitlines():
            try:
                entry = json.loads(line)
            except ValueError:
                continue
            if isinstance(entry, dict) and message in ("", entry.get("message")):
                found.append(entry)
        return found

    def metric(self, name: str, label: str = "") -> float | None:
        """Return the sum of a metric over the series that carry a label; None: no answer."""
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
