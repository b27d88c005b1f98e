"""The image that `make image` has built: its size, its configuration and its start without a shell.

It is read from docker, podman or buildah, and skipped if none of them has the image.
"""

from __future__ import annotations

import gzip
import json
import os
import shutil
import subprocess
import tarfile
import tomllib
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any, cast

import pytest

VERSION = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"][
    "version"
]
IMAGE = f"fairgate:{VERSION}"
CHUNK = 1 << 20
TO_PULL, UNPACKED = 90_000_000, 270_000_000
"""The largest size of the image, with its base, in bytes."""


def saving(archive: Path) -> list[list[str]]:
    """Return the commands that write the image to an archive, one for each program."""
    return [
        ["docker", "save", "--output", str(archive), IMAGE],
        ["podman", "save", "--format", "docker-archive", "--output", str(archive), IMAGE],
        ["buildah", "push", "--quiet", IMAGE, f"docker-archive:{archive}"],
    ]


@pytest.fixture(scope="module")
def archive(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tarfile.TarFile]:
    """Return the image as an archive, or skip."""
    path = tmp_path_factory.mktemp("image") / "image.tar"
    for command in saving(path):
        if shutil.which(command[0]) is None:
            continue
        if subprocess.run(command, capture_output=True, check=False).returncode == 0:
            with tarfile.open(path) as opened:
                yield opened
            path.unlink()
            return
    pytest.skip(f"docker, podman and buildah have no image {IMAGE}; build it by make image.")


def contents(archive: tarfile.TarFile) -> dict[str, Any]:
    manifest = archive.extractfile("manifest.json")
    assert manifest is not None
    return cast("dict[str, Any]", json.load(manifest)[0])


def layers(archive: tarfile.TarFile) -> Iterator[IO[bytes]]:
    """Yield each layer, uncompressed."""
    for name in contents(archive)["Layers"]:
        member = archive.extractfile(name)
        assert member is not None
        is_compressed = member.read(2) == b"\x1f\x8b"
        member.seek(0)
        yield cast("IO[bytes]", gzip.GzipFile(fileobj=member)) if is_compressed else member


def test_the_image_is_small(archive: tarfile.TarFile) -> None:
    to_pull = unpacked = 0
    for layer in layers(archive):
        packer = zlib.compressobj()
        while chunk := layer.read(CHUNK):
            unpacked += len(chunk)
            to_pull += len(packer.compress(chunk))
        to_pull += len(packer.flush())
    assert to_pull <= TO_PULL
    assert unpacked <= UNPACKED


def test_image_runs_as_non_root_user_and_has_license_labels(
    archive: tarfile.TarFile,
) -> None:
    written = archive.extractfile(contents(archive)["Config"])
    assert written is not None
    found = json.load(written)["config"]
    assert found["User"] == "65532:65532"
    assert [found["Entrypoint"], found["Cmd"]] == [["fairgate"], ["serve"]]
    labels = {name.rpartition(".")[2]: value for name, value in found["Labels"].items()}
    assert [labels["licenses"], labels["version"]] == ["Apache-2.0", VERSION]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may change the root directory")
def test_fairgate_starts_without_a_shell(archive: tarfile.TarFile, tmp_path: Path) -> None:
    for layer in layers(archive):
        with tarfile.open(fileobj=layer, mode="r|") as files:
            files.extraction_filter = lambda member, _: member
            for file in files:
                if file.isfile() or file.isdir() or file.issym() or file.islnk():
                    files.extract(file, tmp_path)
    tmp_path.chmod(0o755)
    for shell in ("sh", "bash", "dash", "env"):
        (tmp_path / "usr/bin" / shell).unlink(missing_ok=True)
    ran = subprocess.run(
        [str(shutil.which("chroot")), "--userspec=65532:65532", str(tmp_path),
         "/opt/fairgate/bin/fairgate", "serve", "--check-settings"],
        env={"FAIRGATE_ROLES": "webhook"}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    shutil.rmtree(tmp_path)
    assert ran.returncode == 0, ran.stderr
