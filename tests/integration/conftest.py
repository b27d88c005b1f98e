"""The chart, and a cluster with the chart installed, without Fairgate processes."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest
import yaml

from app.devcluster.binaries import Tools
from app.devcluster.cluster import LocalCluster
from app.devcluster.fairgate_install import NAMESPACE
from app.kube.enforcement_spec import CONFIG_MAP
from tests.support.chart import ASKED, RESTRICTED, Chart, enforced


@pytest.fixture(scope="session")
def chart(cluster_tools: Tools, tmp_path_factory: pytest.TempPathFactory) -> Chart:
    """The chart and the helm program that renders it."""
    return Chart(cluster_tools, tmp_path_factory.mktemp("helm"))


@pytest.fixture(scope="session")
def installed(cluster: LocalCluster) -> Iterator[LocalCluster]:
    """The bare cluster with the chart, what webhooks create, and namespaces for test pods."""
    cluster.install()
    held = cluster.kubectl("get", "configmap", CONFIG_MAP, "-n", NAMESPACE, "-o", "json")
    documents = enforced([json.loads(held)])
    cluster.kubectl("apply", "--server-side", "-f", "-", stdin=yaml.safe_dump_all(documents))
    for namespace in (ASKED, RESTRICTED):
        cluster.kubectl("create", "namespace", namespace)
        # A separate service account: pods need not wait until the cluster has created the default
        # one.
        cluster.kubectl("-n", namespace, "create", "serviceaccount", "own")
    level = "pod-security.kubernetes.io/enforce=restricted"
    cluster.kubectl("label", "namespace", RESTRICTED, level)
    yield cluster
    cluster.kubectl("delete", "namespace", ASKED, RESTRICTED, "--wait=false")
