"""The `stage` of each end-to-end test: the shared cluster, emptied after the test."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from app.devcluster.cluster import LocalCluster
from tests.support.cluster_driver import Stage


@pytest.fixture
def stage(fairgate_cluster: LocalCluster, tmp_path: Path) -> Iterator[Stage]:
    """A cluster of 8 nodes with 8 GPUs each and Fairgate, without other pods."""
    stage = Stage(fairgate_cluster, folder=tmp_path)
    try:
        yield stage
    finally:
        stage.clear()
