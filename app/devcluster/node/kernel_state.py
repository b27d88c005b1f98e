"""What the kubelet changes outside its namespaces: settings of the kernel, and cgroups.

Both are put back when the node goes down.
"""

from __future__ import annotations

import contextlib
import time
from pathlib import Path

import msgspec

from app.core.errors import ClusterError
from app.devcluster.node.component_files import CGROUP

SETTINGS = (
    "vm/overcommit_memory",
    "vm/panic_on_oom",
    "kernel/panic",
    "kernel/panic_on_oops",
    "kernel/keys/root_maxkeys",
    "kernel/keys/root_maxbytes",
)
CGROUPS = Path("/sys/fs/cgroup")
CPU_WEIGHTS = {"cpu.shares": 16384, "cpu.weight": 1600}
"""Share of the CPU that all pods get together, by cgroup version.

The default is that of one process. A node has a machine of its own, but here each other program
competes with all pods: with many programs, probes of the kubelet would end containers.
"""
EMPTY_SECONDS = 10.0
POLL_SECONDS = 0.05


def prepare(record: Path) -> None:
    """Record the settings of the kernel in a file, and create the cgroups of the node."""
    values = {name: _setting(name).read_text().strip() for name in SETTINGS}
    if not record.exists():
        record.write_bytes(msgspec.json.encode(values))
    for folder in _hierarchies():
        (folder / CGROUP).mkdir(exist_ok=True)
        if (folder / "cpuset.cpus").exists():  # cgroup v1: a new cpuset has no CPU at all
            for name in ("cpuset.cpus", "cpuset.mems"):
                (folder / CGROUP / name).write_text((folder / name).read_text())
        for name, weight in CPU_WEIGHTS.items():
            if (folder / CGROUP / name).exists():
                (folder / CGROUP / name).write_text(str(weight))


def restore(record: Path) -> None:
    """Put the settings of the kernel back, and remove the cgroups. Raises ClusterError."""
    with contextlib.suppress(FileNotFoundError):
        for name, value in msgspec.json.decode(record.read_bytes(), type=dict[str, str]).items():
            if _setting(name).read_text().strip() != value:
                _setting(name).write_text(value)
        record.unlink()
    for folder in _hierarchies():
        _remove(folder / CGROUP)


def _setting(name: str) -> Path:
    return Path("/proc/sys") / name


def _hierarchies() -> list[Path]:
    """Return the roots of all cgroup hierarchies: of version 1, of version 2, or of both."""
    if (CGROUPS / "cgroup.controllers").exists():
        return [CGROUPS]
    own = {folder.resolve() for folder in CGROUPS.iterdir() if (folder / "cgroup.procs").exists()}
    return sorted(own)


def _remove(cgroup: Path) -> None:
    if not cgroup.exists():
        return
    folders = [cgroup, *(path for path in cgroup.rglob("*") if path.is_dir())]
    deadline = time.monotonic() + EMPTY_SECONDS
    for folder in sorted(folders, key=lambda path: len(path.parts), reverse=True):
        while folder.exists():
            try:
                folder.rmdir()
            except OSError as error:  # busy until the kernel has removed the last process
                if time.monotonic() > deadline:
                    raise ClusterError(
                        f"The cgroup {folder} cannot be removed: {error.strerror}."
                    ) from error
                time.sleep(POLL_SECONDS)
