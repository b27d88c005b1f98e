"""A real API server with the CRDs of other projects accepts the objects that the chart creates.

The projects are Gateway API, Prometheus operator and cert-manager. Their controllers do not run.
"""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from app.core.errors import ClusterError
from app.devcluster.cluster import LocalCluster
from tests.support.chart import Chart, Object, of_kind
from tests.support.cluster_driver import create_crds
from tests.support.operator_crds import CHART_CRDS, read_crd, required_crd_files

APPLY = ("apply", "--server-side", "--force-conflicts", "--dry-run=server", "-f", "-")
VALUES = (
    "api.service.type=LoadBalancer",
    "api.ingress.enabled=true",
    "api.ingress.className=web",
    "api.ingress.hosts={gpu.example}",
    "api.ingress.tls[0].secretName=gpu",
    "api.gateway.enabled=true",
    "api.gateway.parentRefs[0].name=web",
    "api.gateway.hostnames={gpu.example}",
    "api.gateway.caConfigMap=fairgate-ca",
    "alerts.enabled=true",
    "certManager.enabled=true",
    "certManager.issuerRef.name=own",
)
MONITORS = ("podMonitor", "serviceMonitor")
"""The chart accepts one of them."""

KINDS = {
    "Ingress",
    "HTTPRoute",
    "BackendTLSPolicy",
    "PodMonitor",
    "ServiceMonitor",
    "PrometheusRule",
    "Certificate",
}


@pytest.fixture(scope="module")
def served(installed: LocalCluster) -> Iterator[LocalCluster]:
    """The cluster with the CRDs. Whatever is not in their schemas is an error."""
    crds = [read_crd(path) for path in required_crd_files(CHART_CRDS).values()]
    names = create_crds(installed, crds)
    yield installed
    installed.kubectl("delete", "--wait=false", *names)


@pytest.fixture(scope="module")
def documents(chart: Chart) -> list[Object]:
    found: dict[str, Object] = {}
    for monitor in MONITORS:
        scraped = (f"metrics.{monitor}.{value}" for value in ("enabled=true", "interval=15s"))
        found |= {each["kind"]: each for each in chart.render(*VALUES, *scraped)}
    return [found[kind] for kind in sorted(KINDS)]


@pytest.mark.parametrize("kind", sorted(KINDS))
def test_the_api_server_accepts_the_object(
    served: LocalCluster, documents: list[Object], kind: str
) -> None:
    [item] = of_kind(documents, kind).values()
    assert "dry run" in served.kubectl(*APPLY, stdin=json.dumps(item))


@pytest.mark.parametrize("kind", sorted(KINDS))
def test_an_unknown_field_would_be_refused(
    served: LocalCluster, documents: list[Object], kind: str
) -> None:
    [item] = of_kind(documents, kind).values()
    wrong = {**item, "spec": {**item["spec"], "unknownField": 1}}
    with pytest.raises(ClusterError, match="unknownField"):
        served.kubectl(*APPLY, stdin=json.dumps(wrong))
