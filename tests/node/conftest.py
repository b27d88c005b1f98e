"""A real node for all tests of this folder, with Fairgate in it.

`make test-node` runs these tests, as root. `make test` does not collect them.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from app.devcluster import state_dir as folders
from app.devcluster.node import requirements
from app.devcluster.node.real_node import RealNode
from app.devcluster.progress import ConsoleProgress
from tests.support.real_node import IMAGE, Installation, redis_archive

ARCHIVE = "FAIRGATE_IMAGE_ARCHIVE"


@pytest.fixture(scope="session")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealNode]:
    """A node with the images of Fairgate and Redis. All tests are skipped without root."""
    archive = Path(os.environ.get(ARCHIVE, ""))
    reason = requirements.missing()
    if reason is None and not archive.is_file():
        reason = f"{ARCHIVE} names no image archive; `make test-node` makes one."
    if reason is not None:
        required = os.environ.get("REQUIRE_CLUSTER", "") not in ("", "0")
        (pytest.fail if required else pytest.skip)(reason)
    node = RealNode(folders.own_folder("node"))
    try:
        node.up(progress=ConsoleProgress())
        redis = tmp_path_factory.mktemp("images") / "redis.tar"
        redis_archive(redis)
        node.load(redis)
        assert IMAGE in node.load(archive)
        yield node
    finally:
        node.down()


@pytest.fixture
def fairgate(node: RealNode, tmp_path: Path) -> Iterator[Installation]:
    """Fairgate, installed and with all pods ready. The objects of the test are removed."""
    fairgate = Installation(node, tmp_path)
    fairgate.install()
    yield fairgate
    fairgate.stage.clear()
