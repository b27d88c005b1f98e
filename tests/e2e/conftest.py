"""The `stage` of each end-to-end test: the shared cluster, emptied after the test."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from app.devcluster.cluster import LocalCluster
from tests.support.cluster_driver import Stage

_tenants: dict[str, str] = {}
"""The test of each tenant of the shared cluster."""


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> Iterator[None]:
    """End the shared cluster after the last test here, so that it takes no CPU time of others."""
    yield
    cluster = getattr(item, "funcargs", {}).get("fairgate_cluster")
    if cluster is not None and (nextitem is None or nextitem.path.parent != item.path.parent):
        cluster.down()


@pytest.fixture
def stage(
    fairgate_cluster: LocalCluster, tmp_path: Path, request: pytest.FixtureRequest
) -> Iterator[Stage]:
    """A cluster of 8 nodes with 8 GPUs each and Fairgate, without other pods.

    What a tenant has used counts even if it is created again, so each test has names of its own.
    """
    stage = Stage(fairgate_cluster, folder=tmp_path)
    try:
        yield stage
    finally:
        stage.clear()
    this = request.node.nodeid.partition("[")[0]
    names = {name for kind, name in stage.objects if kind == "tenant"}
    shared = {name: other for name in names if (other := _tenants.setdefault(name, this)) != this}
    assert not shared, f"other tests use tenants of the same names: {shared}"
