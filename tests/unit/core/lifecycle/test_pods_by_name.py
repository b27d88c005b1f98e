"""A name finds the newest pod, also while the last pod with this name is not gone yet."""

from __future__ import annotations

from dataclasses import replace

from app.core.model import Node, NodeName, Uid
from app.core.quantities import CPU, PODS
from app.sim.cluster.virtual_cluster import held_pod
from tests.support.engine_bench import GPU, Bench

OLD, NEW = (replace(held_pod("p", "a"), uid=Uid(uid)) for uid in ("old", "new"))


def test_name_never_refers_to_the_older_of_two_pods() -> None:
    for first, second in ((OLD, NEW), (NEW, OLD)):
        bench = Bench(Node(NodeName("n"), {}, {GPU: 8, CPU: 64_000, PODS: 110}, ready=True))
        find = bench.engine.queries.find_pod
        bench.see(OLD, NEW)
        assert find("a", "p") == "new"
        assert find("a", "other") is find("b", "p") is None
        bench.gone(first)
        assert find("a", "p") == (None if first is NEW else "new")
        bench.gone(second)
        assert find("a", "p") is None
