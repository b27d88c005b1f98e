"""Nodes that come and go, as on an autoscaled cluster, leave nothing behind."""

from __future__ import annotations

from dataclasses import replace

from app.core import events as ev
from app.core.model import Node, NodeName, Phase, Uid, UnmanagedPod
from app.core.quantities import CPU, PODS
from app.sim.cluster.virtual_cluster import held_pod
from tests.support.eviction_cluster import GPU, EvictionCluster


def use_and_remove_node(cluster: EvictionCluster, name: str) -> None:
    """Run a managed and an unmanaged pod on a new node, then remove all three."""
    node = NodeName(name)
    other = UnmanagedPod(Uid(f"other-{name}"), node, {CPU: 100, PODS: 1})
    pod = replace(
        held_pod(name, "d"),
        gates=(),
        release_annotation="5.1",
        node=node,
        phase=Phase.RUNNING,
        started_at=cluster.at,
    )
    allocatable = {GPU: 1, CPU: 1000, PODS: 110}
    cluster.hear(ev.NodeObserved(cluster.at, Node(node, {}, allocatable, True)))
    cluster.hear(ev.UnmanagedPodObserved(cluster.at, other))
    cluster.hear(ev.PodObserved(cluster.at, pod))
    cluster.hear(ev.PodGone(cluster.at, pod.uid), ev.PodGone(cluster.at, other.uid))
    cluster.hear(ev.NodeGone(cluster.at, node))


def test_no_entry_stays_for_a_node_that_is_gone() -> None:
    cluster = EvictionCluster()
    for i in range(3):
        use_and_remove_node(cluster, f"node-{i}")
    placement, pools = cluster.engine._placement, cluster.engine._pools
    assert not placement.allocations_by_node
    assert not pools._bound_usage
    assert not pools._unmanaged_by_node
