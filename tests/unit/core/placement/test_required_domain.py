"""A gang with a required domain stays in one domain, with any waiting, running or late pods."""

from __future__ import annotations

from dataclasses import replace

import pytest

from app.core import events as ev
from app.core.effects import EvictForReclaim, EvictPod, Release
from app.core.engine import Engine
from app.core.engine_options import EngineOptions
from app.core.explain.reasons import Rule
from app.core.model import (
    Millis,
    Node,
    NodeName,
    Pod,
    Pool,
    PoolName,
    Quota,
    ReleaseOutcome,
    Resource,
    SchedulerCondition,
    Tenant,
    TenantName,
    TopologyConstraint,
    Uid,
)
from app.core.placement.scheduler_hints import HOSTNAME
from app.core.policy import Policy, Reclaim
from app.core.quantities import PODS, ManagedResources
from app.sim.cluster.virtual_cluster import held_pod

GPU = Resource("nvidia.com/gpu")
RACK = "example.com/rack"
POOL = Pool(PoolName("h100"), topology=(RACK,))
MUST, MAY = TopologyConstraint(RACK, True), TopologyConstraint(RACK)


def node(name: str, rack: str, gpus: int = 4) -> Node:
    labels = {HOSTNAME: f"host-{name}"} | ({RACK: rack} if rack else {})
    return Node(NodeName(name), labels, {GPU: gpus, PODS: 110}, True)


def member(number: int, size: int, near: TopologyConstraint | None = MUST, gpus: int = 1) -> Pod:
    pod = replace(held_pod(f"g{number}", "a"), demand={GPU: gpus, PODS: 1})
    return replace(pod, gang="train", gang_size=size, topology=near)


def gang(size: int, near: TopologyConstraint | None = MUST, gpus: int = 1) -> list[Pod]:
    return [member(number, size, near, gpus) for number in range(size)]


def busy(name: str, where: str, gpus: int, namespace: str = "b") -> Pod:
    """A running pod that was released before."""
    pod = replace(held_pod(name, namespace), demand={GPU: gpus, PODS: 1}, gates=())
    return replace(pod, release_annotation=f"7.{sum(map(ord, name))}", node=NodeName(where))


class Bench:
    """A leading engine and its decisions."""

    def __init__(
        self, *nodes: Node, pool: Pool = POOL, tenants: tuple[Tenant, ...] = (), evicts: bool = True
    ) -> None:
        self.engine = Engine(ManagedResources([GPU]), EngineOptions(evicts=evicts))
        self.released: dict[str, Release] = {}
        self.evicted: list[str] = []
        self.expelled: list[str] = []
        events: list[ev.NewsEvent] = [ev.PoolObserved(Millis(0), pool)]
        events += [ev.NodeObserved(Millis(0), each) for each in nodes]
        events += [ev.TenantObserved(Millis(0), each) for each in tenants]
        events += [ev.SourceFresh(Millis(0), source) for source in ev.WatchedSource]
        self.hear(*events, ev.LeadershipGained(Millis(0), 8), ev.StoreReady(Millis(0)))

    def hear(self, *events: ev.NewsEvent, at: int = 0) -> None:
        for event in events:
            self.engine.handle(event)
        for effect in self.engine.handle(ev.Pass(Millis(at))):
            if isinstance(effect, Release):
                self.released[effect.intent.ref.name] = effect
            if isinstance(effect, EvictForReclaim):
                self.evicted.append(effect.ref.name)
            if isinstance(effect, EvictPod):
                self.expelled.append(effect.ref.name)

    def see(self, *pods: Pod, at: int = 0) -> None:
        self.hear(*(ev.PodObserved(Millis(at), pod) for pod in pods), at=at)

    def bound(self, *names: str) -> None:
        """Confirm these releases, and bind the pods to the expected nodes."""
        for name in names:
            order = self.released[name]
            answered = ev.ReleaseAnswered(Millis(0), order.intent.ref.uid, ReleaseOutcome.RELEASED)
            self.engine.handle(answered)

    def nodes(self) -> dict[str, str]:
        return {name: str(order.node) for name, order in self.released.items()}

    def why(self, pod: Pod) -> tuple[Rule, str]:
        found = self.engine.queries.explain_wait(pod.uid)
        assert found is not None
        return found.rule, found.text


def test_gang_with_a_required_domain_is_released_with_a_domain_selector() -> None:
    bench = Bench(node("a", "r1"), node("b", "r2"), node("c", "r2"))
    bench.see(*gang(6))
    assert set(bench.nodes().values()) == {"b", "c"}
    orders = bench.released.values()
    assert {tuple(order.selector.items()) for order in orders} == {((RACK, "r2"),)}
    assert {order.node_hint.host for order in orders if order.node_hint} == {"host-b", "host-c"}
    assert not any(order.node_hint.is_required for order in orders if order.node_hint)


