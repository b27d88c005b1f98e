"""`fairgate audit` against a local cluster, as an auditor runs it."""

from __future__ import annotations

import os
import subprocess
import sys

from app.dev.cluster import Cluster


def audit(cluster: Cluster, *arguments: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
    """Run it and return what it said."""
    environment = os.environ | {"FAIRGATE_REDIS_URL": cluster.details().redis}
    environment["KUBECONFIG"] = str(cluster.kubeconfig)
    return subprocess.run(
        [sys.executable, "-m", "app", "audit", *arguments],
        env=environment, capture_output=True, text=True, check=False, input=stdin, timeout=120,
    )  # fmt: skip


def anchor(cluster: Cluster) -> str:
    """Return the signed head that the cluster keeps, as JSON."""
    where = ("-n", "fairgate-system", "-o", "json")
    return cluster.kubectl("get", "configmap", "fairgate-audit", *where)
