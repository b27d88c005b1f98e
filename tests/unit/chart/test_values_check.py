"""Values that are legal one by one, but not together or not in this cluster."""

from __future__ import annotations

import pytest

from app.devcluster.binaries import Tools
from tests.support.chart import Chart, of_kind

LIMIT = "redis.bundled.resources.limits.memory"


@pytest.fixture(scope="module")
def chart(cluster_tools: Tools, tmp_path_factory: pytest.TempPathFactory) -> Chart:
    return Chart(cluster_tools, tmp_path_factory.mktemp("helm"))


def bundled(maximum: str, limit: str) -> tuple[str, ...]:
    return (
        "redis.bundled.enabled=true",
        f"redis.bundled.maxMemory={maximum}",
        f"--set-json={LIMIT}={limit}",
    )


@pytest.mark.parametrize(
    ("maximum", "limit"),
    [("2gb", '"1Gi"'), ("1gb", '"1Gi"'), ("1gb", '"1000M"'), ("1gb", "1073741824")],
)
def test_a_bundled_redis_that_would_exceed_its_limit_is_refused(
    chart: Chart, maximum: str, limit: str
) -> None:
    done = chart.template(*bundled(maximum, limit))
    assert f"redis.bundled.maxMemory ({maximum}) is not below {LIMIT}" in done.stderr


@pytest.mark.parametrize(
    ("maximum", "limit"),
    [("512mb", '"1Gi"'), ("900000kb", '"1G"'), ("1gb", "1073741825"), ("9gb", "null")],
)
def test_a_bundled_redis_within_its_limit_is_rendered(
    chart: Chart, maximum: str, limit: str
) -> None:
    done = chart.template(*bundled(maximum, limit))
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("paths", ["(", "^/dev)", "[", "*", "a\\\\"])
def test_an_invalid_pattern_of_device_paths_is_refused(chart: Chart, paths: str) -> None:
    assert (
        "devices.paths is no valid regular expression: "
        in chart.template(f"devices.paths={paths}").stderr
    )


@pytest.mark.parametrize("paths", ["^/dev$", "/(dev|run)/.*", "a\\\\."])
def test_a_valid_pattern_of_device_paths_is_rendered(chart: Chart, paths: str) -> None:
    done = chart.template(f"devices.paths={paths}")
    assert done.returncode == 0, done.stderr


def test_keeping_pods_off_gpu_nodes_requires_kubernetes_1_36(chart: Chart) -> None:
    value = "gpuNodes.keepOthersOff=true"
    old = chart.template(value, "--kube-version=1.35.4")
    assert (
        "gpuNodes.keepOthersOff needs Kubernetes 1.36 or newer, and this is v1.35.4" in old.stderr
    )
    for version in ("1.36.0", "1.36.2-gke.100", "1.37.0"):
        assert of_kind(chart.render(value, f"--kube-version={version}"), "MutatingAdmissionPolicy")