def test_a_pod_that_names_the_domain_itself_is_not_given_it_again() -> None:
    bench = Bench(node("a", "r1"), node("b", "r2"))
    bench.see(*(replace(pod, selector={RACK: "r2"}) for pod in gang(2)))
    assert [dict(order.selector) for order in bench.released.values()] == [{}, {}]


def test_unlike_pods_that_must_get_exactly_their_nodes() -> None:
    bench = Bench(node("a", "r1", 6), node("b", "r2", 5), node("c", "r2", 3))
    bench.see(member(0, 3, gpus=5), member(1, 3, gpus=2), member(2, 3, gpus=1))
    assert bench.nodes() == {"g0": "b", "g1": "c", "g2": "c"}
    assert all(order.node_hint and order.node_hint.is_required for order in bench.released.values())


def test_gang_with_a_required_domain_waits_although_two_domains_would_fit() -> None:
    bench = Bench(node("a", "r1"), node("b", "r2"))
    bench.see(busy("x", "a", 1), busy("y", "b", 1))
    waiting = gang(4)
    bench.see(*waiting)
    assert bench.released == {}
    rule, text = bench.why(waiting[0])
    assert rule is Rule.CAPACITY
    assert "queued" in text
    bench.hear(ev.PodGone(Millis(1), Uid("b/x")), at=1)
    assert set(bench.nodes().values()) == {"a"}


def test_gang_with_a_preferred_domain_can_use_two_domains() -> None:
    bench = Bench(node("a", "r1"), node("b", "r2"))
    bench.see(busy("x", "a", 1), busy("y", "b", 1))
    bench.see(*gang(4, MAY))
    assert set(bench.nodes().values()) == {"a", "b"}
    assert all(dict(order.selector) == {} for order in bench.released.values())


@pytest.mark.parametrize(
    ("near", "size", "sentence"),
    [
        (
            TopologyConstraint("other", True),
            2,
            "one other, which spec.topology of the pool does not list",
        ),
        (MUST, 5, f"no {RACK} of it could hold all of that together"),
    ],
)
def test_gang_that_fits_no_domain_gets_the_reason_and_delays_no_pod(
    near: TopologyConstraint, size: int, sentence: str
) -> None:
    bench = Bench(node("a", "r1"), node("b", "r2"))
    waiting = gang(size, near)
    bench.see(*waiting, held_pod("p", "b"))
    assert list(bench.released) == ["p"]
    rule, text = bench.why(waiting[0])
    assert rule is Rule.NO_POOL
    assert sentence in text


def test_topology_label_that_no_node_has_is_reported() -> None:
    bench = Bench(node("a", ""), node("b", ""))
    waiting = gang(2)
    bench.see(*waiting)
    assert f"one {RACK}, a label that the pool's nodes do not have" in bench.why(waiting[0])[1]


def test_capacity_is_reserved_in_one_domain_only() -> None:
    bench = Bench(node("a", "r1"), node("b", "r2"), evicts=False)
    bench.hear(ev.PolicyObserved(Millis(0), Policy(reserve_after=Millis(1000))))
    bench.see(busy("x", "a", 3), busy("y", "b", 3))
    bench.see(*gang(4))
    bench.hear(at=2000)
    small = [replace(held_pod(f"s{n}", "b"), created_at=Millis(1500)) for n in range(3)]
    bench.see(*small, at=2000)
    [started] = bench.nodes().values()  # one of two free devices is reserved for the gang
    other = "b" if started == "a" else "a"
    bench.hear(ev.PodGone(Millis(2500), Uid(f"b/{'x' if other == 'a' else 'y'}")), at=2500)
    assert {bench.nodes()[f"g{n}"] for n in range(4)} == {other}


def test_evictions_free_capacity_in_one_domain() -> None:
    owner = Tenant(
        TenantName("a"), Millis(0), namespaces=("a",), quotas={POOL.name: Quota({GPU: 4})}
    )
    bench = Bench(node("a", "r1"), node("b", "r2"), node("c", "r3"), tenants=(owner,))
    bench.hear(ev.PolicyObserved(Millis(0), Policy(reclaim=Reclaim.GUARANTEE)))
    runs = {f"{w}{n}": w for w in "abc" for n in range(4)}
    bench.see(*(busy(name, where, 1) for name, where in runs.items()))
    bench.see(*gang(4), at=10_000_000)
    assert len(bench.evicted) == 4
    assert len({runs[name] for name in bench.evicted}) == 1
    gone = [ev.PodGone(Millis(10_000_001), Uid(f"b/{name}")) for name in bench.evicted]
    bench.hear(*gone, at=10_000_001)
    assert set(bench.nodes().values()) == {runs[bench.evicted[0]]}


