"""Machine and versions of a run, without which its figures cannot be interpreted."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import re
import subprocess
from pathlib import Path

PACKAGES = ("fairgate", "aiohttp", "msgspec", "uvicorn", "uvloop")
ASK_SECONDS = 10
VERSION = re.compile(r"\d+\.\d+\.\d+\S*")


def machine() -> dict[str, str]:
    """Return properties and current load of this machine, which others may also use."""
    return {
        "cores": str(len(os.sched_getaffinity(0))),
        "processor": _processor(),
        "memory": f"{_memory() / 2**30:.0f} GiB",
        "kernel": platform.release(),
        "load average": f"{os.getloadavg()[0]:.1f}",
        "Python": platform.python_version(),
    }


def versions(programs: dict[str, Path]) -> dict[str, str]:
    """Return the versions of the Python packages, of Go, and of these programs."""
    found = {name: _installed(name) for name in PACKAGES}
    found["Go"] = _said(["go", "version"])
    return found | {name: _said([str(path), "--version"]) for name, path in programs.items()}


def _installed(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:  # run without an installation
        return "unknown"


def _said(argv: list[str]) -> str:
    """Return the version that a program prints; `unknown` if it prints no version."""
    try:
        done = subprocess.run(argv, capture_output=True, text=True, timeout=ASK_SECONDS, check=True)
    except (OSError, subprocess.SubprocessError):
        return "unknown"
    found = VERSION.search(done.stdout)
    return found[0] if found else "unknown"


def _processor() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()


def _memory() -> int:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
