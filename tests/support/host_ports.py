"""A host port that pods compete for."""

from __future__ import annotations

from app.core.model import SchedulerCondition

PORTS = SchedulerCondition(
    "Unschedulable",
    "0/3 nodes are available: 1 node(s) didn't have free ports for the requested pod ports, "
    "2 node(s) didn't match Pod's node affinity/selector. preemption: 0/3 nodes are available: "
    "3 Preemption is not helpful for scheduling.",
)
"""The scheduler's message for a pod that its own spec keeps off every node."""
