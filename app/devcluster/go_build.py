"""Builds a tool from the Go module that pins it, into the cache of the current user.

Each module has a folder in the cache, named by the hash of its `go.mod`, `go.sum` and Go files. A
folder is created atomically. If two processes need the same module, only one builds it.
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

from app.core.errors import InvalidInput, ToolMissing
from app.devcluster.kubernetes_versions import KubernetesVersion
from app.devcluster.progress import SetupProgress

SOURCE = Path(__file__).parents[2]
"""Fairgate's source folder. A wheel contains neither the Go modules of the tools nor the chart."""

STAMP = "k8s.io/component-base/version"
KUBERNETES_STAMPS = (
    f"{STAMP}.gitVersion=v{{0}}",
    f"{STAMP}.gitMajor={{1}}",
    f"{STAMP}.gitMinor={{2}}",
)


@dataclass(frozen=True, slots=True)
class Module:
    """A Go module in this repository that pins one tool: its programs, and how to build them."""

    name: str
    pins: str
    programs: tuple[str, ...]
    packages: str
    usual_duration: str
    stamps: tuple[str, ...] = ()

    @property
    def folder(self) -> Path:
        return SOURCE / "tests" / "tools" / self.name

    def version(self) -> str:
        """The pinned version, such as `1.36.3`. Raises ToolMissing if the source is missing."""
        found = re.search(
            rf"^(?:require)?\s*{re.escape(self.pins)} v(\d\S*)",
            self._read("go.mod").decode(),
            re.MULTILINE,
        )
        if found is None:
            raise ToolMissing(f"{self.folder}/go.mod does not require {self.pins}.")
        return found[1]

    def cache(self) -> Path:
        """The folder of its programs after a build."""
        pinned = hashlib.sha256(self._read("go.mod") + b"\0" + self._read("go.sum"))
        for source in sorted(self.folder.rglob("*.go")):
            pinned.update(b"\0" + source.read_bytes())
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
        "kwok",
        "sigs.k8s.io/kwok",
        ("kwok",),
        "tool",
        "a minute",
        ("sigs.k8s.io/kwok/pkg/consts.Version=v{0}",),
    ),
    Module("helm", "helm.sh/helm/v4", ("helm",), "tool", "2 minutes"),
)
"""The modules that every version of Kubernetes uses."""

NODE_MODULES = (
    Module(
        "node",
        "k8s.io/kubernetes",
        ("kubelet", "kube-proxy", "fake-device-plugin", "pause"),
        "tool ./fake-device-plugin ./pause",
        "5 minutes",
        KUBERNETES_STAMPS,
    ),
    Module("coredns", "github.com/coredns/coredns", ("coredns",), ".", "a minute"),
)
"""The programs of a real node, in addition."""


def kubernetes(version: KubernetesVersion) -> Module:
    """Return the module with the programs of one version of Kubernetes."""
    return Module(
        f"kubernetes-{version.minor}",
        "k8s.io/kubernetes",
        ("kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubectl"),
        "tool",
        "5 minutes",
        KUBERNETES_STAMPS,
    )


def cache_folder() -> Path:
    """The folder of all built tools: `$XDG_CACHE_HOME/fairgate/tools`."""
    home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(home) / "fairgate" / "tools"


def is_built(module: Module) -> bool:
    """Return whether the cache has all programs of a module."""
    return all((module.cache() / program).is_file() for program in module.programs)


def build(module: Module, progress: SetupProgress) -> Path:
    """Return the folder with a module's programs. Build them first if they are not cached.

    Raises ToolMissing if the build fails, and InvalidInput if the cache cannot be written.
    """
    cache = module.cache()
    if is_built(module):
        return cache
    go = shutil.which("go")
    if go is None:
        raise ToolMissing(
            f"{module.programs[0]} is not on this machine and there is no Go to build it with; "
            f"install Go 1.26 or newer (go.dev/dl), or name a folder that has "
            f"{', '.join(module.programs)} by --binaries."
        )
    _need_writable(cache.parent)
    with _build_lock(cache.with_suffix(".lock"), module, progress):
        if is_built(module):
            return cache
        programs = ", ".join(module.programs)
        what = f"Building {programs} {module.version()} from source, once"
        with progress.step(what, f"{module.usual_duration} on 2 cores"):
            _build(go, module, cache)
    return cache


def _need_writable(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise InvalidInput(
            f"The cache {folder} cannot be written ({error.strerror}); name another folder by "
            "XDG_CACHE_HOME."
        ) from error


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
        if cache.exists():  # an incomplete folder is of no use
            shutil.rmtree(cache)
        made.rename(cache)


def _command(go: str, module: Module, into: Path) -> list[str]:
    version = module.version()
    major, minor = version.split(".")[:2]
    stamps = [stamp.format(version, major, minor) for stamp in module.stamps]
    flags = " ".join(["-s", "-w", *(part for stamp in stamps for part in ("-X", stamp))])
    # Go would name the program of a single package after its folder, for example `v3`.
    target = f"{into}/" if len(module.programs) > 1 else str(into / module.programs[0])
    return [go, "build", "-trimpath", "-o", target, "-ldflags", flags, *module.packages.split()]


@contextmanager
def _build_lock(path: Path, module: Module, progress: SetupProgress) -> Iterator[None]:
    with path.open("w") as lock:
        try:
            flock(lock, LOCK_EX | LOCK_NB)
        except BlockingIOError:
            _wait(lock, module, progress)
        yield


def _wait(lock: TextIO, module: Module, progress: SetupProgress) -> None:
    what = f"Waiting for another program that builds {module.name}"
    with progress.step(what, f"{module.usual_duration} on 2 cores"):
        flock(lock, LOCK_EX)
