"""CPU time of the processes of a local cluster, from `/proc/PID/stat`."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from pathlib import Path

from app.devcluster.processes import ChildProcess

TICK_MS = 1000 / os.sysconf("SC_CLK_TCK")


def read_cpu(children: Iterable[ChildProcess]) -> dict[str, float]:
    """Return the CPU time in milliseconds that the processes of each name have used so far."""
    used: dict[str, float] = {}
    for child in children:
        text = Path(f"/proc/{child.pid}/stat").read_text()
        used[child.name] = used.get(child.name, 0.0) + cpu_of(text)
    return used


def cpu_of(stat: str) -> float:
    """Return user and system time in milliseconds from the text of `/proc/PID/stat`."""
    # The program name in parentheses may itself contain spaces and parentheses.
    fields = stat.rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) * TICK_MS


def subtract(after: Mapping[str, float], before: Mapping[str, float]) -> dict[str, float]:
    """Return the difference by name. A name must be in both."""
    return {name: used - before[name] for name, used in after.items()}
