"""Reads Kubernetes events of pods."""

from __future__ import annotations

from tests.faults.fault_cluster import Rig


def events(rig: Rig, namespace: str, name: str) -> list[tuple[str, str]]:
    """Return reason and message of the events of a pod."""
    found = rig.stage.get("events", "-n", namespace)["items"]
    return [(e["reason"], e["message"]) for e in found if e["involvedObject"]["name"] == name]
