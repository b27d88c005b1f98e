"""Reads audit entries of a cluster."""

from __future__ import annotations

import json
from typing import Any

from app.devcluster.cluster import LocalCluster

Entry = dict[str, Any]


def entries(cluster: LocalCluster) -> list[Entry]:
    """Return the audit entries in the controllers' output. A new leader repeats the last few."""
    found: dict[tuple[int, int], Entry] = {}
    for log in sorted((cluster.folder / "logs").glob("fairgate-controller*")):
        for line in log.read_text(errors="replace").splitlines():
            if line.startswith('{"audit":true,"number"') and line.endswith("}"):
                entry = json.loads(line)
                found[entry["epoch"], entry["number"]] = entry
    return [found[key] for key in sorted(found)]
