"""Held pods without managed requests: they wait for no turn, but leave releases to others."""

from __future__ import annotations

from dataclasses import replace

from app.core import events as ev
from app.core.effects import Release
from app.core.engine import Engine
from app.core.engine_options import EngineOptions
from app.core.model import Millis, Node, NodeName, Pod, ReleaseOutcome, Resource, Uid
from app.core.quantities import PODS, ManagedResources
from app.sim.cluster.virtual_cluster import held_pod

AT = Millis(1000)
GPU = Resource("nvidia.com/gpu")


def leading(most: int) -> Engine:
    engine = Engine(ManagedResources([GPU]), EngineOptions(max_in_flight=most))
    hear(engine, ev.NodeObserved(AT, Node(NodeName("n"), {}, {GPU: 100, PODS: 1000}, True)))
    hear(engine, *(ev.SourceFresh(AT, source) for source in ev.WatchedSource))
    hear(engine, ev.Installed(AT, AT), ev.LeadershipGained(AT, 7), ev.StoreReady(AT))
    return engine


def hear(engine: Engine, *news: ev.NewsEvent) -> list[str]:
    """Return the names of the pods that are released now. They get no answer."""
    for event in news:
        engine.handle(event)
    effects = engine.handle(ev.Pass(AT))
    return [each.intent.ref.name for each in effects if isinstance(each, Release)]


def without_devices(name: str, namespace: str) -> Pod:
    return replace(held_pod(name, namespace), demand={PODS: 1}, needs_managed=False)


def seen(*pods: Pod) -> list[ev.NewsEvent]:
    return [ev.PodObserved(AT, pod) for pod in pods]


def test_they_have_at_most_half_of_the_releases_in_progress() -> None:
    engine = leading(most=8)
    many = [without_devices(f"u{number}", "a") for number in range(20)]
    assert hear(engine, *seen(*many)) == ["u0", "u1", "u10", "u11"]
    assert hear(engine, *seen(*(held_pod(f"g{number}", "b") for number in range(4)))) == [
        "g0",
        "g1",
        "g2",
        "g3",
    ]
    answers = [
        ev.ReleaseAnswered(AT, Uid(f"{name}"), ReleaseOutcome.GONE) for name in ("a/u0", "b/g0")
    ]
    assert hear(engine, *answers, *seen(held_pod("g4", "b"))) == ["u12", "g4"]


def test_tenants_take_turns() -> None:
    engine = leading(most=8)
    many = [without_devices(f"u{number}", "a") for number in range(20)]
    assert hear(engine, *seen(*many, without_devices("w0", "c"), without_devices("w1", "c"))) == [
        "u0",
        "w0",
        "u1",
        "w1",
    ]
