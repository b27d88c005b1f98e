"""Cached eligible pools are recomputed when needed and evicted when unused."""

from __future__ import annotations

from dataclasses import replace

from app.core import events as ev
from app.core.model import Millis, NodeName, Pool, PoolName
from app.core.placement.node_filter import node_constraints_of
from app.core.placement.pools import Pools
from app.core.podspec.constraints import Taint, Toleration
from app.core.podspec.device_fractions import LABEL_MEMORY
from app.core.quantities import GIB, ManagedResources
from tests.support.engine_bench import GPU, Bench
from tests.support.placement_bench import asks, node

OLD, NEW = (Pool(PoolName(name), {"pool": name}) for name in ("old", "new"))


def test_pod_of_a_new_pool_is_released_although_another_pool_is_deleted() -> None:
    a, b = (node(name, Taint("t"), pool=pool) for name, pool in (("a", "old"), ("b", "new")))
    bench = Bench(a, pools=(OLD,))
    bench.see(
        asks("p", pools=(NEW.name,), gpu_memory=GIB, tolerations=(Toleration("t", "Exists"),))
    )
    at = Millis(2)
    bench.hear(ev.PoolGone(at, OLD.name), ev.PoolObserved(at, NEW), ev.NodeObserved(at, b))
    assert bench.released == {"p": "b"}


def test_cached_answers_are_dropped_with_the_last_pod_that_needed_them() -> None:
    bench = Bench(node("a"))
    pools = bench.engine._pools
    for number in range(100):
        pod = asks(f"p{number}", 8, selector={"zone": f"none-{number}"})
        bench.engine.handle(ev.PodObserved(Millis(2), pod))
        bench.engine.handle(ev.PodGone(Millis(2), pod.uid))
        if not number % 5:
            bench.engine.handle(ev.Pass(Millis(2)))
        del pod
        assert pools.cached_answers <= 7
    assert bench.released == {}


def test_pool_becomes_eligible_if_a_node_label_reports_more_memory() -> None:
    pools = Pools(ManagedResources([GPU]))
    pools.put_pool(OLD)
    pools.put_node(node("a", pool="old", **{LABEL_MEMORY: "16384"}))
    pools.rebuild_if_stale()
    small, large = asks("s", 1, gpu_memory=GIB), asks("l", 1, gpu_memory=40 * GIB)
    large = replace(large, tolerations=(Toleration("odd", "Exists"),))
    assert (pools.eligible_pools(small, None), pools.eligible_pools(large, None)) == (("old",), ())
    pools.put_node(node("a", pool="old", **{LABEL_MEMORY: "81920"}))
    assert len(pools.drain_changed_constraints()) == 1
    assert (pools.eligible_pools(small, None), pools.eligible_pools(large, None)) == (
        ("old",),
        ("old",),
    )


def test_first_node_of_a_pool_changes_only_constraints_that_it_affects() -> None:
    pools = Pools(ManagedResources([GPU]))
    pools.put_pool(replace(OLD, max_capacity={GPU: 16}))
    pools.rebuild_if_stale()
    plain, tied = asks("p", 1), asks("q", 1, selector={"zone": "z"})
    assert (pools.eligible_pools(plain, None), pools.eligible_pools(tied, None)) == (("old",), ())
    for _ in range(2):
        pools.put_node(node("a", pool="old", zone="z"))
        assert pools.drain_changed_constraints() == {node_constraints_of(tied)}
        assert pools.eligible_pools(tied, None) == ("old",)
        pools.drop_node(NodeName("a"))
        assert pools.drain_changed_constraints() == {node_constraints_of(tied)}
        assert pools.eligible_pools(tied, None) == ()
