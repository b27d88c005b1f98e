"""Runs `fairgate audit` against a local cluster."""

from __future__ import annotations

import os
import subprocess
import sys

from app.devcluster.cluster import LocalCluster


def audit(
    cluster: LocalCluster, *arguments: str, stdin: str = ""
) -> subprocess.CompletedProcess[str]:
    """Run `fairgate audit` and return the completed process."""
    environment = os.environ | {"FAIRGATE_REDIS_URL": cluster.details().redis}
    environment["KUBECONFIG"] = str(cluster.kubeconfig)
    return subprocess.run(
        [sys.executable, "-m", "app", "audit", *arguments],
        env=environment, capture_output=True, text=True, check=False, input=stdin, timeout=120,
    )  # fmt: skip


def anchor(cluster: LocalCluster) -> str:
    """Return the signed head that the cluster stores, as JSON."""
    where = ("-n", "fairgate-system", "-o", "json")
    return cluster.kubectl("get", "configmap", "fairgate-audit", *where)
