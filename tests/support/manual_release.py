"""Runs `fairgate release` against a cluster."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from app.devcluster.cluster import LocalCluster

Done = subprocess.CompletedProcess[str]


def release(cluster: LocalCluster, user: str, folder: Path, *args: str) -> Done:
    """Run `fairgate release` as a real user."""
    kubeconfig = folder / f"{user}.kubeconfig"
    kubeconfig.write_text(cluster.create_user(user))
    return subprocess.run(
        [sys.executable, "-m", "app", "release", "--kubeconfig", str(kubeconfig), *args],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )


def bind(cluster: LocalCluster, user: str) -> None:
    """Bind a user to the operator role for the whole cluster."""
    cluster.kubectl(
        "create", "clusterrolebinding", f"operator-{user}",
        "--clusterrole=fairgate-operator", f"--user={user}",
    )  # fmt: skip
