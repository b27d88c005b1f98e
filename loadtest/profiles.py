"""Restarts the default scheduler of a local cluster with other profiles."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import yaml

from app.devcluster.cluster import LocalCluster
from app.devcluster.go_build import SOURCE
from app.tls.certificate_authority import write_private

SCHEDULER = "kube-scheduler"
PACKING = SOURCE / "docs" / "examples" / "scheduler-most-allocated.yaml"
"""The documented example of a scheduler that packs pods."""


def profiles(name: str) -> list[dict[str, Any]]:
    """Return the scheduler's profiles: empty for `default`, or packing for `most`."""
    if name == "default":
        return []
    found: list[dict[str, Any]] = yaml.safe_load(PACKING.read_text())["profiles"]
    return found


def restart(cluster: LocalCluster, name: str) -> None:
    """Restart the scheduler with these profiles. It may not be ready yet."""
    path = _configuration(cluster)
    document: dict[str, Any] = msgspec.json.decode(path.read_bytes())
    document["profiles"] = profiles(name)
    write_private(path, msgspec.json.encode(document))
    cluster.restart(SCHEDULER)


def _configuration(cluster: LocalCluster) -> Path:
    return cluster.folder / "config" / "scheduler.json"
