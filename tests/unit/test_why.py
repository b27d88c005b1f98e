"""What the owner of a held pod is told of limits and guarantees."""

from __future__ import annotations

from dataclasses import replace

from app.core import events as ev
from app.core.effects import Notice, Tell
from app.core.engine import Engine
from app.core.model import (
    DEFAULT_POOL,
    Answer,
    Millis,
    Node,
    NodeName,
    Pod,
    Quota,
    Resource,
    Tenant,
    TenantName,
)
from app.core.reasons import Rule
from app.core.resources import PODS, ManagedResources
from app.sim.world import held_pod

GPU = Resource("nvidia.com/gpu")
NOW = Millis(0)


def leader(quota: Quota) -> Engine:
    """Return a leader of 8 devices and a tenant `team` with this quota."""
    engine = Engine(ManagedResources([GPU]))
    engine.handle(ev.LeadershipGained(NOW, 1))
    engine.handle(ev.StoreReady(NOW))
    for source in ev.Source:
        engine.handle(ev.SourceFresh(NOW, source))
    node = Node(NodeName("n"), {}, {GPU: 8, PODS: 100}, True)
    engine.handle(ev.NodeObserved(NOW, node))
    quotas = {DEFAULT_POOL: quota}
    tenant = Tenant(TenantName("team"), NOW, namespaces=("a",), quotas=quotas)
    engine.handle(ev.TenantObserved(NOW, tenant))
    return engine


def told(engine: Engine, pod: Pod) -> list[str]:
    """Create a pod; return what its owner is told of its waiting."""
    engine.handle(ev.PodObserved(NOW, pod))
    effects = engine.handle(ev.Pass(NOW))
    return [e.message for e in effects if isinstance(e, Tell) and e.notice is Notice.HELD]


def test_who_is_at_the_limit_is_told_the_numbers() -> None:
    engine = leader(Quota(limit={GPU: 3}))
    first, second = held_pod("p0", "a", 2, user="u"), held_pod("p1", "a", 2, user="u")

    assert told(engine, first) == []
    engine.handle(ev.ReleaseAnswered(NOW, first.uid, Answer.RELEASED))

    assert told(engine, second) == [
        "queued: 1 of 1 in team/u; waits for 2 nvidia.com/gpu of pool default; tenant team is at "
        "its limit: 2 nvidia.com/gpu used, 2 nvidia.com/gpu asked, 3 nvidia.com/gpu limit"
    ]
    reason = engine.outlook.why(second.uid)
    assert reason is not None
    assert reason.rule is Rule.LIMIT


def test_who_must_not_be_evicted_is_told_to_stay_within_the_guarantee() -> None:
    engine = leader(Quota(guarantee={GPU: 1}))
    stubborn = replace(held_pod("p", "a", 2, user="u"), preemptible=False)

    assert told(engine, stubborn) == [
        "queued: 1 of 1 in team/u; waits for 2 nvidia.com/gpu of pool default; it must not be "
        "evicted, so it starts only within the guarantee of tenant team: 0 nvidia.com/gpu used, "
        "2 nvidia.com/gpu asked, 1 nvidia.com/gpu guarantee"
    ]


def test_who_may_start_as_soon_as_there_is_room_is_told_nothing_of_limits() -> None:
    engine = leader(Quota(limit={GPU: 8}))
    engine.handle(ev.PodObserved(NOW, held_pod("b", "b", 8)))
    engine.handle(ev.Pass(NOW))

    (message,) = told(engine, held_pod("p", "a", 8, user="u"))
    assert message == "queued: 1 of 1 in team/u; waits for 8 nvidia.com/gpu of pool default"
