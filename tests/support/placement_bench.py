"""Nodes, pods and requests for tests of placement."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from app.core.model import Node, NodeName, Pod
from app.core.podspec.constraints import (
    NodeSelectorRequirement,
    NodeSelectorTerm,
    Taint,
)
from app.core.quantities import CPU, PODS
from app.sim.cluster.virtual_cluster import held_pod
from tests.support.engine_bench import GPU


def node(name: str, *taints: Taint, gpus: int = 8, ready: bool = True, **labels: str) -> Node:
    room = {GPU: gpus, CPU: 64_000, PODS: 110}
    return Node(NodeName(name), labels, room, ready, taints=taints)


def asks(name: str, gpus: int = 8, **more: Any) -> Pod:
    pod = replace(held_pod(name, "team"), demand={GPU: gpus, PODS: 1})
    return replace(pod, **more)


def near(key: str, operator: str, *values: str) -> tuple[NodeSelectorTerm, ...]:
    return (NodeSelectorTerm((NodeSelectorRequirement(key, operator, values),)),)
