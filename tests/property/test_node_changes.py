"""Nodes change labels, shrink, leave and return, and releases never exceed the free capacity.

A released, unbound pod counts on its expected node. An over-allocated node does not reduce the
capacity of other nodes.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from app.core import events as ev
from app.core.effects import Release
from app.core.engine import Engine
from app.core.model import (
    DEFAULT_POOL,
    Millis,
    Node,
    NodeName,
    Phase,
    Pod,
    Pool,
    PoolName,
    ReleaseOutcome,
    Resource,
)
from app.core.quantities import PODS, ManagedResources
from app.sim.cluster.virtual_cluster import held_pod

GPU = Resource("nvidia.com/gpu")
AT = Millis(1000)


class Site:
    """Some nodes of 4 GPUs in their real state, held pods, and a leader."""

    def __init__(self, nodes: int, pools: bool = False, waiting: int = 24) -> None:
        self.engine = Engine(ManagedResources([GPU]))
        self.nodes: dict[str, Node] = {}
        self.pods: dict[str, Pod] = {}
        self.pools = ("left", "right") if pools else (str(DEFAULT_POOL),)
        for name in self.pools if pools else ():
            self.hear(ev.PoolObserved(AT, Pool(PoolName(name), {"side": name})))
        for number in range(nodes):
            self.node(f"n{number}")
        for number in range(waiting):
            pod = held_pod(f"p{number:02}", "a")
            self.hear(ev.PodObserved(AT, pod))
        for source in ev.WatchedSource:
            self.hear(ev.SourceFresh(AT, source))
        self.hear(ev.LeadershipGained(AT, 1))
        self.hear(ev.StoreReady(AT))

    def node(self, name: str, gpus: int = 4, side: str = "left", ready: bool = True) -> None:
        labels = {"side": side}
        node = Node(NodeName(name), labels, {GPU: gpus, PODS: 1000}, ready)
        self.nodes[name] = node
        self.hear(ev.NodeObserved(AT, node))

    def hear(self, event: ev.Event) -> None:
        orders = [*self.engine.handle(event), *self.engine.handle(ev.Pass(AT))]
        for order in orders:
            if isinstance(order, Release):
                self._release(order)

    def _release(self, order: Release) -> None:
        pool = order.intent.pool
        pod = replace(
            held_pod(order.intent.ref.name, "a"),
            gates=(),
            release_annotation=order.stamp,
            pool=pool,
        )
        self.pods[pod.name] = pod
        assert self.unbound(pool) <= self.room(pool), f"{pod.name} goes beyond pool {pool}"
        self.engine.handle(ev.ReleaseAnswered(AT, pod.uid, ReleaseOutcome.RELEASED))

    def unbound(self, pool: str) -> int:
        return sum(p.node is None and p.pool == pool for p in self.pods.values())

    def room(self, pool: str) -> int:
        return sum(self.free(n) for n in self.nodes if self.home(n) == pool)

    def free(self, name: str) -> int:
        node = self.nodes[name]
        bound = sum(p.node == name for p in self.pods.values())
        return max(0, node.allocatable[GPU] - bound) if node.ready else 0

    def home(self, name: str) -> str:
        side = self.nodes[name].labels["side"]
        return side if side in self.pools else self.pools[0]

    def bind(self, name: str) -> None:
        """Bind a pod as the scheduler does, if a node of its pool has enough capacity."""
        pod = self.pods[name]
        fitting = [n for n in sorted(self.nodes) if self.home(n) == pod.pool and self.free(n)]
        if pod.node is None and fitting:
            bound = replace(pod, node=NodeName(fitting[0]), phase=Phase.RUNNING)
            self.pods[name] = bound
            self.hear(ev.PodObserved(AT, bound))

    def end(self, name: str) -> None:
        self.hear(ev.PodGone(AT, self.pods.pop(name).uid))

    def lose(self, name: str) -> None:
        if self.nodes.pop(name, None) is not None:
            self.hear(ev.NodeGone(AT, NodeName(name)))


def test_label_change_of_a_node_frees_no_capacity() -> None:
    site = Site(2)
    for name in list(site.pods):
        site.bind(name)
    site.node("n0", side="somewhere else")
    assert len(site.pods) == 8


@pytest.mark.parametrize("how", ["gone", "not ready", "shrunk"])
def test_unbound_pod_is_expected_elsewhere_if_its_node_is_lost_or_shrinks(how: str) -> None:
    site = Site(2, waiting=4)
    if how == "gone":
        site.lose("n0")
    elif how == "not ready":
        site.node("n0", ready=False)
    else:
        site.node("n0", gpus=1)
    room = site.room(DEFAULT_POOL)
    for number in range(4):
        site.hear(ev.PodObserved(AT, held_pod(f"late-{number}", "a")))
    assert len(site.pods) == room


STEPS = st.lists(
    st.tuples(
        st.sampled_from(("label", "size", "ready", "lose", "bind", "bind", "bind", "end")),
        st.integers(0, 40),
        st.integers(0, 5),
    ),
    max_size=60,
)


@given(st.booleans(), STEPS)
@example(False, [("label", 0, 1)])
@example(True, [("label", 0, 1), ("label", 0, 0)])
def test_no_release_exceeds_the_remaining_capacity(
    pools: bool, steps: list[tuple[str, int, int]]
) -> None:
    site = Site(3, pools)
    for what, which, value in steps:
        node = f"n{which % 3}"
        names = sorted(site.pods)
        known = site.nodes.get(node)
        gpus = known.allocatable[GPU] if known else 4
        side = known.labels["side"] if known else "left"
        if what == "label":
            site.node(node, gpus, ("left", "right")[value % 2])
        elif what == "size":
            site.node(node, value, side)
        elif what == "ready":
            site.node(node, gpus, side, ready=bool(value % 2))
        elif what == "lose":
            site.lose(node)
        elif names and what == "bind":
            site.bind(names[which % len(names)])
        elif names and what == "end":
            site.end(names[which % len(names)])
