"""Container images of the node: import of archives, and an image of one static program."""

from __future__ import annotations

import hashlib
import io
import json
import platform
import subprocess
import tarfile
from pathlib import Path

from app.core.errors import InvalidInput
from app.devcluster.node.component_files import SOCKET
from app.devcluster.node.namespaces import Namespaces, run

CTR = ("ctr", "--address", SOCKET, "--namespace", "k8s.io")


def load(namespaces: Namespaces, archive: Path) -> list[str]:
    """Import an archive (OCI, or `docker save`), and return the names of all images of the node.

    Raises InvalidInput if it cannot be read, ClusterError if containerd refuses it.
    """
    try:
        with archive.open("rb") as file:
            # By standard input, because the node does not see every folder of this machine.
            run(namespaces.command(*CTR, "images", "import", "-"), stdin=file.fileno())
    except OSError as error:
        raise InvalidInput(f"{archive} cannot be read: {error.strerror}.") from error
    return names(namespaces)


def names(namespaces: Namespaces) -> list[str]:
    """Return the names of all images of the node."""
    listed = run(namespaces.command(*CTR, "images", "list", "--quiet"), stdin=subprocess.DEVNULL)
    return [name for name in listed.splitlines() if not name.startswith("sha256:")]


def write_archive(path: Path, name: str, files: dict[str, Path], entrypoint: str) -> None:
    """Write an image that has only these files, by their path in it, as `docker save` does."""
    layer = io.BytesIO()
    with tarfile.open(fileobj=layer, mode="w") as tar:
        for inside, source in files.items():
            entry = tarfile.TarInfo(inside.lstrip("/"))
            entry.mode, data = 0o755, source.read_bytes()
            entry.size = len(data)
            tar.addfile(entry, io.BytesIO(data))
    content = layer.getvalue()
    digest = f"sha256:{hashlib.sha256(content).hexdigest()}"
    config = {
        "architecture": _architecture(),
        "os": "linux",
        "config": {"Entrypoint": [entrypoint]},
        "rootfs": {"type": "layers", "diff_ids": [digest]},
    }
    manifest = [{"Config": "config.json", "RepoTags": [name], "Layers": ["layer.tar"]}]
    with tarfile.open(path, "w") as archive:
        for member, data in (
            ("config.json", json.dumps(config).encode()),
            ("layer.tar", content),
            ("manifest.json", json.dumps(manifest).encode()),
        ):
            entry = tarfile.TarInfo(member)
            entry.size = len(data)
            archive.addfile(entry, io.BytesIO(data))


def _architecture() -> str:
    """Return the name that images use for the architecture of this machine."""
    return {"x86_64": "amd64", "aarch64": "arm64"}.get(platform.machine(), platform.machine())
