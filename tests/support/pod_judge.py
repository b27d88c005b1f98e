"""Judges whether the webhook changed a pod correctly.

A second implementation of the rules (Kubernetes API reference; the contract of Fairgate's gate). It
shares no code with the product, so a mistake of the product is not repeated here.
"""

from __future__ import annotations

import copy
import re
from decimal import Decimal
from typing import Any

Object = dict[str, Any]

GATE = "fairgate.io/queue"
OURS = "fairgate.io/"
FOR_USERS = frozenset(
    (
        *("gang", "gang-size", "gang-min", "gang-failure", "placement", "topology"),
        *("gpu-memory", "model-size", "max-runtime", "preemptible", "pools"),
    )
)
SUFFIXES = {
    "n": "1e-9",
    "u": "1e-6",
    "m": "1e-3",
    "": "1",
    "k": "1e3",
    "M": "1e6",
    "G": "1e9",
    "T": "1e12",
    "P": "1e15",
    "E": "1e18",
    **{f"{prefix}i": str(1024**power) for power, prefix in enumerate("KMGTPE", 1)},
}
QUANTITY = re.compile(r"([+-]?[0-9.]+)(?:([eE][+-]?[0-9]+)|([KMGTPE]i|[numkMGTPE]?))")
LABEL = re.compile(r"([A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?)?")


def quantity(written: object) -> Decimal:
    """Return the value of a quantity; null is 0, as the API server reads it."""
    if written is None:
        return Decimal(0)
    match = QUANTITY.fullmatch(str(written).strip())
    if match is None:
        raise ValueError(f"{written!r} is no quantity")
    if match[2]:
        return Decimal(match[1] + match[2])
    return Decimal(match[1]) * Decimal(SUFFIXES[match[3]])


def is_managed(pod: Object, managed: tuple[str, ...]) -> bool:
    """Return whether the pod has claims, or requests a managed resource in a non-zero amount."""
    spec = pod["spec"]
    if spec.get("resourceClaims"):
        return True
    for container in (spec.get("containers") or []) + (spec.get("initContainers") or []):
        resources = container.get("resources") or {}
        for part in ("limits", "requests"):
            for name, written in (resources.get(part) or {}).items():
                if _matches(name, managed) and quantity(written) > 0:
                    return True
    return False


def faults_of_held(pod: Object, held: Object, user: str) -> list[str]:
    """Return the errors in a managed pod after admission."""
    meta, faults = held["metadata"], []
    gates = [gate["name"] for gate in held["spec"].get("schedulingGates") or []]
    foreign = [gate["name"] for gate in pod["spec"].get("schedulingGates") or []]
    if gates.count(GATE) != 1 or [gate for gate in gates if gate != GATE] != foreign:
        faults.append(f"gates are {gates}")
    labels, annotations = meta.get("labels") or {}, meta.get("annotations") or {}
    ours = {key for key in labels if key.startswith(OURS)}
    if ours != {OURS + "tenant", OURS + "user"} or labels[OURS + "tenant"] == "rich":
        faults.append(f"labels are {sorted(ours)}")
    if any(not LABEL.fullmatch(labels[key]) for key in ours):
        faults.append("a label is not legal")
    if annotations.get(OURS + "submitter") != user or annotations.get(OURS + "release") != "0":
        faults.append("stamps are wrong")
    own = {key.removeprefix(OURS) for key in annotations if key.startswith(OURS)}
    if own - FOR_USERS - {"submitter", "release"}:
        faults.append(f"annotations {sorted(own)}")
    if _without_ours(pod) != _without_ours(held):
        faults.append("something else was changed")
    return faults


def _without_ours(pod: Object) -> Object:
    """Return a pod without the parts that Fairgate's webhook may write."""
    bare = copy.deepcopy(pod)
    for part in ("labels", "annotations"):
        kept = {
            key: value
            for key, value in (bare["metadata"].get(part) or {}).items()
            if not key.startswith(OURS) or key.removeprefix(OURS) in FOR_USERS
        }
        bare["metadata"][part] = kept
    for part in ("schedulingGates", "affinity", "priorityClassName", "preemptionPolicy"):
        bare["spec"].pop(part, None)
    return bare


def _matches(name: str, managed: tuple[str, ...]) -> bool:
    return any(
        name.startswith(pattern[:-1]) if pattern.endswith("*") else name == pattern
        for pattern in managed
    )
