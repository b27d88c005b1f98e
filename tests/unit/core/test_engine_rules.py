"""The rules of the engine, with the simulated cluster and with single events."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from fractions import Fraction

import pytest

from app.core import events as ev
from app.core.effects import (
    Charge,
    Dequeue,
    EmitEvent,
    Enqueue,
    EventReason,
    Intend,
    ListOrder,
    Refund,
    Release,
    WakeAt,
)
from app.core.engine import Engine
from app.core.engine_options import EngineOptions
from app.core.fairshare.sort_key import NEVER_SERVED
from app.core.fairshare.usage_record import UsageEnded, UsageStarted
from app.core.lifecycle.pod_record import release_id_of
from app.core.model import (
    Millis,
    Node,
    NodeName,
    Phase,
    Pod,
    Pool,
    PoolName,
    ReleaseOutcome,
    Resource,
    Tenant,
    TenantName,
    Uid,
    UnmanagedPod,
    UserName,
)
from app.core.policy import Policy
from app.core.quantities import CPU, PODS, ManagedResources
from app.core.well_known import GATE
from app.sim.cluster.virtual_cluster import VirtualCluster, held_pod

GPU = Resource("nvidia.com/gpu")
MANAGED = ManagedResources(["nvidia.com/gpu"])
HOUR = 3_600_000


def node(name: str, gpus: int, labels: dict[str, str] | None = None, ready: bool = True) -> Node:
    return Node(NodeName(name), labels or {}, {GPU: gpus, CPU: 64_000, PODS: 110}, ready)


def nodes(gpus: int) -> list[Node]:
    return [node(f"n{i}", 8) for i in range(gpus // 8)] + (
        [node("rest", gpus % 8)] if gpus % 8 else []
    )


def tenant(name: str, weight: str = "1", **more: object) -> Tenant:
    fields = {"namespaces": (name,), **more}
    return Tenant(TenantName(name), Millis(0), Fraction(weight), **fields)  # type: ignore[arg-type]


def flood(world: VirtualCluster, namespace: str, count: int, **more: object) -> None:
    for i in range(count):
        pod = held_pod(f"p{i:05}", namespace, **more)  # type: ignore[arg-type]
        world.submit(pod, Millis(0), None)


def using(world: VirtualCluster) -> Counter[str]:
    return Counter(pod.namespace for pod in world.released_pods.values())


class Bench:
    """A leading engine with its effects."""

    def __init__(self, *cluster: Node, lead: bool = True) -> None:
        self.engine = Engine(MANAGED, EngineOptions(emits_audit_records=False))
        self.sequence: list[object] = []
        for item in cluster:
            self.hear(ev.NodeObserved(Millis(0), item))
        for source in ev.WatchedSource:
            self.hear(ev.SourceFresh(Millis(0), source))
        if lead:
            self.hear(ev.LeadershipGained(Millis(0), 7))
            self.hear(ev.StoreReady(Millis(0)))

    def hear(self, event: ev.Event) -> tuple[object, ...]:
        effects = self.engine.handle(event) + self.engine.handle(ev.Pass(event.at))
        self.sequence += effects
        return effects

    def see(self, pod: Pod) -> tuple[object, ...]:
        return self.hear(ev.PodObserved(Millis(1000), pod))

    def answer(self, pod: Pod, answer: ReleaseOutcome) -> tuple[object, ...]:
        return self.hear(ev.ReleaseAnswered(Millis(2000), pod.uid, answer))

    def pending(self, name: str) -> int:
        return self.engine.queries.view().tenants[TenantName(name)].pending


def releases(effects: tuple[object, ...]) -> list[Release]:
    return [e for e in effects if isinstance(e, Release)]


@pytest.mark.parametrize(
    ("devices", "weights", "result"),
    [
        (16, {"a": "1", "b": "1"}, {"a": 8, "b": 8}),
        (12, {"a": "2", "b": "1"}, {"a": 8, "b": 4}),
        (999, {"a": "6", "b": "2", "c": "1"}, {"a": 666, "b": 222, "c": 111}),
        (8, {"a": "1", "b": "0"}, {"a": 8}),
    ],
)
def test_tenants_use_the_devices_in_proportion_to_their_weights(
    devices: int, weights: dict[str, str], result: dict[str, int]
) -> None:
    one = [Node(NodeName("n"), {}, {GPU: devices, PODS: 100_000}, True)]
    world = VirtualCluster(MANAGED, one, [tenant(n, w) for n, w in weights.items()])
    for name in weights:
        flood(world, name, devices)
    world.advance_to(Millis(0))
    assert using(world) == result


def test_tenant_of_weight_zero_gets_only_the_unused_rest() -> None:
    world = VirtualCluster(MANAGED, nodes(8), [tenant("a"), tenant("b", "0")])
    flood(world, "a", 3)
    flood(world, "b", 8)
    world.advance_to(Millis(0))
    assert using(world) == {"a": 3, "b": 5}


def test_priority_has_no_effect_between_tenants() -> None:
    world = VirtualCluster(MANAGED, nodes(16), [tenant("a"), tenant("b")])
    flood(world, "a", 100, priority=1_000_000_000)
    flood(world, "b", 100)
    world.advance_to(Millis(0))
    assert using(world) == {"a": 8, "b": 8}


def test_priority_has_no_effect_between_users_of_one_tenant() -> None:
    world = VirtualCluster(MANAGED, nodes(8), [tenant("a")])
    flood(world, "a", 50, user="loud", priority=1000)
    for i in range(50):
        world.submit(held_pod(f"q{i}", "a", user="quiet"), Millis(0), None)
    world.advance_to(Millis(0))
    assert Counter(p.user for p in world.released_pods.values()) == {"loud": 4, "quiet": 4}


def test_priority_orders_the_pods_of_one_user() -> None:
    world = VirtualCluster(MANAGED, nodes(8), [tenant("a")])
    world.submit(held_pod("filler", "a", 8), Millis(0), 1000)
    world.submit(held_pod("low", "a", 8, since=1), Millis(1), 1000)
    world.submit(held_pod("high", "a", 8, priority=10, since=2), Millis(2), 1000)
    world.advance_to(Millis(10_000))
    assert [s.pod.name for s in world.started] == ["filler", "high", "low"]


def test_age_orders_equal_priority_and_uid_orders_equal_age() -> None:
    world = VirtualCluster(MANAGED, nodes(8), [tenant("a")])
    world.submit(held_pod("filler", "a", 8), Millis(0), 1000)
    for name, since in [("c", 5), ("b", 6), ("a", 6)]:
        world.submit(held_pod(name, "a", 8, since=since), Millis(7), 1000)
    world.advance_to(Millis(10_000))
    assert [s.pod.name for s in world.started] == ["filler", "c", "a", "b"]


@pytest.mark.parametrize("devices", [1, 3])
def test_a_second_user_is_next_however_much_the_first_has_waiting(devices: int) -> None:
    world = VirtualCluster(MANAGED, nodes(devices), [tenant("a")])
    for i in range(1000):
        world.submit(held_pod(f"p{i:04}", "a", user="first"), Millis(0), 1000 + i)
    world.submit(held_pod("only", "a", user="second", since=500), Millis(500), 1000)
    world.advance_to(Millis(5_000))
    assert world.started[devices].pod.name == "only"


def test_two_users_alternate_on_one_device() -> None:
    world = VirtualCluster(MANAGED, nodes(1), [tenant("a")])
    for i in range(10):
        world.submit(held_pod(f"a{i}", "a", user="first"), Millis(0), 1000)
        world.submit(held_pod(f"b{i}", "a", user="second", since=100), Millis(100), 1000)
    world.advance_to(Millis(10_500))
    order = [s.pod.user for s in world.started][1:9]
    assert order == ["second", "first"] * 4


def test_unmapped_namespaces_together_have_the_weight_of_one_tenant() -> None:
    world = VirtualCluster(MANAGED, nodes(16), [tenant("a")])
    flood(world, "a", 20)
    for i in range(100):
        flood(world, f"stray{i}", 1)
    world.advance_to(Millis(0))
    assert using(world)["a"] == 8


def test_small_pod_is_backfilled_while_a_larger_one_does_not_fit() -> None:
    world = VirtualCluster(MANAGED, nodes(8), [tenant("a"), tenant("b")])
    world.submit(held_pod("six", "a", 6), Millis(0), None)
    world.submit(held_pod("big", "b", 4, since=1), Millis(1), None)
    world.submit(held_pod("small", "b", 2, since=2), Millis(2), None)
    world.advance_to(Millis(10))
    assert [s.pod.name for s in world.started] == ["six", "small"]


def test_the_larger_workload_waits_for_the_midpoint_not_the_end() -> None:
    """40 devices, one-device jobs against ten-device jobs: 20 devices each."""
    world = VirtualCluster(MANAGED, [node("n", 40)], [tenant("a"), tenant("b")])
    flood(world, "a", 100)
    flood(world, "b", 10, devices=10)
    world.advance_to(Millis(0))
    held: Counter[str] = Counter()
    for pod in world.released_pods.values():
        held[pod.namespace] += pod.demand[GPU]
    assert held == {"a": 20, "b": 20}


def test_dominant_share_counts_the_scarcer_resource() -> None:
    """9 CPU and 18 GB; A wants <1, 4>, B wants <3, 1>: A 3 and B 2 (DRF, NSDI 2011)."""
    memory = Resource("memory")
    managed = ManagedResources(["cpu", "memory"])
    cluster = [Node(NodeName("n"), {}, {CPU: 9000, memory: 18, PODS: 100}, True)]
    world = VirtualCluster(managed, cluster, [tenant("a"), tenant("b")])
    for i in range(9):
        for name, demand in (("a", {CPU: 1000, memory: 4}), ("b", {CPU: 3000, memory: 1})):
            pod = replace(held_pod(f"p{i}", name), demand=demand)
            world.submit(pod, Millis(0), None)
    world.advance_to(Millis(0))
    assert using(world) == {"a": 3, "b": 2}


def test_users_share_by_the_weights_their_tenant_gave_them() -> None:
    weights = {UserName("alice"): Fraction(3)}
    world = VirtualCluster(MANAGED, nodes(16), [tenant("a", user_weights=weights)])
    flood(world, "a", 30, user="alice")
    for i in range(30):
        world.submit(held_pod(f"bob{i}", "a", user="bob"), Millis(0), None)
    world.advance_to(Millis(0))
    assert Counter(p.user for p in world.released_pods.values()) == {"alice": 12, "bob": 4}


def test_nested_tenants_share_their_parents_part() -> None:
    tree = [
        tenant("p", namespaces=()),
        tenant("p1", parent=TenantName("p")),
        tenant("p2", parent=TenantName("p")),
        tenant("q"),
    ]
    world = VirtualCluster(MANAGED, nodes(16), tree)
    for name in ("p1", "p2", "q"):
        flood(world, name, 16)
    world.advance_to(Millis(0))
    assert using(world) == {"p1": 4, "p2": 4, "q": 8}


def test_a_weight_counts_from_the_next_decision() -> None:
    world = VirtualCluster(MANAGED, nodes(8), [tenant("a"), tenant("b")])
    for i in range(100):
        for name in ("a", "b"):
            world.submit(held_pod(f"p{i:03}", name), Millis(0), 1000)
    world.advance_to(Millis(1500))
    assert using(world) == {"a": 4, "b": 4}
    world.send_events(ev.TenantObserved(world.now, tenant("a", "3")))
    world.advance_to(Millis(2500))
    assert using(world) == {"a": 6, "b": 2}


def test_no_pod_is_released_beyond_the_ready_capacity() -> None:
    bench = Bench(node("n0", 2), node("n1", 2, ready=False))
    for i in range(4):
        bench.see(held_pod(f"p{i}", "a"))
    assert len(releases(tuple(bench.sequence))) == 2
    assert releases(bench.hear(ev.NodeObserved(Millis(0), node("n1", 1))))


def test_pods_on_a_cordoned_node_use_no_capacity_of_other_nodes() -> None:
    bench = Bench(node("n0", 2), node("n1", 2))
    for i in range(2):
        bound = replace(held_pod(f"old{i}", "a"), gates=(), node=NodeName("n0"))
        bench.see(bound)
    bench.hear(ev.NodeObserved(Millis(0), node("n0", 2, ready=False)))
    for i in range(3):
        bench.see(held_pod(f"p{i}", "a"))
    assert len(releases(tuple(bench.sequence))) == 2
    effects = bench.hear(ev.PodGone(Millis(0), Uid("a/old0")))
    assert not releases(effects)  # no new pod fits on a cordoned node
    assert releases(bench.hear(ev.NodeObserved(Millis(0), node("n0", 2))))


def test_unmanaged_pods_use_capacity() -> None:
    bench = Bench(node("n0", 2))
    bench.hear(
        ev.UnmanagedPodObserved(
            Millis(0), UnmanagedPod(Uid("x"), NodeName("n0"), {GPU: 1, PODS: 1})
        )
    )
    for i in range(2):
        bench.see(held_pod(f"p{i}", "a"))
    assert len(releases(tuple(bench.sequence))) == 1
    assert len(releases(bench.hear(ev.PodGone(Millis(0), Uid("x"))))) == 1


def test_pools_are_filled_in_order_of_their_names() -> None:
    pools = [
        Pool(PoolName("h100"), {"kind": "h100"}),
        Pool(PoolName("t4"), {"kind": "t4"}),
    ]
    cluster = [node("a", 1, {"kind": "h100"}), node("b", 2, {"kind": "t4"}), node("c", 8)]
    world = VirtualCluster(MANAGED, cluster, [], pools)
    flood(world, "a", 5)
    world.advance_to(Millis(0))
    assert Counter(s.pool for s in world.started) == {"h100": 1, "t4": 2}


def test_release_adds_the_pools_selector_but_never_overwrites_the_pods() -> None:
    bench = Bench(node("n0", 2, {"kind": "h100", "zone": "x"}))
    selector = {"kind": "h100", "zone": "x"}
    bench.hear(ev.PoolObserved(Millis(0), Pool(PoolName("h100"), selector)))
    (order,) = releases(bench.see(replace(held_pod("p", "a"), selector={"zone": "x"})))
    assert order.selector == {"kind": "h100"}
    assert order.has_selector
    assert order.labels["fairgate.io/pool"] == "h100"


@pytest.mark.parametrize(
    "change",
    [
        {"selector": {"kind": "other"}},
        {"selector": {"missing": "label"}},
        {"pools": (PoolName("elsewhere"),)},
        {"gates": (GATE, "example.com/mine")},
    ],
)
def test_pod_without_an_eligible_pool_is_not_released(change: dict[str, object]) -> None:
    bench = Bench(node("n0", 2, {"kind": "h100"}))
    bench.hear(ev.PoolObserved(Millis(0), Pool(PoolName("h100"), {"kind": "h100"})))
    effects = bench.see(replace(held_pod("p", "a"), **change))  # type: ignore[arg-type]
    assert not releases(effects)
    (tell,) = [e for e in effects if isinstance(e, EmitEvent)]
    assert tell.reason is EventReason.HELD
    assert "not queued" in (bench.engine.queries.wait_reason(tell.ref.uid) or "")


def test_pod_is_released_after_its_other_gate_is_removed() -> None:
    bench = Bench(node("n0", 2))
    pod = held_pod("p", "a")
    bench.see(replace(pod, gates=(GATE, "example.com/mine")))
    assert releases(bench.see(pod))


def test_a_paused_tenant_waits_and_its_children_with_it() -> None:
    bench = Bench(node("n0", 2))
    bench.hear(ev.TenantObserved(Millis(0), tenant("p", paused=True)))
    bench.hear(ev.TenantObserved(Millis(0), tenant("c", parent=TenantName("p"))))
    assert not releases(bench.see(held_pod("x", "c")))
    assert releases(bench.hear(ev.TenantObserved(Millis(0), tenant("p"))))


@pytest.mark.parametrize("started", [0, 10**14])
def test_a_start_in_the_status_is_neither_before_the_creation_nor_in_the_future(
    started: int,
) -> None:
    bench = Bench(node("n0", 2))
    pod = replace(held_pod("p", "a"), gates=(), release_annotation="1.1", node=NodeName("n0"))
    since, now = Millis(2000), Millis(5000)
    bench.hear(ev.PodObserved(now, replace(pod, created_at=since, started_at=Millis(started))))
    [found] = bench.engine.queries.pods_on(NodeName("n0"))
    assert found.released_at == (now if started else since)


def test_contested_node_belongs_to_the_first_of_two_overlapping_pools() -> None:
    bench = Bench(node("n0", 1, {"kind": "h100"}), node("n1", 1, {"kind": "h100", "x": "y"}))
    bench.hear(ev.PoolObserved(Millis(0), Pool(PoolName("a"), {"kind": "h100"})))
    bench.hear(ev.PoolObserved(Millis(0), Pool(PoolName("b"), {"x": "y"})))
    assert bench.engine.queries.view().pools[PoolName("b")].contested_nodes
    pinned = replace(held_pod("p", "a"), pools=(PoolName("b"),))
    assert not releases(bench.see(pinned))


def test_store_receives_enqueue_charge_and_refund() -> None:
    bench = Bench(node("n0", 1))
    first, second = held_pod("p0", "a"), held_pod("p1", "a")
    effects = bench.see(first)
    assert [type(e) for e in effects] == [Enqueue, Release]
    assert [type(e) for e in bench.see(second)] == [Enqueue, EmitEvent]
    effects = bench.answer(first, ReleaseOutcome.RELEASED)
    assert [type(e) for e in effects] == [UsageStarted, Dequeue, Charge]
    effects = bench.hear(ev.PodGone(Millis(3000), first.uid))
    assert [type(e) for e in effects] == [UsageEnded, Refund, Release]


def test_only_a_pod_that_waited_gets_events() -> None:
    bench = Bench(node("n0", 1))
    first, second = held_pod("p0", "a"), held_pod("p1", "a")
    told = [*bench.see(first), *bench.answer(first, ReleaseOutcome.RELEASED)]
    assert not [e for e in told if isinstance(e, EmitEvent)]
    told = [*bench.see(second), *bench.hear(ev.PodGone(Millis(3000), first.uid))]
    told += bench.answer(second, ReleaseOutcome.RELEASED)
    notices = [e.reason for e in told if isinstance(e, EmitEvent)]
    assert notices == [EventReason.HELD, EventReason.RELEASED]


def test_a_pod_that_waited_for_a_leader_gets_the_event_released() -> None:
    bench = Bench(node("n0", 1))
    pod = held_pod("p0", "a")
    bench.see(pod)
    told = bench.hear(ev.ReleaseAnswered(Millis(600_000), pod.uid, ReleaseOutcome.RELEASED))
    [notice] = [e for e in told if isinstance(e, EmitEvent)]
    assert notice.reason is EventReason.RELEASED
    assert notice.explains_wait


def test_pod_gets_the_held_event_if_its_first_release_fails() -> None:
    bench = Bench(node("n0", 1))
    pod = held_pod("p0", "a")
    told = [*bench.see(pod), *bench.answer(pod, ReleaseOutcome.HELD)]
    assert [e.reason for e in told if isinstance(e, EmitEvent)] == [EventReason.HELD]


def test_wait_reason_has_position_queue_and_missing_resource() -> None:
    bench = Bench(node("n0", 1))
    bench.see(held_pod("p0", "team", user="alice"))
    bench.see(held_pod("p1", "team", user="alice"))
    effects = bench.see(held_pod("p2", "team", user="alice"))
    (tell,) = [e for e in effects if isinstance(e, EmitEvent)]
    assert bench.engine.queries.wait_reason(tell.ref.uid) == (
        "queued: 2 of 2 in ns.team/alice; waits for 1 nvidia.com/gpu of pool default; "
        "1 of this user's own goes first"
    )


def test_no_pod_is_released_before_every_required_source_is_fresh() -> None:
    engine = Engine(MANAGED)
    engine.handle(ev.LeadershipGained(Millis(0), 1))
    engine.handle(ev.StoreReady(Millis(0)))
    now = ev.Pass(Millis(0))
    engine.handle(ev.NodeObserved(Millis(0), node("n0", 8)))
    engine.handle(ev.PodObserved(Millis(0), held_pod("p", "a")))
    effects: tuple[object, ...] = ()
    for source in ev.REQUIRED_SOURCES:
        assert not releases(effects)
        effects = engine.handle(ev.SourceFresh(Millis(0), source)) + engine.handle(now)
    assert releases(effects)


@pytest.mark.parametrize(
    ("stop", "go"),
    [
        (
            ev.SourceStale(Millis(0), ev.WatchedSource.PODS),
            ev.SourceFresh(Millis(0), ev.WatchedSource.PODS),
        ),
        (ev.StoreLost(Millis(0)), ev.StoreReady(Millis(0))),
    ],
)
def test_no_pod_is_released_while_a_source_is_stale_or_the_store_is_lost(
    stop: ev.Event, go: ev.Event
) -> None:
    bench = Bench(node("n0", 8))
    bench.hear(stop)
    assert not releases(bench.see(held_pod("p", "a")))
    assert releases(bench.hear(go))


def test_follower_emits_no_effects_and_can_lead_at_once() -> None:
    bench = Bench(node("n0", 1), lead=False)
    assert bench.see(held_pod("p", "a")) == ()
    bench.hear(ev.LeadershipGained(Millis(0), 3))
    (order,) = releases(bench.hear(ev.StoreReady(Millis(0))))
    assert order.stamp == "3.1"
    assert order.expected_annotation == "0"


def test_unanswered_release_counts_as_used_until_the_answer() -> None:
    bench = Bench(node("n0", 1))
    first, second = held_pod("p0", "a"), held_pod("p1", "a")
    bench.see(first)
    assert not releases(bench.see(second))
    assert not releases(bench.see(first))
    effects = bench.answer(first, ReleaseOutcome.HELD)
    refund, listed, release = (e for e in effects if not isinstance(e, EmitEvent | WakeAt))
    assert isinstance(refund, Refund)
    assert isinstance(listed, Enqueue)  # it waits for its next try, so it has no position
    assert (listed.ref.uid, listed.order) == (first.uid, ListOrder.UNQUEUED)
    assert isinstance(release, Release)
    assert releases(effects)[0].intent.ref.uid == second.uid


def test_pod_waits_behind_others_if_its_release_fails_repeatedly() -> None:
    bench = Bench(node("n0", 1))
    stuck = held_pod("p0", "a")
    bench.see(stuck)
    bench.answer(stuck, ReleaseOutcome.HELD)  # at 2000
    assert bench.pending("ns.a") == 1
    assert not releases(bench.hear(ev.Pass(Millis(2999))))
    assert releases(bench.hear(ev.Pass(Millis(3000))))
    bench.hear(ev.ReleaseAnswered(Millis(3000), stuck.uid, ReleaseOutcome.HELD))
    assert not releases(bench.hear(ev.Pass(Millis(4999))))
    assert releases(bench.see(held_pod("p1", "a")))


@pytest.mark.parametrize(
    ("release", "stamp"),
    [
        ("7.12", (7, 12)),
        ("0@7", (7, 0)),
        ("0@7.12", (7, 0)),
        ("0@7.12.0", (7, 0)),
        ("0", NEVER_SERVED),
        ("", NEVER_SERVED),
        ("adopted", NEVER_SERVED),
        ("7.@", NEVER_SERVED),
        ("10@7", NEVER_SERVED),
        ("9" * 5000 + ".1", NEVER_SERVED),
        ("\N{ARABIC-INDIC DIGIT SEVEN}.1", NEVER_SERVED),
        ("-1.2", NEVER_SERVED),
    ],
)
def test_only_stamps_in_the_written_format_are_parsed(release: str, stamp: tuple[int, int]) -> None:
    assert release_id_of(release) == stamp


def test_pods_of_one_user_keep_their_order_in_spite_of_different_requests() -> None:
    world = VirtualCluster(MANAGED, nodes(8), [tenant("a")])
    world.submit(held_pod("filler", "a", 8), Millis(0), 1000)
    for i in range(50):
        pod = held_pod(f"p{i:02}", "a", 8, since=100 - i)
        demand = {**pod.demand, CPU: 1000 + i % 7}
        world.submit(replace(pod, demand=demand), Millis(200), 1000)
    world.advance_to(Millis(100_000))
    assert [s.pod.created_at for s in world.started[1:]] == list(range(51, 101))


def test_a_release_seen_by_the_watch_first_is_charged_once() -> None:
    bench = Bench(node("n0", 2))
    pod = held_pod("p", "a")
    (order,) = releases(bench.see(pod))
    opened = replace(pod, gates=(), release_annotation=order.stamp, pool=PoolName("default"))
    bench.see(opened)
    bench.answer(pod, ReleaseOutcome.RELEASED)
    bench.see(opened)
    assert len([e for e in bench.sequence if isinstance(e, Charge)]) == 1
    assert bench.engine.queries.view().pools[PoolName("default")].used == {GPU: 1}


def test_an_old_sighting_of_a_released_pod_does_not_queue_it_again() -> None:
    bench = Bench(node("n0", 2))
    pod = held_pod("p", "a")
    bench.see(pod)
    bench.answer(pod, ReleaseOutcome.RELEASED)
    assert bench.see(replace(pod, has_labels=False)) == ()
    assert bench.pending("ns.a") == 0


def test_a_pod_deleted_while_held_leaves_the_queue() -> None:
    bench = Bench(node("n0", 1))
    bench.see(held_pod("p0", "a"))
    bench.see(held_pod("p1", "a"))
    assert bench.pending("ns.a") == 2
    effects = bench.hear(ev.PodGone(Millis(0), Uid("a/p1")))
    assert [type(e) for e in effects] == [Dequeue]
    assert bench.pending("ns.a") == 1


def test_a_pod_deleted_while_releasing_gives_everything_back() -> None:
    bench = Bench(node("n0", 1))
    pod = held_pod("p0", "a")
    bench.see(pod)
    effects = bench.hear(ev.PodGone(Millis(0), pod.uid))
    assert [type(e) for e in effects] == [Dequeue, Refund]
    assert not bench.answer(pod, ReleaseOutcome.GONE)
    assert releases(bench.see(held_pod("p1", "a")))


def test_a_pod_deleted_right_after_its_release_gives_everything_back() -> None:
    """Both events arrive between two cycles, so only the intent was charged."""
    bench = Bench(node("n0", 1))
    pod = held_pod("p0", "a")
    bench.see(pod)
    bench.engine.handle(
        ev.PodObserved(Millis(1000), replace(pod, gates=(), release_annotation="7.1"))
    )
    effects = bench.hear(ev.PodGone(Millis(1000), pod.uid))
    assert [type(e) for e in effects] == [Dequeue, Refund]


def test_running_pods_are_adopted_as_used() -> None:
    bench = Bench(node("n0", 2))
    old = replace(
        held_pod("old", "a"),
        gates=(),
        release_annotation="",
        node=NodeName("n0"),
        phase=Phase.RUNNING,
    )
    effects = bench.see(old)
    assert [type(e) for e in effects] == [UsageStarted, Charge]
    assert bench.engine.queries.view().tenants[TenantName("ns.a")].used == {"default": {GPU: 1}}


def test_a_finished_pod_is_never_queued_again() -> None:
    bench = Bench(node("n0", 1))
    done = replace(held_pod("p", "a"), gates=(), phase=Phase.FINISHED)
    assert bench.see(done) == ()
    assert bench.see(replace(done, gates=(GATE,))) == ()


def test_a_terminating_pod_still_counts_until_it_is_gone() -> None:
    bench = Bench(node("n0", 1))
    pod = replace(held_pod("p", "a"), gates=(), node=NodeName("n0"), terminating=True)
    bench.see(pod)
    assert not releases(bench.see(held_pod("q", "a")))
    assert releases(bench.hear(ev.PodGone(Millis(0), pod.uid)))


def test_a_namespace_that_moves_takes_its_pods_along() -> None:
    bench = Bench(node("n0", 1))
    bench.see(held_pod("p0", "team"))
    bench.see(held_pod("p1", "team"))
    effects = bench.hear(ev.TenantObserved(Millis(0), tenant("t", namespaces=("team",))))
    queued = [e for e in effects if isinstance(e, Enqueue)]
    assert {e.tenant for e in queued} == {"t"}
    assert bench.pending("t") == 2


def test_a_new_leader_writes_everything_it_knows() -> None:
    bench = Bench(node("n0", 1))
    bench.see(held_pod("p0", "a"))
    bench.see(held_pod("p1", "a"))
    assert [type(w) for w in bench.engine.store_writes()] == [Enqueue, Intend, Enqueue]


def test_loss_of_leadership_drops_releases_in_flight() -> None:
    bench = Bench(node("n0", 1))
    pod = held_pod("p0", "a")
    bench.see(pod)
    bench.hear(ev.LeadershipLost(Millis(0)))
    assert bench.answer(pod, ReleaseOutcome.RELEASED) == ()
    bench.hear(ev.LeadershipGained(Millis(0), 8))
    (order,) = releases(bench.hear(ev.StoreReady(Millis(0))))
    assert order.stamp == "8.1"


def test_releases_in_flight_are_limited_to_a_window() -> None:
    bench = Bench(Node(NodeName("n0"), {}, {GPU: 1000, PODS: 1000}, True))
    bench.hear(ev.PolicyObserved(Millis(0), Policy(max_unbound=1000)))
    pods = [replace(held_pod(f"p{i:03}", "a"), owner="job") for i in range(300)]
    for pod in pods:
        bench.see(pod)
    assert len(releases(tuple(bench.sequence))) == 256
    assert len(releases(bench.answer(pods[0], ReleaseOutcome.RELEASED))) == 1
