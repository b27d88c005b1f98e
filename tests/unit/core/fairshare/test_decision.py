"""Every release states its reason: the compared numbers and the rule."""

from __future__ import annotations

from app.core import events as ev
from app.core.effects import Release
from app.core.engine import Engine
from app.core.engine_options import EngineOptions
from app.core.model import (
    DEFAULT_POOL,
    Millis,
    Node,
    NodeName,
    Quota,
    ReleaseOutcome,
    Resource,
    Tenant,
    TenantName,
)
from app.core.quantities import PODS, ManagedResources
from app.sim.cluster.virtual_cluster import held_pod

GPU = Resource("nvidia.com/gpu")
NOW = Millis(0)


def reasons(*, guarantee: int = 0, gpus: int = 2, sizes: tuple[int, int] = (1, 1)) -> list[str]:
    """Submit two workloads for each of two tenants; return the reason of each release."""
    engine = Engine(ManagedResources([GPU]), EngineOptions(window=1))
    quota = Quota(guarantee={GPU: guarantee}) if guarantee else Quota()
    for name, quotas in (("a", {}), ("b", {DEFAULT_POOL: quota})):
        tenant = Tenant(TenantName(name), NOW, namespaces=(name,), quotas=quotas)
        engine.handle(ev.TenantObserved(NOW, tenant))
    engine.handle(ev.NodeObserved(NOW, Node(NodeName("n"), {}, {GPU: gpus, PODS: 9}, True)))
    for source in ev.WatchedSource:
        engine.handle(ev.SourceFresh(NOW, source))
    engine.handle(ev.LeadershipGained(NOW, 1))
    engine.handle(ev.StoreReady(NOW))
    for i in range(2):
        for name, size in zip("ab", sizes, strict=True):
            engine.handle(ev.PodObserved(NOW, held_pod(f"p{i}", name, size)))
    found: list[str] = []
    while orders := [e for e in engine.handle(ev.Pass(NOW)) if isinstance(e, Release)]:
        for order in orders:
            assert order.decision is not None
            found.append(order.decision.reason)
            uid = order.intent.ref.uid
            engine.handle(ev.ReleaseAnswered(NOW, uid, ReleaseOutcome.RELEASED))
    return found


def test_equal_scores_are_told_apart_by_age_and_name() -> None:
    assert reasons() == [
        "a: smaller uid; user: nobody else waits",
        "b: lower score; user: nobody else waits",
    ]


def test_a_guarantee_is_named() -> None:
    assert reasons(guarantee=1)[0] == "b: within its guarantee; user: nobody else waits"


def test_backfill_is_named() -> None:
    """b uses one of three devices. a, which was never served, is next and needs all three."""
    first, second = reasons(gpus=3, sizes=(3, 1))
    assert first == "b: lower score; user: nobody else waits"
    assert second.startswith("backfilled past the next in order; b: ")
