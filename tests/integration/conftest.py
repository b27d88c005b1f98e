"""The chart, and a cluster it is installed in, without any process of Fairgate."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from app.dev.cluster import Cluster
from app.dev.tools import Tools
from tests.chart import ASKED, RESTRICTED, Chart


@pytest.fixture(scope="session")
def chart(cluster_tools: Tools, tmp_path_factory: pytest.TempPathFactory) -> Chart:
    """The chart and the helm that renders it."""
    return Chart(cluster_tools, tmp_path_factory.mktemp("helm"))


@pytest.fixture(scope="session")
def installed(cluster: Cluster) -> Iterator[Cluster]:
    """The bare cluster with the chart in it, and namespaces to try pods in."""
    cluster.install()
    for namespace in (ASKED, RESTRICTED):
        cluster.kubectl("create", "namespace", namespace)
        # One of our own: pods need not wait until the cluster has made the default one.
        cluster.kubectl("-n", namespace, "create", "serviceaccount", "own")
    level = "pod-security.kubernetes.io/enforce=restricted"
    cluster.kubectl("label", "namespace", RESTRICTED, level)
    yield cluster
    cluster.kubectl("delete", "namespace", ASKED, RESTRICTED, "--wait=false")
