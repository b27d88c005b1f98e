"""Checks what a real node needs of this machine, and finds its programs.

Programs of Debian packages are checked, never installed. The others are built from Go modules.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import NamedTuple

from app.core.errors import ToolMissing
from app.devcluster import binaries
from app.devcluster.binaries import Tools
from app.devcluster.go_build import NODE_MODULES, build, is_built
from app.devcluster.kubernetes_versions import VERSIONS
from app.devcluster.progress import SetupProgress

KUBERNETES = next(version for version in VERSIONS if version.minor == "1.36")
"""That of the kubelet. The kubelet of 1.37 needs containerd 2, which Debian 12 lacks."""

SYSTEM_PATH = "/usr/sbin:/usr/bin:/sbin:/bin"
PACKAGES = {
    "containerd": "containerd",
    "containerd-shim-runc-v2": "containerd",
    "ctr": "containerd",
    "runc": "runc",
    "nft": "nftables",
    "ip": "iproute2",
    "mount": "mount",
    "nsenter": "util-linux",
    "unshare": "util-linux",
}
"""The Debian package of each program."""

CNI_PACKAGE = "containernetworking-plugins"
CNI_FOLDERS = (Path("/usr/lib/cni"), Path("/opt/cni/bin"))
CNI_PLUGINS = ("ptp", "host-local", "loopback")


class NodeTools(NamedTuple):
    """Path of each program that is built for the node, and the folder of the CNI plugins."""

    kubelet: Path
    kube_proxy: Path
    device_plugin: Path
    pause: Path
    coredns: Path
    cni: Path


def find(progress: SetupProgress) -> tuple[Tools, NodeTools]:
    """Return all programs of a cluster with a real node. Missing ones are built.

    Raises ToolMissing.
    """
    if reason := missing():
        raise ToolMissing(reason)
    tools = binaries.find(progress, binaries.choose(KUBERNETES.minor))
    built = {
        program: build(module, progress) / program
        for module in NODE_MODULES
        for program in module.programs
    }
    return tools, NodeTools(
        kubelet=built["kubelet"],
        kube_proxy=built["kube-proxy"],
        device_plugin=built["fake-device-plugin"],
        pause=built["pause"],
        coredns=built["coredns"],
        cni=cni_folder(),
    )


def missing() -> str | None:
    """Return why no node can run on this machine; None if one can. Builds no program."""
    try:
        binaries.check_kernel()
        if os.geteuid() != 0:
            return "A real node needs root; run this as root, for example by sudo."
        absent = {
            package
            for program, package in PACKAGES.items()
            if shutil.which(program, path=SYSTEM_PATH) is None
        }
        if not any(_has_plugins(folder) for folder in CNI_FOLDERS):
            absent.add(CNI_PACKAGE)
        if absent:
            names = " ".join(sorted(absent))
            return (
                f"A real node needs the missing packages {', '.join(sorted(absent))}; on Debian: "
                f"apt-get install --no-install-recommends {names}."
            )
        if not shutil.which("go") and not all(map(is_built, NODE_MODULES)):
            return "Go builds the kubelet, and is missing; install Go 1.26 or newer (go.dev/dl)."
    except ToolMissing as error:
        return str(error)
    return None


def cni_folder() -> Path:
    """Return the folder of the CNI plugins. Raises ToolMissing."""
    for folder in CNI_FOLDERS:
        if _has_plugins(folder):
            return folder
    raise ToolMissing(f"There are no CNI plugins; on Debian: apt-get install {CNI_PACKAGE}.")


def _has_plugins(folder: Path) -> bool:
    return all(os.access(folder / plugin, os.X_OK) for plugin in CNI_PLUGINS)
