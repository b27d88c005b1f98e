"""Node sets only restrict nodes: an assignment uses allowed nodes, and is found if one exists."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from itertools import product

from hypothesis import given, settings
from hypothesis import strategies as st

from app.core import events as ev
from app.core.effects import Release
from app.core.engine import Engine
from app.core.explain.views import ClusterView
from app.core.fairshare.usage_record import UsageStarted
from app.core.model import (
    Millis,
    Node,
    NodeName,
    NodeSet,
    Pod,
    Pool,
    PoolName,
    ReleaseOutcome,
    Resource,
    Uid,
)
from app.core.placement.pool_nodes import PoolNodes
from app.core.quantities import PODS, ManagedResources
from app.sim.cluster.virtual_cluster import held_pod
from tests.support.depth import cases

GPU = Resource("nvidia.com/gpu")
NAMES = [NodeName(name) for name in "abcd"]

free = st.lists(st.integers(0, 4), min_size=1, max_size=len(NAMES))
some = st.lists(st.sampled_from(NAMES), unique=True).map(sorted).map(tuple)
pin: st.SearchStrategy[NodeSet] = st.none() | some


def cluster(free: list[int]) -> PoolNodes:
    nodes = PoolNodes()
    for name, gpus in zip(NAMES, free, strict=False):
        nodes.set_node(name, {GPU: gpus}, {}, True)
    return nodes


def exists(free: list[int], pods: list[tuple[int, NodeSet]]) -> bool:
    """Try every assignment of the pods to nodes."""
    for where in product(range(len(free)), repeat=len(pods)):
        left = list(free)
        for number, (gpus, only) in zip(where, pods, strict=True):
            left[number] -= gpus if only is None or NAMES[number] in only else 99
        if min(left) >= 0:
            return True
    return False


@given(free, st.integers(1, 4), st.integers(1, 4), some)
def test_equal_pinned_pods_are_placed_if_and_only_if_their_nodes_fit_them(
    free: list[int], gpus: int, count: int, only: tuple[NodeName, ...]
) -> None:
    plan = cluster(free).find_assignment((({GPU: gpus}, count),), pins=(only,))
    assert (plan is not None) == exists(free, [(gpus, only)] * count)
    assert plan is None or set(plan.nodes) <= set(only)


@given(free, st.lists(st.tuples(st.integers(1, 4), pin), min_size=1, max_size=4))
def test_plan_for_a_mixed_gang_respects_every_pin_and_fits(
    free: list[int], pods: list[tuple[int, NodeSet]]
) -> None:
    parts = tuple(({GPU: gpus}, 1) for gpus, _ in pods)
    plan = cluster(free).find_assignment(parts, pins=tuple(only for _, only in pods))
    if plan is None:
        return
    left = dict(zip(NAMES, free, strict=False))
    for node, (gpus, only) in zip(plan.nodes, pods, strict=True):
        assert only is None or node in only
        left[node] -= gpus
    assert min(left.values()) >= 0


# --- the engine, on nodes that come, go, close and change their pool ---

POOLS = ("old", "young")
MANAGED = ManagedResources([GPU])


@dataclass
class Life:
    """Two pools, their nodes, and the pods of the API server."""

    engine: Engine = field(default_factory=lambda: Engine(MANAGED))
    nodes: dict[NodeName, Node] = field(default_factory=dict)
    pods: dict[Uid, Pod] = field(default_factory=dict)
    wrong: list[Release] = field(default_factory=list)
    now: int = 0

    def hear(self, event: ev.NewsEvent) -> None:
        self.engine.handle(event)

    def settle(self) -> None:
        """Let every release succeed until no more pods are released."""
        at = Millis(self.now)
        while True:
            effects = self.engine.handle(ev.Pass(at))
            orders = [effect for effect in effects if isinstance(effect, Release)]
            if not orders:
                return
            for order in orders:
                self.release(order, at, strays=len(orders) == 1)

    def release(self, order: Release, at: Millis, strays: bool) -> None:
        """Bind the pod. If `strays`, the node is one that the engine did not expect.

        If several pods are released at once, no pod strays, because it could take the capacity
        assigned to another.
        """
        uid, pool = order.intent.ref.uid, order.intent.pool
        pod = self.pods[uid]
        if order.node not in self.able(pod) or self.pool_of(order.node) != pool:
            self.wrong.append(order)
        free = [name for name in self.able(pod) if self.pool_of(name) == pool]
        node = order.node
        if strays:
            node = free[self.now % len(free)] if free else None
        self.pods[uid] = replace(
            pod, gates=(), release_annotation=order.stamp, pool=pool, node=node
        )
        self.hear(ev.ReleaseAnswered(at, uid, ReleaseOutcome.RELEASED))
        self.hear(ev.PodObserved(at, self.pods[uid]))

    def pool_of(self, name: NodeName | None) -> str | None:
        node = self.nodes.get(name) if name is not None else None
        return node.labels["pool"] if node else None

    def able(self, pod: Pod) -> list[NodeName]:
        """Return the nodes that a pod may use and that have enough capacity."""
        used = Counter[NodeName]()
        for other in self.pods.values():
            if other.node is not None:
                used[other.node] += other.demand[GPU]
        return [
            name
            for name, node in sorted(self.nodes.items())
            if (pod.node_names is None or name in pod.node_names)
            and node.ready
            and node.allocatable[GPU] - used[name] >= pod.demand[GPU]
        ]

    def start(self, engine: Engine) -> Engine:
        """Send the current state to an engine, and report all sources as synchronized."""
        at = Millis(self.now)
        for name in POOLS:
            engine.handle(ev.PoolObserved(at, Pool(PoolName(name), {"pool": name})))
        for pod in self.pods.values():
            engine.handle(ev.PodObserved(at, pod))
        for node in self.nodes.values():
            engine.handle(ev.NodeObserved(at, node))
        for source in ev.WatchedSource:
            engine.handle(ev.SourceFresh(at, source))
        return engine


steps = st.one_of(
    st.tuples(st.just("submit"), st.integers(1, 4), pin),
    st.tuples(st.just("end"), st.integers(0, 1000)),
    st.tuples(
        st.just("node"),
        st.sampled_from(NAMES),
        st.integers(0, 4),
        st.booleans(),
        st.sampled_from(POOLS),
    ),
    st.tuples(st.just("gone"), st.sampled_from(NAMES)),
    st.tuples(st.just("settle")),
)


def play(script: list[tuple[object, ...]]) -> Iterator[Life]:
    """Play a script; yield the cluster after each settle."""
    life = Life()
    life.start(life.engine)
    life.hear(ev.LeadershipGained(Millis(0), 1))
    life.hear(ev.StoreReady(Millis(0)))
    for number, (kind, *details) in enumerate([*script, ("settle",)]):
        life.now, at = number, Millis(number)
        match kind, details:
            case "submit", [size, only]:
                pod = replace(held_pod(f"p{number}", "space", size, since=number), node_names=only)
                life.pods[pod.uid] = pod
                life.hear(ev.PodObserved(at, pod))
            case "end", [which] if life.pods:
                uid = list(life.pods)[which % len(life.pods)]
                del life.pods[uid]
                life.hear(ev.PodGone(at, uid))
            case "node", [name, gpus, ready, pool]:
                offer = {GPU: gpus, PODS: 1000}
                life.nodes[name] = Node(name, {"pool": pool}, offer, ready)
                life.hear(ev.NodeObserved(at, life.nodes[name]))
            case "gone", [name] if name in life.nodes:
                del life.nodes[name]
                for uid in [uid for uid, pod in life.pods.items() if pod.node == name]:
                    del life.pods[uid]
                    life.hear(ev.PodGone(at, uid))
                life.hear(ev.NodeGone(at, name))
            case "settle", []:
                life.settle()
                yield life


scripts = st.lists(steps, max_size=50)


@given(scripts)
@settings(max_examples=cases(80, 200))
def test_pinned_pod_is_released_if_and_only_if_one_of_its_nodes_fits_it(
    script: list[tuple[object, ...]],
) -> None:
    for life in play(script):
        assert life.wrong == []
        assert [p.name for p in life.pods.values() if p.gates and life.able(p)] == []


def without_runs(engine: Engine) -> list[str]:
    """Return the writes without usage starts, which only an engine that saw the start has."""
    return sorted(
        repr(each) for each in engine.store_writes() if not isinstance(each, UsageStarted)
    )


def without_history(view: ClusterView) -> ClusterView:
    """Return the view without history, which a recount cannot derive."""
    return ClusterView({n: replace(t, history=0.0) for n, t in view.tenants.items()}, view.pools)


@given(scripts)
@settings(max_examples=cases(80, 200))
def test_accounting_and_wait_reasons_with_pins_equal_a_recount(
    script: list[tuple[object, ...]],
) -> None:
    for life in play(script):
        other = life.start(Engine(MANAGED))
        other.handle(ev.Pass(Millis(life.now)))
        assert without_history(life.engine.queries.view()) == without_history(other.queries.view())
        assert without_runs(life.engine) == without_runs(other)
        for pod in life.pods.values():
            mine, theirs = (
                life.engine.queries.explain_wait(pod.uid),
                other.queries.explain_wait(pod.uid),
            )
            assert (mine and mine.text) == (theirs and theirs.text)
