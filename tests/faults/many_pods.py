"""Creates or finishes many pods at once.

KWOK simulates the nodes, so its user reports the status of the pods.
"""

from __future__ import annotations

import http.client
import json
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from urllib.parse import urlsplit

from app.devcluster.control_plane import ControlPlane
from app.devcluster.nodes import KWOK_USER
from tests.faults.fault_cluster import Rig
from tests.support.cluster_driver import Object
from tests.support.personas import Person

AT_ONCE = 8
SUCCEEDED: Object = {"status": {"phase": "Succeeded"}}

Call = tuple[str, str, object]
"""Method, path and body of a request."""


def create(rig: Rig, namespace: str, pods: Sequence[Object]) -> float:
    """Create pods with administrator rights as fast as possible; return the seconds it took."""
    path = f"/api/v1/namespaces/{namespace}/pods"
    return _send(rig, rig.cluster.kubeconfig, [("POST", path, pod) for pod in pods])


def finish(rig: Rig, pods: Sequence[Object]) -> float:
    """Set pods to Succeeded as fast as possible; return the seconds it took."""
    return report(rig, pods, SUCCEEDED)


def report(rig: Rig, pods: Sequence[Object], status: Object) -> float:
    """Report this status of pods as their nodes; return the seconds it took."""
    plan = ControlPlane.load(rig.cluster.folder, rig.cluster.processes).plan
    metas = [pod["metadata"] for pod in pods]
    paths = [f"/api/v1/namespaces/{m['namespace']}/pods/{m['name']}/status" for m in metas]
    return _send(rig, plan.kubeconfig(KWOK_USER), [("PATCH", path, status) for path in paths])


def _send(rig: Rig, kubeconfig: Path, calls: Sequence[Call]) -> float:
    plan = ControlPlane.load(rig.cluster.folder, rig.cluster.processes).plan
    server, context = urlsplit(plan.server), Person(kubeconfig).context

    def work(share: Sequence[Call]) -> None:
        connection = http.client.HTTPSConnection(
            server.hostname or "", server.port, timeout=60, context=context
        )
        for method, path, body in share:
            kind = "merge-patch+json" if method == "PATCH" else "json"
            headers = {"Content-Type": f"application/{kind}"}
            connection.request(method, path, json.dumps(body), headers)
            answer = connection.getresponse()
            text = answer.read()
            assert answer.status < 300, text
        connection.close()

    began = time.monotonic()
    with ThreadPoolExecutor(AT_ONCE) as pool:
        list(pool.map(work, [calls[nth::AT_ONCE] for nth in range(min(AT_ONCE, len(calls)))]))
    return time.monotonic() - began
