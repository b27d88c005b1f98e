"""If Redis is down, no replica leads. Owners of held pods and operators are informed."""

from __future__ import annotations

import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from app.devcluster import state_dir as folders
from app.devcluster.binaries import Tools
from app.devcluster.cluster import LocalCluster
from app.devcluster.cluster_options import ClusterOptions
from app.devcluster.fairgate_install import NAMESPACE
from app.devcluster.readiness import free_ports
from tests.support.cluster_driver import Stage, pod, until

POLICY = {"apiVersion": "fairgate.io/v1alpha1", "kind": "Policy", "metadata": {"name": "default"}}


@pytest.fixture
def stage(cluster_tools: Tools, tmp_path: Path) -> Iterator[Stage]:
    cluster = LocalCluster(folders.own_folder("standstill"))
    nowhere = f"redis://127.0.0.1:{free_ports(1)[0]}/0"
    try:
        cluster.up(
            ClusterOptions(nodes=1, fairgate=False, environment={"FAIRGATE_REDIS_URL": nowhere})
        )
        cluster.start_fairgate("webhook")
        for _ in range(2):
            cluster.start_fairgate("controller")
        yield Stage(cluster, folder=tmp_path)
    finally:
        cluster.down()


def health(stage: Stage) -> list[int]:
    """Return the status of `/readyz` and `/healthz/leader` of each controller."""
    found = []
    for url in stage.cluster.ops_urls("controller"):
        for path in ("/readyz", "/healthz/leader"):
            try:
                with urllib.request.urlopen(f"{url}{path}", timeout=5) as answer:
                    found.append(answer.status)
            except urllib.error.HTTPError as error:
                found.append(error.code)
    return found


def test_a_missing_redis_is_reported_to_everybody(stage: Stage) -> None:
    space = stage.namespace("standstill")
    stage.apply(space, pod("waits"))

    def events(namespace: str, reason: str) -> list[str]:
        found = stage.get("events", "-n", namespace)["items"]
        return [each["message"] for each in found if each["reason"] == reason]

    def told() -> bool:
        return any("No pod is released" in each for each in events(space, "Waiting"))

    until("its owner is told", told, seconds=120)
    [message] = [each for each in events(space, "Waiting") if "No pod is released" in each]
    assert "cannot be reached" in message
    until("operators are told", lambda: len(events(NAMESPACE, "RedisUnreachable")) == 1)

    def condition() -> bool:
        status = stage.get("policy", "default").get("status", {})
        found = [each for each in status.get("conditions", []) if each["type"] == "Releasing"]
        return [(each["status"], each["reason"]) for each in found] == [
            ("False", "RedisUnreachable")
        ]

    stage.apply("default", {**POLICY, "spec": {}})
    until("a Policy that is created now says so", condition)
    until("its health says so, and it is ready", lambda: health(stage) == [200, 503, 200, 503])
