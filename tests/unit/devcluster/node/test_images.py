"""Image archives that are made without a build tool."""

from __future__ import annotations

import hashlib
import io
import json
import tarfile
from pathlib import Path

import pytest

from app.core.errors import InvalidInput
from app.devcluster.node.images import load, write_archive
from app.devcluster.node.namespaces import Namespaces
from app.devcluster.processes import Processes


def test_an_archive_has_the_files_and_a_layer_with_their_digest(tmp_path: Path) -> None:
    program = tmp_path / "program"
    program.write_bytes(b"\x7fELF")
    write_archive(tmp_path / "image.tar", "example/image:dev", {"/bin/run": program}, "/bin/run")

    with tarfile.open(tmp_path / "image.tar") as archive:
        found = {member.name: archive.extractfile(member).read() for member in archive}  # type: ignore[union-attr]
    (manifest,) = json.loads(found["manifest.json"])
    assert manifest["RepoTags"] == ["example/image:dev"]
    config, layer = json.loads(found[manifest["Config"]]), found[manifest["Layers"][0]]
    assert config["config"]["Entrypoint"] == ["/bin/run"]
    assert config["rootfs"]["diff_ids"] == [f"sha256:{hashlib.sha256(layer).hexdigest()}"]
    with tarfile.open(fileobj=io.BytesIO(layer)) as files:
        (member,) = files
        assert (member.name, member.mode) == ("bin/run", 0o755)


def test_an_archive_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    missing = tmp_path / "missing.tar"
    with pytest.raises(InvalidInput, match=r"missing\.tar cannot be read: No such file"):
        load(Namespaces(tmp_path, Processes(tmp_path)), missing)
