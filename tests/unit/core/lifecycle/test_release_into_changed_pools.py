"""A pod whose release goes on while its pool is renamed is charged to the new pool."""

from __future__ import annotations

from app.core import events as ev
from app.core.effects import Release
from app.core.engine import Engine
from app.core.model import Millis, Node, NodeName, Pool, PoolName, ReleaseOutcome
from app.core.quantities import CPU, PODS, ManagedResources
from app.sim.cluster.virtual_cluster import held_pod
from tests.support.engine_bench import GPU, NOW

NODE = Node(NodeName("n"), {"gpu": "h100"}, {GPU: 8, CPU: 64_000, PODS: 110}, ready=True)
OLD, NEW = (Pool(PoolName(name), {"gpu": "h100"}) for name in ("old", "new"))


def releases(engine: Engine, *events: ev.NewsEvent) -> list[str]:
    """Return the pods released after these events. No release is answered."""
    for event in events:
        engine.handle(event)
    effects = engine.handle(ev.Pass(NOW))
    return [each.intent.ref.name for each in effects if isinstance(each, Release)]


def test_no_second_pod_gets_the_same_devices() -> None:
    engine = Engine(ManagedResources([GPU]))
    first, second = held_pod("first", "a", 8), held_pod("second", "b", 8, since=1)
    fresh = (ev.SourceFresh(Millis(0), source) for source in ev.WatchedSource)
    start = (ev.PoolObserved(NOW, OLD), ev.NodeObserved(NOW, NODE), *fresh)
    leads = (ev.LeadershipGained(NOW, 7), ev.StoreReady(NOW))
    assert releases(engine, *start, *leads, ev.PodObserved(NOW, first)) == ["first"]
    renamed = (ev.PoolGone(NOW, OLD.name), ev.PoolObserved(NOW, NEW))
    assert releases(engine, *renamed, ev.PodObserved(NOW, second)) == []
    answer = ev.ReleaseAnswered(NOW, first.uid, ReleaseOutcome.RELEASED)
    assert releases(engine, answer) == []
    assert engine.queries.view().pools[NEW.name].used[GPU] == 8
