"""Changes of weights: the order follows them at once, and no pod is accounted again."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from random import Random

import pytest

from app.core import events as ev
from app.core.effects import Release
from app.core.engine import Engine
from app.core.lifecycle.pod_registry import PodRegistry
from app.core.model import (
    DEFAULT_POOL,
    Millis,
    Node,
    NodeName,
    Phase,
    Pod,
    Quota,
    Resource,
    Tenant,
    TenantName,
    UserName,
)
from app.core.policy import Policy
from app.core.quantities import PODS, ManagedResources
from app.sim.cluster.virtual_cluster import held_pod
from tests.support.depth import cases

GPU = Resource("nvidia.com/gpu")
NOW = Millis(1000)
WEIGHTS = [Fraction(each) for each in ("1", "1", "2", "3", "1/2", "7/5", "0")]
NAMES, USERS = "abcd", "uvw"


def tenants(random: Random) -> list[Tenant]:
    """Return four tenants with random weights, the last one below the first.

    A fifth one has the finest weight, because a finer one than before needs a new tree.
    """
    finest = Tenant(TenantName("e"), Millis(0), Fraction(7, 5), namespaces=("e",))
    return [finest] + [
        Tenant(
            TenantName(name),
            Millis(0),
            random.choice(WEIGHTS),
            TenantName("a") if name == "d" else None,
            (name,),
            {UserName(user): random.choice(WEIGHTS) for user in USERS if random.random() < 0.7},
            quotas={DEFAULT_POOL: Quota({GPU: 2})} if name == "b" else {},
        )
        for name in NAMES
    ]


def pods(random: Random) -> list[Pod]:
    """Return random pods. Some run, and use the whole node."""
    found = []
    for number in range(60):
        name, user = random.choice(NAMES) if number >= 6 else "e", random.choice(USERS)
        pod = held_pod(f"p{number}", name, random.randint(1, 3), user=user, since=number)
        if number < 12:
            runs = {"node": NodeName("full"), "phase": Phase.RUNNING, "gates": ()}
            pod = replace(pod, release_annotation=f"3.{number}", **runs)  # type: ignore[arg-type]
        found.append(pod)
    return found


def node(name: str, devices: int) -> ev.NodeObserved:
    return ev.NodeObserved(NOW, Node(NodeName(name), {}, {GPU: devices, PODS: 110}, True))


def engine_with(found: list[Tenant], waiting: list[Pod]) -> Engine:
    """Return the engine of a leader with a full cluster."""
    engine = Engine(ManagedResources([GPU]))
    engine.handle(ev.PolicyObserved(NOW, Policy()))
    used = sum(pod.demand[GPU] for pod in waiting if pod.node)
    for event in (node("full", used), *(ev.TenantObserved(NOW, tenant) for tenant in found)):
        engine.handle(event)
    for pod in waiting:
        engine.handle(ev.PodObserved(NOW, pod))
    for source in ev.WatchedSource:
        engine.handle(ev.SourceFresh(NOW, source))
    engine.handle(ev.LeadershipGained(NOW, 7))
    engine.handle(ev.StoreReady(NOW))
    engine.handle(ev.Pass(NOW))
    return engine


def released(engine: Engine, waiting: list[Pod]) -> list[str]:
    """Return the pods that start when the running pods of tenant e end, in order.

    A further node would be simpler, but it makes the engine sort all tenants again.
    """
    for pod in waiting:
        if pod.namespace == "e":
            engine.handle(ev.PodGone(NOW, pod.uid))
    effects = engine.handle(ev.Pass(NOW))
    return [each.intent.ref.name for each in effects if isinstance(each, Release)]


@pytest.mark.parametrize("seed", range(cases(60, 2000)))
def test_order_after_a_change_of_weights_is_that_of_a_new_engine(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    random = Random(seed)
    before, after, waiting = tenants(random), tenants(random), pods(random)
    engine = engine_with(before, waiting)
    recounts: list[object] = []
    recount = PodRegistry._recount
    monkeypatch.setattr(
        PodRegistry, "_recount", lambda *args: (recounts.append(args), recount(*args))
    )
    for tenant in random.sample(after, len(after)):
        engine.handle(ev.TenantObserved(NOW, tenant))
        engine.handle(ev.Pass(NOW))
    monkeypatch.undo()
    assert recounts == []
    assert released(engine, waiting) == released(engine_with(after, waiting), waiting) != []
