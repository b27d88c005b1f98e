"""The listing of a pod says the same whether it is computed or shared with others of its class."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from app.core import events as ev
from app.core.engine import Engine
from app.core.engine_options import EngineOptions
from app.core.model import Pod, Uid
from app.core.quantities import ManagedResources
from app.sim.cluster.virtual_cluster import held_pod
from tests.support.rest_app import GPU, NOW, node, pool, tenant


def pod(name: str, namespace: str, age: int, devices: int = 8, **more: Any) -> Pod:
    user = more.pop("user", "alice")
    made = held_pod(name, namespace, devices, user=user, since=NOW - age)
    return replace(made, uid=Uid(name), **more)


def cluster(*pods: Pod) -> Engine:
    engine = Engine(ManagedResources([GPU]), EngineOptions(emits_audit_records=False))
    news = [pool("h100"), node("n0", 8), tenant("team-a"), tenant("team-b")]
    seen = [ev.PodObserved(NOW, each) for each in pods]
    fresh = [ev.SourceFresh(NOW, source) for source in ev.WatchedSource]
    for event in (*news, *seen, *fresh, ev.Pass(NOW)):
        engine.handle(event)
    return engine


def test_a_shared_row_equals_a_computed_one() -> None:
    busy = replace(
        pod("r", "team-b", 99), gates=(), release_annotation="1.1", node="n0", pool="h100"
    )
    pods = [pod(f"a{n}", "team-a", 50 - n) for n in range(4)]
    pods += [pod(f"b{n}", "team-b", 40 - n) for n in range(4)]
    pods += [pod("small", "team-b", 9, 1), pod("gone", "team-b", 8, gang="g", gang_size=2)]
    pods += [pod("other", "team-b", 7, user="bob"), pod("big", "team-b", 6, 64)]
    engine = cluster(busy, *pods)
    reasons = set()
    for each in pods:
        held = engine.queries.held_view(each.uid)
        assert held is not None
        found = engine.queries.listed_row(each.uid, (held.position, held.length))
        assert found is not None
        shared, reason = found
        assert (shared.request, shared.pools) == (held.request, held.pools)
        assert (shared.rule, reason) == (held.rule, held.reason)
        reasons.add(reason)
    assert len(reasons) == len(pods)


def test_a_row_has_the_position_that_it_is_given() -> None:
    engine = cluster(pod("a", "team-a", 2, 64), pod("b", "team-a", 1, 64))
    for uid, position in (("a", (7, 9)), ("b", (8, 9))):
        found = engine.queries.listed_row(Uid(uid), position)
        assert found is not None
        assert found[1].startswith(f"queued: {position[0]} of 9 in team-a/alice; ")
    assert engine.queries.listed_row(Uid("none"), (1, 1)) is None
