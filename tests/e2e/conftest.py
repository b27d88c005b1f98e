"""The stage of each end-to-end test: the shared cluster, emptied afterwards."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from app.dev.cluster import Cluster
from tests.e2e.stage import Stage


@pytest.fixture
def stage(fairgate_cluster: Cluster, tmp_path: Path) -> Iterator[Stage]:
    """A cluster of 8 nodes with 8 GPUs each and Fairgate in it, with nothing else running."""
    stage = Stage(fairgate_cluster, folder=tmp_path)
    try:
        yield stage
    finally:
        stage.clear()
