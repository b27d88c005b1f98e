"""What a node says of its pods, that they have finished: said as KWOK, which plays the nodes."""

from __future__ import annotations

import http.client
import json
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from urllib.parse import urlsplit

from app.dev.control_plane import ControlPlane
from app.dev.nodes import KWOK_USER
from tests.e2e.stage import Object
from tests.faults.rig import Rig
from tests.people import Person

AT_ONCE = 8
SUCCEEDED = json.dumps({"status": {"phase": "Succeeded"}})
HEADERS = {"Content-Type": "application/merge-patch+json"}


def finish(rig: Rig, pods: Sequence[Object]) -> float:
    """Let pods succeed, as fast as can be; return the seconds it took."""
    plan = ControlPlane.load(rig.cluster.folder, rig.cluster.processes).plan
    server, context = urlsplit(plan.server), Person(plan.kubeconfig(KWOK_USER)).context

    def end(share: Sequence[Object]) -> None:
        connection = http.client.HTTPSConnection(
            server.hostname or "", server.port, timeout=60, context=context
        )
        for pod in share:
            meta = pod["metadata"]
            path = f"/api/v1/namespaces/{meta['namespace']}/pods/{meta['name']}/status"
            connection.request("PATCH", path, SUCCEEDED, HEADERS)
            answer = connection.getresponse()
            body = answer.read()
            assert answer.status == 200, body
        connection.close()

    began = time.monotonic()
    with ThreadPoolExecutor(AT_ONCE) as pool:
        list(pool.map(end, [pods[nth::AT_ONCE] for nth in range(min(AT_ONCE, len(pods)))]))
    return time.monotonic() - began
