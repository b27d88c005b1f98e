"""Cached feasible nodes equal newly computed ones, for any node changes."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from hypothesis import given, settings
from hypothesis import strategies as st

from app.core import events as ev
from app.core.effects import Release
from app.core.engine import Engine
from app.core.model import (
    Millis,
    Node,
    NodeName,
    Pod,
    Pool,
    PoolName,
    ReleaseOutcome,
    Resource,
    Uid,
)
from app.core.podspec.constraints import (
    NodeSelectorRequirement,
    NodeSelectorTerm,
    Taint,
    Toleration,
    first_untolerated_taint,
)
from app.core.quantities import PODS, ManagedResources
from app.sim.cluster.virtual_cluster import held_pod
from tests.support.depth import cases

GPU = Resource("nvidia.com/gpu")
MANAGED = ManagedResources([GPU])
NAMES = [NodeName(name) for name in "abc"]
POOLS = {"old": (Toleration("o", "Exists"),), "young": ()}

taints = st.lists(st.sampled_from([Taint("o"), Taint("t", "1"), Taint("t", "2", "NoExecute")]))
tolerations = st.lists(
    st.sampled_from([Toleration("t", "Exists"), Toleration("t", "Equal", "1"), Toleration("o")]),
    max_size=2,
)
requirements = st.builds(
    NodeSelectorRequirement,
    st.just("zone"),
    st.sampled_from(["In", "NotIn", "Exists", "DoesNotExist", "Gt"]),
    st.sampled_from([("1",), ("2",)]),
)
affinity = st.none() | st.lists(
    st.lists(requirements, max_size=2).map(lambda found: NodeSelectorTerm(tuple(found))), max_size=2
).map(tuple)
selector = st.sampled_from([{}, {}, {"zone": "1"}, {"pool": "young"}])
steps = st.one_of(
    st.tuples(st.just("submit"), st.integers(1, 3), selector, affinity, tolerations),
    st.tuples(st.just("end"), st.integers(0, 1000)),
    st.tuples(
        st.just("node"),
        st.sampled_from(NAMES),
        st.integers(0, 4),
        st.booleans(),
        st.sampled_from([*POOLS]),
        st.sampled_from(["", "1", "2"]),
        taints,
    ),
    st.tuples(st.just("gone"), st.sampled_from(NAMES)),
)


@dataclass
class World:
    """Nodes and pods of the API server, and a leading engine."""

    engine: Engine = field(default_factory=lambda: Engine(MANAGED))
    nodes: dict[NodeName, Node] = field(default_factory=dict)
    pods: dict[Uid, Pod] = field(default_factory=dict)
    wrong: list[Release] = field(default_factory=list)
    now: int = 0

    def start(self, engine: Engine) -> Engine:
        at = Millis(self.now)
        for name, borne in POOLS.items():
            pool = Pool(PoolName(name), {"pool": name}, tolerations=borne)
            engine.handle(ev.PoolObserved(at, pool))
        for pod in self.pods.values():
            engine.handle(ev.PodObserved(at, pod))
        for node in self.nodes.values():
            engine.handle(ev.NodeObserved(at, node))
        for source in ev.WatchedSource:
            engine.handle(ev.SourceFresh(at, source))
        return engine

    def admits(self, pod: Pod, node: Node) -> bool:
        """Return whether the scheduler would accept a node, ignoring capacity; no engine code."""
        if any(node.labels.get(key) != value for key, value in pod.selector.items()):
            return False
        terms = pod.affinity
        if terms is not None and not any(term.matches(node.name, node.labels) for term in terms):
            return False
        return (
            first_untolerated_taint(node.taints, (*pod.tolerations, *POOLS[node.labels["pool"]]))
            is None
        )

    def able(self, pod: Pod) -> list[NodeName]:
        """Return the nodes that would accept a pod now."""
        taken = dict.fromkeys(self.nodes, 0)
        for other in self.pods.values():
            if other.node is not None:
                taken[other.node] += other.demand[GPU]
        return [
            name
            for name, node in self.nodes.items()
            if node.ready
            and self.admits(pod, node)
            and node.allocatable[GPU] - taken[name] >= pod.demand[GPU]
        ]

    def settle(self) -> None:
        """Let every release succeed and bind as expected, until no more pods are released."""
        at = Millis(self.now)
        while orders := [e for e in self.engine.handle(ev.Pass(at)) if isinstance(e, Release)]:
            for order in orders:
                uid = order.intent.ref.uid
                pod = self.pods[uid]
                if order.node not in self.able(pod):
                    self.wrong.append(order)
                bound = {
                    "node": order.node,
                    "pool": order.intent.pool,
                    "release_annotation": order.stamp,
                }
                self.pods[uid] = replace(pod, gates=(), **bound)  # type: ignore[arg-type]
                self.engine.handle(ev.ReleaseAnswered(at, uid, ReleaseOutcome.RELEASED))
                self.engine.handle(ev.PodObserved(at, self.pods[uid]))

    def step(self, kind: object, details: list[object]) -> None:
        at = Millis(self.now)
        match kind, details:
            case "submit", [int(size), dict(chosen), needs, list(borne)]:
                pod = held_pod(f"p{self.now}", "space", size, since=self.now)
                stated = {"selector": chosen, "affinity": needs, "tolerations": tuple(borne)}
                pod = self.pods[pod.uid] = replace(pod, **stated)  # type: ignore[arg-type]
                self.engine.handle(ev.PodObserved(at, pod))
            case "end", [int(which)] if self.pods:
                self.end(list(self.pods)[which % len(self.pods)])
            case "node", [str(name), int(gpus), bool(ready), pool, zone, list(found)]:
                labels = {"pool": str(pool)} | ({"zone": str(zone)} if zone else {})
                offer = {GPU: gpus, PODS: 1000}
                node = Node(NodeName(name), labels, offer, ready, taints=tuple(sorted(found)))
                self.nodes[node.name] = node
                self.engine.handle(ev.NodeObserved(at, node))
            case "gone", [str(name)] if name in self.nodes:
                del self.nodes[NodeName(name)]
                for uid in [uid for uid, pod in self.pods.items() if pod.node == name]:
                    self.end(uid)
                self.engine.handle(ev.NodeGone(at, NodeName(name)))

    def end(self, uid: Uid) -> None:
        del self.pods[uid]
        self.engine.handle(ev.PodGone(Millis(self.now), uid))


@given(st.lists(steps, max_size=40))
@settings(max_examples=cases(60, 150))
def test_a_pod_is_released_exactly_where_some_node_would_take_it(
    script: list[tuple[object, ...]],
) -> None:
    world = World()
    world.start(world.engine)
    world.engine.handle(ev.LeadershipGained(Millis(0), 1))
    world.engine.handle(ev.StoreReady(Millis(0)))
    for number, (kind, *details) in enumerate(script):
        world.now = number
        world.step(kind, details)
        world.settle()
        assert world.wrong == []
        assert [p.name for p in world.pods.values() if p.gates and world.able(p)] == []
    anew = world.start(Engine(MANAGED))
    anew.handle(ev.Pass(Millis(world.now)))
    assert world.engine.queries.view().pools == anew.queries.view().pools
    for pod in world.pods.values():
        mine, theirs = (
            world.engine.queries.explain_wait(pod.uid),
            anew.queries.explain_wait(pod.uid),
        )
        assert (mine and mine.text) == (theirs and theirs.text)
