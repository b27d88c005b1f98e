"""Classifies a scheduler message: is the pod's own spec the reason that no node accepted the pod?

The phrases are those of kube-scheduler 1.34 to 1.37. Only reasons that follow from the pod's own
spec delay identical pods. An unknown phrase blames neither the user nor the pod.
"""

from __future__ import annotations

import re
from enum import Enum

from app.core.model import SchedulerCondition


class UnschedulableCause(Enum):
    """Cause of a failed scheduling."""

    POD = "pod"
    """The pod's own spec: volumes, host ports, rules about other pods."""
    OTHERS = "others"
    """Other pods, nodes, devices, or an unknown cause."""


_REASON = re.compile(r"^(?:\d+ )?(.*)$", re.DOTALL)

_HEAD = re.compile(r"^\d+/\d+ nodes are available: ")

_OWN = (
    "node(s) didn't match pod affinity rules",
    "node(s) didn't match pod anti-affinity rules",
    "node(s) didn't match pod topology spread constraints",
    "node(s) didn't have free ports for the requested pod ports",
    "node(s) didn't find available persistent volumes to bind",
    "node(s) didn't match PersistentVolume's node affinity",
    "node(s) had volume node affinity conflict",
    "node(s) unavailable due to one or more pvc(s) bound to non-existent pv(s)",
    "pod has unbound immediate PersistentVolumeClaims",
    "persistentvolumeclaim ",
    "resourceclaim ",
)
"""Prefixes of reasons that follow from the pod's spec alone."""

_NEUTRAL = (
    "node(s) didn't match Pod's node affinity/selector",
    "node(s) didn't satisfy plugin(s) [NodeAffinity]",
    "node(s) had untolerated taint",
    "node(s) were unschedulable",
    "node(s) didn't match the requested node name",
    "Insufficient ",
    "Too many pods",
)
"""Prefixes for nodes that are full or not meant for the pod. They do not count either way."""


def unschedulable_cause_of(said: SchedulerCondition | None) -> UnschedulableCause:
    """Return the cause of a failed scheduling from the scheduler's message."""
    if said is None or not said.was_judged:
        return UnschedulableCause.OTHERS
    # The rest of the message concerns preemption, not the pod.
    text = _HEAD.sub("", said.message.split(" preemption: ")[0].strip())
    own = False
    for reason in _reasons(text):
        if reason.startswith(_OWN):
            own = True
        elif not reason.startswith(_NEUTRAL):
            return UnschedulableCause.OTHERS
    return UnschedulableCause.POD if own else UnschedulableCause.OTHERS


def _reasons(text: str) -> list[str]:
    """Return the reasons of a message. Commas within taints and names do not separate reasons."""
    parts = re.split(r"[,.] (?=\d+ )", text.rstrip("."))
    found = (_REASON.match(part.strip()) for part in parts)
    return [each[1] for each in found if each is not None and each[1]]
