"""Invariants of the engine on random clusters and histories."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from fractions import Fraction

from hypothesis import given, settings
from hypothesis import strategies as st

from app.core import events as ev
from app.core.effects import Adopt, Bypassed, Effect, EvictPod, Release
from app.core.engine import Engine
from app.core.explain.views import ClusterView
from app.core.fairshare.usage_record import UsageStarted
from app.core.model import (
    Millis,
    Node,
    NodeName,
    Phase,
    Pod,
    PoolName,
    ReleaseOutcome,
    Resource,
    Tenant,
    TenantName,
    Uid,
)
from app.core.quantities import PODS, ManagedResources
from app.sim.cluster.virtual_cluster import held_pod
from tests.support.depth import cases

GPU = Resource("nvidia.com/gpu")
MANAGED = ManagedResources([GPU])
NAMESPACES = ("a", "b", "c", "stray")


@dataclass
class Life:
    """A cluster, its engine, and the pods of the API server."""

    engine: Engine = field(default_factory=lambda: Engine(MANAGED))
    pods: dict[Uid, Pod] = field(default_factory=dict)
    nodes: dict[str, Node] = field(default_factory=dict)
    tenants: dict[str, Tenant] = field(default_factory=dict)
    released: list[Release] = field(default_factory=list)
    shrunk: bool = False
    now: int = 0

    def open(self) -> None:
        for source in ev.WatchedSource:
            self.engine.handle(ev.SourceFresh(Millis(0), source))
        self.engine.handle(ev.Installed(Millis(0), Millis(0)))
        self.engine.handle(ev.LeadershipGained(Millis(0), 1))
        self.engine.handle(ev.StoreReady(Millis(0)))

    def hear(self, event: ev.Event) -> tuple[Effect, ...]:
        effects = self.engine.handle(event)
        for effect in effects:
            if isinstance(effect, Release):
                self.released.append(effect)
            assert not isinstance(effect, Adopt | Bypassed | EvictPod), "all were rightly released"
        return effects

    def settle(self) -> None:
        """Let every release succeed until no more pods are released."""
        at = Millis(self.now)
        done = len(self.released)
        self.hear(ev.Pass(at))
        while done < len(self.released):
            order = self.released[done]
            done += 1
            uid = order.intent.ref.uid
            pod = replace(
                self.pods[uid],
                gates=(),
                release_annotation=order.stamp,
                pool=order.intent.pool,
                node=self.bind(order, done),
                phase=Phase.RUNNING,
            )
            self.pods[uid] = pod
            self.hear(ev.ReleaseAnswered(at, uid, ReleaseOutcome.RELEASED))
            self.hear(ev.PodObserved(at, pod))
            self.hear(ev.Pass(at))

    def bind(self, order: Release, number: int) -> NodeName | None:
        """Return a node with capacity, perhaps another than the engine chose, as schedulers do."""
        wanted = self.pods[order.intent.ref.uid].demand[GPU]
        able = [name for name, free in sorted(self.room().items()) if wanted <= free]
        if not able:  # other pods took the capacity, as if the node had shrunk
            self.shrunk = True
        return able[number % len(able)] if able else order.node

    def room(self) -> dict[NodeName, int]:
        """Return the free devices of the ready nodes."""
        used = Counter(dict.fromkeys(self.nodes, 0))
        for pod in self.pods.values():
            if pod.node in used:
                used[pod.node] += pod.demand[GPU]
        return {
            node.name: node.allocatable[GPU] - used[name]
            for name, node in self.nodes.items()
            if node.ready
        }

    def recount(self) -> Engine:
        """Return another engine that receives only the current state."""
        other = Engine(MANAGED)
        at = Millis(self.now)
        for node in self.nodes.values():
            other.handle(ev.NodeObserved(at, node))
        for tenant in self.tenants.values():
            other.handle(ev.TenantObserved(at, tenant))
        for pod in reversed(self.pods.values()):
            other.handle(ev.PodObserved(at, pod))
        for source in ev.WatchedSource:
            other.handle(ev.SourceFresh(at, source))
        other.handle(ev.Pass(at))
        return other


def node(name: str, gpus: int, ready: bool = True) -> Node:
    return Node(NodeName(name), {}, {GPU: gpus, PODS: 1000}, ready)


def tenant(name: str, weight: int) -> Tenant:
    return Tenant(TenantName(name), Millis(0), Fraction(weight), namespaces=(name,))


steps = st.one_of(
    st.tuples(
        st.just("submit"),
        st.sampled_from(NAMESPACES),
        st.sampled_from(("u", "v")),
        st.integers(0, 3),
        st.integers(1, 4),
    ),
    st.tuples(st.just("end"), st.integers(0, 10_000)),
    st.tuples(st.just("delete"), st.integers(0, 10_000)),
    st.tuples(st.just("weigh"), st.sampled_from(NAMESPACES[:3]), st.integers(0, 4)),
    st.tuples(st.just("node"), st.sampled_from(("n0", "n1")), st.integers(0, 8), st.booleans()),
    st.tuples(st.just("settle")),
)


def play(script: list[tuple[object, ...]]) -> Iterator[Life]:
    """Play a script; yield the cluster after each settle."""
    life = Life()
    for event in (ev.NodeObserved(Millis(0), node(n, 4)) for n in ("n0", "n1")):
        life.hear(event)
        life.nodes[event.node.name] = event.node
    life.open()
    for number, (kind, *details) in enumerate([*script, ("settle",)]):
        life.now = number
        at = Millis(number)
        match kind, details:
            case "submit", [namespace, user, priority, size]:
                pod = held_pod(
                    f"p{number}", namespace, size, user=user, priority=priority, since=number
                )
                life.pods[pod.uid] = pod
                life.hear(ev.PodObserved(at, pod))
            case (("end" | "delete"), [which]):
                gated = kind == "delete"
                those = [u for u, p in life.pods.items() if bool(p.gates) == gated]
                if those:
                    uid = those[which % len(those)]
                    del life.pods[uid]
                    life.hear(ev.PodGone(at, uid))
            case "weigh", [name, weight]:
                life.tenants[name] = tenant(name, weight)
                life.hear(ev.TenantObserved(at, life.tenants[name]))
            case "node", [name, gpus, ready]:
                life.nodes[name] = node(name, gpus, ready)
                life.shrunk = True
                life.hear(ev.NodeObserved(at, life.nodes[name]))
            case _:
                life.settle()
                yield life


scripts = st.lists(steps, max_size=60)


def without_runs(engine: Engine) -> list[str]:
    """Return the writes without usage starts, which only an engine that saw the start has."""
    return sorted(
        repr(each) for each in engine.store_writes() if not isinstance(each, UsageStarted)
    )


def without_history(view: ClusterView) -> ClusterView:
    """Return the view without history, which a recount cannot derive."""
    return ClusterView({n: replace(t, history=0.0) for n, t in view.tenants.items()}, view.pools)


@given(scripts)
@settings(max_examples=cases(60, 150))
def test_incremental_accounting_equals_a_recount(script: list[tuple[object, ...]]) -> None:
    for life in play(script):
        other = life.recount()
        assert without_history(life.engine.queries.view()) == without_history(other.queries.view())
        assert without_runs(life.engine) == without_runs(other)


@given(scripts)
@settings(max_examples=cases(60, 150))
def test_releases_fit_the_capacity_and_no_fitting_pod_stays_held(
    script: list[tuple[object, ...]],
) -> None:
    for life in play(script):
        pool = life.engine.queries.view().pools[PoolName("default")]
        free = pool.capacity.get(GPU, 0) - pool.used.get(GPU, 0)
        assert free >= 0 or life.shrunk
        waiting = [p.demand[GPU] for p in life.pods.values() if p.gates]
        assert all(size > max(life.room().values(), default=0) for size in waiting)


@given(scripts)
@settings(max_examples=cases(40, 100))
def test_every_pod_is_released_at_most_once_and_none_is_lost(
    script: list[tuple[object, ...]],
) -> None:
    for life in play(script):
        released = [order.intent.ref.uid for order in life.released]
        assert len(released) == len(set(released))
        stamps = [(order.intent.epoch, order.intent.sequence) for order in life.released]
        assert stamps == sorted(set(stamps))
        known = {p.uid for p in life.engine.held_pods()}
        assert known == {p.uid for p in life.pods.values() if p.gates}


@given(
    st.lists(
        st.tuples(st.sampled_from(NAMESPACES), st.sampled_from("uv"), st.integers(1, 4)),
        max_size=30,
    ),
    st.randoms(use_true_random=False),
)
@settings(max_examples=cases(40, 100))
def test_order_of_pod_events_at_one_time_does_not_change_releases(
    work: list[tuple[str, str, int]], random: object
) -> None:
    def order(shuffle: bool) -> list[str]:
        life = Life()
        life.hear(ev.NodeObserved(Millis(0), node("n0", 16)))
        life.open()
        pods = [held_pod(f"p{i}", n, size, user=u) for i, (n, u, size) in enumerate(work)]
        if shuffle:
            random.shuffle(pods)  # type: ignore[attr-defined]
        for pod in pods:
            life.pods[pod.uid] = pod
            life.hear(ev.PodObserved(Millis(0), pod))
        life.settle()
        return [str(r.intent.ref.uid) for r in life.released]

    assert order(False) == order(True)


@given(
    st.lists(st.integers(1, 4), min_size=2, max_size=4),
    st.lists(st.integers(1, 5), min_size=2, max_size=4),
)
@settings(max_examples=cases(40, 100))
def test_drift_between_tenants_stays_within_half_a_workload_each(
    weights: list[int], sizes: list[int]
) -> None:
    """Right after each release, for heads of known size: s_a - s_b <= (l_a/w_a + l_b/w_b) / 2."""
    total = 60
    count = min(len(weights), len(sizes))
    life = Life()
    life.hear(ev.NodeObserved(Millis(0), Node(NodeName("n"), {}, {GPU: total, PODS: 999}, True)))
    life.open()
    for i in range(count):
        life.hear(ev.TenantObserved(Millis(0), tenant(NAMESPACES[i], weights[i])))
        for number in range(total):
            pod = replace(held_pod(f"p{number}", NAMESPACES[i], sizes[i]), owner="owner")
            life.pods[pod.uid] = pod
            life.hear(ev.PodObserved(Millis(0), pod))
    life.settle()
    held = [0] * count
    for order in life.released:
        a = NAMESPACES.index(order.intent.ref.namespace)
        free = total - sum(held)
        held[a] += sizes[a]
        for b in range(count):
            if b != a and sizes[b] <= free:
                drift = Fraction(held[a], weights[a]) - Fraction(held[b], weights[b])
                bound = Fraction(sizes[a], weights[a]) + Fraction(sizes[b], weights[b])
                assert drift <= bound / 2


def test_simulation_does_not_depend_on_the_hash_seed() -> None:
    program = (
        "from app.devcluster.demo_simulated import play_simulated\n"
        "seen = []\n"
        "play_simulated(lambda m: seen.append((m.greedy, m.modest)), 4, 8)\n"
        "print(seen)\n"
    )
    outputs = {
        subprocess.run(
            [sys.executable, "-c", program],
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            check=True,
            text=True,
        ).stdout
        for seed in ("0", "1", "2")
    }
    assert len(outputs) == 1
