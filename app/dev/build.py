"""Builds a tool from the Go module that pins it, into the cache of the person who runs us.

Each module has a folder in the cache, named by what pins it. The folder appears complete or not
at all, and two builders at once do the work once.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from fcntl import LOCK_EX, LOCK_NB, flock
from pathlib import Path
from typing import TextIO

from app.core.errors import ToolMissing
from app.dev.progress import Progress

SOURCE = Path(__file__).parents[2]
"""The folder Fairgate's source is in: the tools' modules and the chart are not in a wheel."""

STAMP = "k8s.io/component-base/version"


@dataclass(frozen=True, slots=True)
class Module:
    """A Go module of ours that pins one tool: which programs it makes, and how."""

    name: str
    pins: str
    programs: tuple[str, ...]
    package: str
    usually: str
    stamps: tuple[str, ...] = ()

    @property
    def folder(self) -> Path:
        return SOURCE / "tests" / "tools" / self.name

    def version(self) -> str:
        """The version the module pins, as `1.36.3`. Raises ToolMissing without our source."""
        found = re.search(
            rf"^\s*{re.escape(self.pins)} v(\d\S*)", self._read("go.mod").decode(), re.MULTILINE
        )
        if found is None:
            raise ToolMissing(f"{self.folder}/go.mod does not require {self.pins}.")
        return found[1]

    def cache(self) -> Path:
        """The folder its programs are in once they are built."""
        pinned = hashlib.sha256(self._read("go.mod") + b"\0" + self._read("go.sum"))
        return cache_folder() / pinned.hexdigest()[:16]

    def _read(self, name: str) -> bytes:
        try:
            return (self.folder / name).read_bytes()
        except OSError as error:
            raise ToolMissing(
                f"{self.folder / name} cannot be read ({error.strerror}); the local cluster needs "
                "Fairgate's source folder, a wheel is not enough."
            ) from error


MODULES = (
    Module(
        "etcd", "go.etcd.io/etcd/server/v3", ("etcd",), "go.etcd.io/etcd/server/v3", "half a minute"
    ),
    Module(
        "kubernetes",
        "k8s.io/kubernetes",
        ("kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubectl"),
        "tool",
        "5 minutes",
        (f"{STAMP}.gitVersion=v{{0}}", f"{STAMP}.gitMajor={{1}}", f"{STAMP}.gitMinor={{2}}"),
    ),
    Module(
        "kwok",
        "sigs.k8s.io/kwok",
        ("kwok",),
        "tool",
        "a minute",
        ("sigs.k8s.io/kwok/pkg/consts.Version=v{0}",),
    ),
    Module("helm", "helm.sh/helm/v4", ("helm",), "tool", "2 minutes"),
)


def cache_folder() -> Path:
    """The folder of all built tools: `$XDG_CACHE_HOME/fairgate/tools`."""
    home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(home) / "fairgate" / "tools"


def is_built(module: Module) -> bool:
    """Tell whether the cache has all programs of a module."""
    return all((module.cache() / program).is_file() for program in module.programs)


def build(module: Module, progress: Progress) -> Path:
    """Return the folder with a module's programs, built first if it is not there yet.

    Raises ToolMissing if it cannot be built.
    """
    cache = module.cache()
    if is_built(module):
        return cache
    go = shutil.which("go")
    if go is None:
        raise ToolMissing(
            f"{module.programs[0]} is not on this machine and there is no Go to build it with; "
            f"install Go 1.26 or newer (go.dev/dl), or name a folder that has "
            f"{', '.join(module.programs)} in KUBEBUILDER_ASSETS."
        )
    cache.parent.mkdir(parents=True, exist_ok=True)
    with _alone(cache.with_suffix(".lock"), module, progress):
        if is_built(module):
            return cache
        programs = ", ".join(module.programs)
        what = f"Building {programs} {module.version()} from source, once"
        with progress.step(what, f"{module.usually} on 2 cores"):
            _build(go, module, cache)
    return cache


def _build(go: str, module: Module, cache: Path) -> None:
    with tempfile.TemporaryDirectory(dir=cache.parent, prefix="building-") as draft:
        made = Path(draft) / "bin"
        made.mkdir()
        try:
            subprocess.run(
                _command(go, module, made),
                cwd=module.folder,
                env={**os.environ, "CGO_ENABLED": "0", "GOWORK": "off"},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                errors="replace",
                check=True,
            )
        except subprocess.CalledProcessError as error:
            tail = "\n".join(error.stdout.splitlines()[-8:])
            raise ToolMissing(
                f"{module.name} could not be built; Go needs its module proxy, or the modules in "
                f"its cache, and 7 GiB of disk. It said:\n{tail}"
            ) from error
        if cache.exists():  # a folder that lacks programs is of no use to anyone
            shutil.rmtree(cache)
        made.rename(cache)


def _command(go: str, module: Module, into: Path) -> list[str]:
    version = module.version()
    major, minor = version.split(".")[:2]
    stamps = [stamp.format(version, major, minor) for stamp in module.stamps]
    flags = " ".join(["-s", "-w", *(part for stamp in stamps for part in ("-X", stamp))])
    # A single package would be called after its folder, `v3` for one.
    target = f"{into}/" if len(module.programs) > 1 else str(into / module.programs[0])
    return [go, "build", "-trimpath", "-o", target, "-ldflags", flags, module.package]


@contextmanager
def _alone(path: Path, module: Module, progress: Progress) -> Iterator[None]:
    with path.open("w") as lock:
        try:
            flock(lock, LOCK_EX | LOCK_NB)
        except BlockingIOError:
            _wait(lock, module, progress)
        yield


def _wait(lock: TextIO, module: Module, progress: Progress) -> None:
    what = f"Waiting for another program that builds {module.name}"
    with progress.step(what, f"{module.usually} on 2 cores"):
        flock(lock, LOCK_EX)
