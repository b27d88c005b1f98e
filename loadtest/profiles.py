"""The stock scheduler of a local cluster, restarted with another of its own profiles."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import yaml

from app.dev.build import SOURCE
from app.dev.cluster import Cluster
from app.tls.issue import write_private

SCHEDULER = "kube-scheduler"
PACKING = SOURCE / "docs" / "examples" / "scheduler-most-allocated.yaml"
"""The file that the documentation offers to whoever wants the scheduler itself to pack."""


def profiles(name: str) -> list[dict[str, Any]]:
    """Return the scheduler's profiles: `default`, none but its own, or `most`, which packs."""
    if name == "default":
        return []
    found: list[dict[str, Any]] = yaml.safe_load(PACKING.read_text())["profiles"]
    return found


def restart(cluster: Cluster, name: str) -> None:
    """Restart the scheduler with these profiles; it may not schedule yet."""
    path = _configuration(cluster)
    document: dict[str, Any] = msgspec.json.decode(path.read_bytes())
    document["profiles"] = profiles(name)
    write_private(path, msgspec.json.encode(document))
    cluster.restart(SCHEDULER)


def _configuration(cluster: Cluster) -> Path:
    return cluster.folder / "config" / "scheduler.json"
