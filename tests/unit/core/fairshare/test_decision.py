"""Every release states its reason: the compared numbers and the rule."""

from __future__ import annotations

from dataclasses import replace

import pytest

from app.core import events as ev
from app.core.effects import Release
from app.core.engine import Engine
from app.core.engine_options import EngineOptions
from app.core.fairshare.decision import DecisionLevel
from app.core.fairshare.sort_key import BORROWING, GUARANTEED, ZERO_WEIGHT, SiblingKey
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
    engine = Engine(ManagedResources([GPU]), EngineOptions(max_in_flight=1))
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


def test_reason_of_equal_scores_is_the_smaller_uid() -> None:
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


def key(
    score: float, served: int = 0, since: int = 0, band: int = BORROWING, blocked: bool = False
) -> SiblingKey:
    return SiblingKey(blocked, band, score, (1, served), Millis(since), "uid")


@pytest.mark.parametrize(
    ("mine", "other", "rule"),
    [
        (key(1), key(2), "lower score"),
        (key(2304), key(2048), "the other cannot start now"),
        (key(1, band=GUARANTEED), key(2, band=GUARANTEED), "less of its guarantee used"),
        (key(2, band=GUARANTEED), key(1, band=GUARANTEED), "the other cannot start now"),
        (key(9, band=GUARANTEED), key(1), "within its guarantee"),
        (key(1), key(9, band=GUARANTEED), "the other cannot start now"),
        (key(9), key(1, band=ZERO_WEIGHT), "the other has weight 0"),
        (key(9), key(1, blocked=True), "the other is at its limit"),
        (key(1, blocked=True), key(9), "the other cannot start now"),
        (key(1, served=3), key(1, served=4), "served less recently"),
        (key(1, served=4), key(1, served=3), "the other cannot start now"),
        (key(1, since=3), key(1, since=4), "older"),
        (key(0.5 + 1e-12, served=3), key(0.5, served=4), "served less recently"),
        (key(0.5, served=4), key(0.5 + 1e-12, served=3), "the other cannot start now"),
        (key(0.5 + 1e-6, served=3), key(0.5, served=4), "the other cannot start now"),
        (key(10**12 + 1, served=3), key(10**12, served=4), "the other cannot start now"),
    ],
)
def test_a_rule_is_named_only_if_it_holds(mine: SiblingKey, other: SiblingKey, rule: str) -> None:
    assert DecisionLevel("mine", mine, "other", other).rule == rule


def test_a_sibling_that_a_limit_above_blocks_is_passed_without_backfill() -> None:
    """alice borrows nothing, but her pod must not be evicted, and the tenant has no guarantee."""
    engine = Engine(ManagedResources([GPU]), EngineOptions(max_in_flight=1))
    engine.handle(ev.TenantObserved(NOW, Tenant(TenantName("a"), NOW, namespaces=("a",))))
    engine.handle(ev.NodeObserved(NOW, Node(NodeName("n"), {}, {GPU: 9, PODS: 9}, True)))
    for source in ev.WatchedSource:
        engine.handle(ev.SourceFresh(NOW, source))
    engine.handle(ev.LeadershipGained(NOW, 1))
    engine.handle(ev.StoreReady(NOW))
    for name in ("p0", "p1"):
        engine.handle(ev.PodObserved(NOW, held_pod(name, "a", 2, user="bob")))
    engine.handle(
        ev.PodObserved(NOW, replace(held_pod("p2", "a", user="alice"), preemptible=False))
    )
    (order,) = (e for e in engine.handle(ev.Pass(NOW)) if isinstance(e, Release))
    assert order.decision is not None
    level = order.decision.levels[-1]
    assert level.key is not None
    assert level.runner_up_key is not None
    assert level.key.score > level.runner_up_key.score
    assert level.rule == "the other cannot start now"
    assert not order.decision.is_backfilled
