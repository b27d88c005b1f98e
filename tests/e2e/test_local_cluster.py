"""The local cluster runs Fairgate under its own accounts, and starts and stops its processes."""

from __future__ import annotations

import json
import signal

from app.devcluster.cluster import LocalCluster
from tests.support.cluster_driver import Stage, pod, until


def test_controller_releases_pods_with_its_own_account(stage: Stage) -> None:
    namespace = stage.namespace("own-accounts")
    stage.apply(namespace, pod("fair"))
    until("it runs", lambda: stage.running(namespace) == ["fair"])
    entries = map(json.loads, stage.cluster.audit_log.read_text().splitlines())
    released = [
        entry["user"]["username"]
        for entry in entries
        if (entry["objectRef"].get("namespace"), entry["objectRef"].get("name"))
        == (namespace, "fair")
        and (entry["verb"], entry["objectRef"].get("subresource")) == ("patch", None)
    ]
    assert set(released) == {"system:serviceaccount:fairgate-system:fairgate-controller"}


def test_fairgate_processes_start_and_stop_one_by_one(fairgate_cluster: LocalCluster) -> None:
    (first,) = fairgate_cluster.details().pids["fairgate-controller"]
    second = fairgate_cluster.start_fairgate("controller")
    assert fairgate_cluster.details().pids["fairgate-controller"] == [first, second.pid]
    assert len(fairgate_cluster.ops_urls("controller")) == 2
    fairgate_cluster.stop_fairgate("controller", signal.SIGKILL, pid=second.pid)
    assert fairgate_cluster.details().pids["fairgate-controller"] == [first]
