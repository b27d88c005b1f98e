"""Totals since the installation, compared with the sum of usage records: where the two differ."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from app.core import events as ev
from app.core.effects import Effect, Intend, Release
from app.core.engine import Engine
from app.core.fairshare.usage_record import UsageEnded
from app.core.model import (
    Millis,
    Node,
    NodeName,
    Pod,
    ReleaseOutcome,
    Resource,
    Tenant,
    TenantName,
)
from app.core.policy import Policy
from app.core.quantities import PODS, ManagedResources
from app.sim.cluster.virtual_cluster import held_pod

GPU = Resource("nvidia.com/gpu")
TEAM = Tenant(TenantName("team"), Millis(0), namespaces=("a",))
POD = held_pod("p", "a", 1, user="u")


def replica(min_charge: int = 0) -> Engine:
    engine = Engine(ManagedResources([GPU]))
    node = Node(NodeName("n"), {}, {GPU: 8, PODS: 100}, True)
    policy = replace(Policy(), min_charge=Millis(min_charge))
    for event in (
        ev.NodeObserved(Millis(0), node),
        ev.TenantObserved(Millis(0), TEAM),
        ev.PolicyObserved(Millis(0), policy),
        *(ev.SourceFresh(Millis(0), source) for source in ev.WatchedSource),
    ):
        engine.handle(event)
    return engine


def leader(min_charge: int = 0) -> Engine:
    engine = replica(min_charge)
    engine.handle(ev.LeadershipGained(Millis(0), 1))
    engine.handle(ev.StoreReady(Millis(0)))
    return engine


def hear(engine: Engine, event: ev.NewsEvent) -> Sequence[Effect]:
    return [*engine.handle(event), *engine.handle(ev.Pass(event.at))]


def select(engine: Engine) -> Intend:
    """Let the leader select the pod after one second; return the release that it starts."""
    effects = hear(engine, ev.PodObserved(Millis(1000), POD))
    [release] = [each for each in effects if isinstance(each, Release)]
    return release.intent


def start(engine: Engine) -> Pod:
    """Let the leader release the pod; return the pod on its node."""
    intent = select(engine)
    hear(engine, ev.ReleaseAnswered(Millis(1400), POD.uid, ReleaseOutcome.RELEASED))
    running = replace(
        POD, gates=(), release_annotation=intent.stamp, pool=intent.pool, node=NodeName("n")
    )
    hear(engine, ev.PodObserved(Millis(1500), running))
    return running


def recorded(effects: Sequence[Effect]) -> list[int]:
    """Return the length of each usage record that ends."""
    runs = [each.record for each in effects if isinstance(each, UsageEnded)]
    return [(run.end or 0) - run.begin for run in runs]


def total(engine: Engine, at: int) -> int:
    return sum(each.get(GPU, 0) for each in engine.queries.usage_totals(Millis(at)).values())


def read_checkpoint(writer: Engine, reader: Engine, at: int, delay: int) -> None:
    """Let the reader receive a checkpoint after a delay."""
    hear(writer, ev.Pass(Millis(at)))
    checkpoint = writer.checkpoints.make_checkpoint(TEAM.name)
    hear(reader, ev.TenantObserved(Millis(at + delay), TEAM, 0, checkpoint))


def test_follower_lacks_the_delay_of_a_checkpoint_until_the_next_one() -> None:
    writes, reads = leader(), replica()
    hear(reads, ev.PodObserved(Millis(1500), start(writes)))
    read_checkpoint(writes, reads, 600_000, delay=760)

    effects = hear(writes, ev.PodGone(Millis(606_916), POD.uid))
    hear(reads, ev.PodGone(Millis(606_916), POD.uid))

    assert recorded(effects) == [605_916]
    assert (total(writes, 610_000), total(reads, 610_000)) == (605_916, 605_156)
    read_checkpoint(writes, reads, 660_000, delay=760)
    assert total(reads, 661_000) == 605_916


def test_a_total_has_the_rest_of_the_least_charge_and_a_record_has_not() -> None:
    engine = leader(min_charge=60_000)
    start(engine)

    effects = hear(engine, ev.PodGone(Millis(11_000), POD.uid))
    hear(engine, ev.Pass(Millis(70_000)))

    assert (recorded(effects), total(engine, 70_000)) == ([10_000], 60_000)


@pytest.mark.parametrize("is_observed", [False, True])
def test_the_least_charge_applies_to_a_pod_that_ends_together_with_a_change_of_a_tenant(
    is_observed: bool,
) -> None:
    engine = leader(min_charge=60_000)
    running = start(engine)

    at = Millis(11_000)
    engine.handle(ev.TenantObserved(at, Tenant(TenantName("other"), at, namespaces=("b",))))
    if is_observed:
        engine.handle(ev.PodObserved(at, replace(running, terminating=True)))
    hear(engine, ev.PodGone(at, POD.uid))
    hear(engine, ev.Pass(Millis(70_000)))

    assert total(engine, 70_000) == 60_000


def test_a_total_has_the_time_of_a_failed_release_and_no_record_has_it() -> None:
    engine = leader()
    select(engine)

    effects = hear(engine, ev.ReleaseAnswered(Millis(3000), POD.uid, ReleaseOutcome.GONE))

    assert (recorded(effects), total(engine, 5000)) == ([], 2000)