def test_replacement_pod_gets_the_domain_of_its_gang() -> None:
    bench = Bench(node("a", "r1"), node("b", "r2", 1))  # the tighter one, if a has two free
    bench.see(*gang(3))
    assert set(bench.nodes().values()) == {"a"}
    bench.bound("g0", "g1", "g2")
    bench.hear(ev.PodGone(Millis(0), Uid("a/g1")))
    bench.see(member(9, 3))
    assert bench.nodes()["g9"] == "a"
    assert dict(bench.released["g9"].selector) == {RACK: "r1"}


def test_replacement_pod_waits_for_capacity_in_the_domain_of_its_gang() -> None:
    bench = Bench(node("a", "r1", 3), node("b", "r2", 2))
    bench.see(*gang(3))
    bench.bound("g0", "g1", "g2")
    bench.hear(ev.PodGone(Millis(0), Uid("a/g1")))
    bench.see(busy("x", "a", 1))
    bench.see(member(9, 3))
    assert "g9" not in bench.released
    bench.hear(ev.PodGone(Millis(1), Uid("b/x")), at=1)
    assert bench.nodes()["g9"] == "a"


def test_rest_of_a_partly_released_gang_gets_the_domain_of_its_released_pods() -> None:
    bench = Bench(node("a", "r1", 8), node("b", "r2", 2))
    old = replace(member(0, 2), gates=(), release_annotation="7.1", node=NodeName("a"))
    bench.see(old, replace(member(1, 2), release_annotation="0@8"))
    assert bench.nodes() == {"g1": "a"}


def test_a_domain_that_changes_its_label_is_another() -> None:
    bench = Bench(node("a", "r1"), node("b", "r2"))
    waiting = gang(6)
    bench.see(*waiting)
    assert bench.released == {}
    bench.hear(ev.NodeObserved(Millis(1), node("b", "r1")), at=1)
    assert len(bench.released) == 6


@pytest.mark.parametrize("seen", [False, True])
def test_pod_of_a_lost_node_is_expected_only_where_its_release_allows(seen: bool) -> None:
    """True before and after the patched pod is observed. Similar pods need not wait for it."""
    timeout = 300_000
    bench = Bench(node("a", "r1"), node("b", "r1"), node("c", "r2", 16))
    bench.hear(ev.Installed(Millis(0), Millis(0)))
    bench.see(busy("x", "c", 14))
    members = gang(4, gpus=2)
    bench.see(*members)
    assert sorted(bench.nodes().values()) == ["a", "a", "b", "b"]
    for pod in members:
        order = bench.released[pod.name]
        bench.hear(ev.ReleaseAnswered(Millis(0), pod.uid, ReleaseOutcome.RELEASED))
        after = replace(pod, gates=(), release_annotation=order.intent.stamp, pool=POOL.name)
        if seen:
            after = replace(after, selector=dict(order.selector))
        bench.see(replace(after, node=order.node if order.node == "b" else None))
        if order.node != "b":
            bench.see(
                replace(after, scheduler_condition=SchedulerCondition("Unschedulable"), owner="job")
            )
    bench.hear(ev.PodGone(Millis(0), Uid("b/x")), ev.NodeGone(Millis(0), NodeName("a")))
    lost = [pod for pod in members if bench.released[pod.name].node == "a"]
    for pod in lost:
        view = bench.engine.queries.released_view(pod.uid)
        assert view is not None
        assert view.node is None
    bench.see(replace(member(9, 0), gang="", topology=None, demand={GPU: 12, PODS: 1}))
    assert bench.released["g9"].node == "c"
    tracked = bench.engine._registry.pods[Uid("a/g9")]
    bench.hear(ev.ReleaseAnswered(Millis(0), Uid("a/g9"), ReleaseOutcome.RELEASED))
    bench.see(replace(tracked.pod, node=NodeName("c")))
    bench.hear(at=timeout)
    assert bench.expelled == [pod.name for pod in lost]
    for pod in lost:
        bench.hear(ev.PodGone(Millis(2 * timeout), pod.uid), at=2 * timeout)
    again = [replace(pod, uid=Uid(f"again-{pod.name}"), gang="", topology=None) for pod in lost]
    bench.see(*again, at=2 * timeout)
    assert {bench.released[pod.name].node for pod in again} == {"c"}
