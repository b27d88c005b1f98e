"""Releases never exceed the free capacity, in any order of pods and nodes."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest

from app.core import events as ev
from app.core.model import (
    DEFAULT_POOL,
    Amounts,
    Millis,
    Node,
    NodeName,
    Phase,
    Pod,
    Pool,
    PoolName,
    Quota,
    Resource,
    Tenant,
    TenantName,
    Uid,
    UnmanagedPod,
    UserName,
)
from app.core.podspec.constraints import DistanceRuleKind, PodDistanceRule
from app.core.quantities import PODS
from app.core.well_known import GATE, RELEASE_HELD
from tests.support.engine_bench import GPU, NOW, Bench

MEMORY = Resource("nvidia.com/gpumem")
KIND = "example.com/kind"
POOL = PoolName("ml")
OURS = TenantName("a")
NOT_FAR = PodDistanceRule(DistanceRuleKind.CLOSE, "zone", "me")
SPREAD = PodDistanceRule(DistanceRuleKind.EVEN, "zone", "me", 1)


def node(name: str, gpus: int = 8, kind: str = "", zone: str = "z") -> Node:
    where = {"kubernetes.io/hostname": name, "zone": zone, **({KIND: kind} if kind else {})}
    return Node(NodeName(name), where, {GPU: gpus, PODS: 110}, True)


def held(name: str, gpus: int = 1, **fields: object) -> Pod:
    uid, user, demand = Uid(name), UserName("u"), {GPU: gpus, PODS: 1}
    return Pod(uid, "a", name, user, 0, NOW, demand, (GATE,), RELEASE_HELD, **fields)  # type: ignore[arg-type]


def limited(pool: PoolName, gpus: int) -> ev.TenantObserved:
    quotas = {pool: Quota({}, {GPU: gpus})}
    return ev.TenantObserved(NOW, Tenant(OURS, Millis(0), namespaces=("a",), quotas=quotas))


@pytest.mark.parametrize("rule", [NOT_FAR, SPREAD], ids=["affinity", "spread"])
@pytest.mark.parametrize(("size", "fits"), [(4, True), (5, False), (20, False)])
def test_gang_with_a_distance_rule_counts_its_own_pods(
    rule: PodDistanceRule, size: int, fits: bool
) -> None:
    bench = Bench(*(node(f"n{number}") for number in range(2)))
    bench.see(
        *(held(f"g{i}", 4, gang="g", gang_size=size, distance_rules=(rule,)) for i in range(size))
    )
    assert len(bench.released) == (size if fits else 0)
    assert all(count <= 2 for count in Counter(bench.released.values()).values())


@pytest.mark.parametrize(("size", "fits"), [(4, True), (5, False)])
def test_gang_with_a_distance_rule_counts_its_own_fractions_per_device(
    size: int, fits: bool
) -> None:
    cards: Amounts = {GPU: 4, MEMORY: 4000, PODS: 110}
    labels = {"zone": "z", "nvidia.com/gpu.memory": "1000"}
    bench = Bench(Node(NodeName("n"), labels, cards, True), managed=(GPU, MEMORY))
    asks = {GPU: 1, MEMORY: 700, PODS: 1}
    for i in range(size):
        pod = held(f"g{i}", gang="g", gang_size=size, distance_rules=(NOT_FAR,))
        bench.see(replace(pod, demand=asks))
    assert len(bench.released) == (size if fits else 0)


@pytest.mark.parametrize("story", ["labelled late", "label gone and back"])
def test_running_pod_uses_capacity_as_soon_as_its_node_is_in_a_pool(story: str) -> None:
    late = story == "labelled late"
    bench = Bench(
        node("n1", kind="" if late else "ml"),
        node("n2", kind="ml"),
        pools=(Pool(POOL, {KIND: "ml"}),),
    )
    bench.hear(limited(POOL, 8))
    release, pool = ("adopted", None) if late else ("1.1", POOL)
    runs = {"phase": Phase.RUNNING, "started_at": Millis(0)}
    whole = {GPU: 8, PODS: 1}
    user, at = UserName("u"), Millis(0)
    old = Pod(Uid("old"), "a", "old", user, 0, at, whole, (), release, NodeName("n1"), pool, **runs)  # type: ignore[arg-type]
    other = Pod(Uid("b"), "b", "b", user, 0, at, whole, (), "1.2", NodeName("n2"), POOL, **runs)  # type: ignore[arg-type]
    bench.see(old, other, held("new", 8))
    if not late:
        bench.put(node("n1"))
    bench.put(node("n1", kind="ml"))
    assert bench.released == {}
    bench.gone(old)
    assert bench.released == {"new": "n1"}


def test_limit_is_enforced_while_a_node_offers_less_than_is_used() -> None:
    """A restarting device plugin advertises no devices for a while."""
    bench = Bench(node("n1"), node("n2"))
    bench.hear(
        limited(DEFAULT_POOL, 2),
        ev.UnmanagedPodObserved(NOW, UnmanagedPod(Uid("x"), NodeName("n2"), {GPU: 8, PODS: 1})),
        ev.NodeObserved(NOW, node("n2", 0)),
    )
    bench.see(*(held(f"a{i}") for i in range(8)))
    assert len(bench.released) == 2


@pytest.mark.parametrize(("maker", "alone"), [("run-2", False), ("run-1", True)])
def test_pods_of_a_run_before_take_no_place_in_a_gang(maker: str, alone: bool) -> None:
    """The Jobs of a CronJob share one gang name. Some pods of an older Job were deleted."""
    bench = Bench(node("n"))
    for i in range(3):
        old = held(f"old-{i}", gang="g", gang_size=4, owner="run-1")
        bench.see(replace(old, gates=(), release_annotation=f"6.{i + 1}", node=NodeName("n")))
        bench.see(replace(old, gates=(), release_annotation=f"6.{i + 1}", phase=Phase.FINISHED))
    bench.see(held("new-0", gang="g", gang_size=4, owner=maker))
    for i in range(3):  # seen again, as in a list
        old = held(f"old-{i}", gang="g", gang_size=4, owner="run-1")
        bench.see(replace(old, gates=(), release_annotation=f"6.{i + 1}", phase=Phase.FINISHED))
    assert list(bench.released) == (["new-0"] if alone else [])
    bench.see(*(held(f"new-{i}", gang="g", gang_size=4, owner="run-2") for i in range(1, 4)))
    assert len(bench.released) == 4


def test_capacity_freed_for_a_gang_stays_reserved_during_another_reclaim() -> None:
    """A reclaim for a guaranteed device on n3 is pending. Capacity freed on n1 stays reserved."""
    bench = Bench(*(node(f"n{number}") for number in (1, 2, 3)))
    one = Tenant(OURS, Millis(0), namespaces=("a",), quotas={DEFAULT_POOL: Quota({GPU: 1})})
    bench.hear(ev.TenantObserved(NOW, one))
    old = [
        replace(held(f"r{n}-{i}"), namespace="r", gates=(), release_annotation=f"1.{n}{i}")
        for n in (1, 2, 3)
        for i in range(8)
    ]
    at = {"pool": DEFAULT_POOL, "phase": Phase.RUNNING, "started_at": Millis(0)}
    old = [replace(pod, node=NodeName(f"n{pod.name[1]}"), **at) for pod in old]  # type: ignore[arg-type]
    bench.see(*old)
    gang = [replace(held(f"g{i}", 8, gang="g", gang_size=2), namespace="big") for i in range(2)]
    bench.see(*gang, *(replace(held(f"q{i}"), namespace="r") for i in range(9)))
    waited = Millis(NOW + 301_000)
    bench.hear(ev.PodGone(waited, old[0].uid))
    assert bench.released == {}  # it is reserved for the gang
    mine = replace(held("mine", node_names=(NodeName("n3"),)), created_at=waited)
    bench.hear(ev.PodObserved(waited, mine))
    assert bench.evicted == ["r3-7"]
    for number, pod in enumerate((*old[1:3], *old[8:11])):
        bench.hear(ev.PodGone(Millis(waited + 1000 * number), pod.uid))
    assert bench.released == {}


def test_beneficiary_of_a_reclaim_waits_for_no_reservation() -> None:
    """Otherwise each would wait for the other, and the eviction would have no effect."""
    bench = Bench(node("n1"), node("n2"))
    quotas = {DEFAULT_POOL: Quota({GPU: 1})}
    for name, parent, owed in (("p", "", False), ("p1", "p", True), ("p2", "p", False)):
        above = TenantName(parent) if parent else None
        tenant = Tenant(TenantName(name), Millis(0), parent=above, namespaces=(name,))
        tenant = replace(tenant, quotas=quotas) if owed else tenant
        bench.hear(ev.TenantObserved(NOW, tenant))
    at = {"pool": DEFAULT_POOL, "phase": Phase.RUNNING, "started_at": Millis(0), "gates": ()}
    for n in (1, 2):
        for i in range(8):
            old = replace(held(f"r{n}-{i}"), namespace="p2", release_annotation=f"1.{n}{i}")
            bench.see(replace(old, node=NodeName(f"n{n}"), **at))  # type: ignore[arg-type]
    bench.see(*(replace(held(f"g{i}", 8, gang="g", gang_size=2), namespace="q") for i in range(2)))
    later = Millis(NOW + 301_000)
    mine = replace(held("mine"), namespace="p1", created_at=later)
    bench.hear(ev.PodObserved(later, mine))
    [evicted] = bench.evicted
    bench.hear(ev.PodGone(Millis(later + 1000), Uid(evicted)))
    assert list(bench.released) == ["mine"]


def test_gang_of_two_owners_is_completed_by_a_pod_of_one_owner() -> None:
    """Succeeded pods of any owner count if they ran together with the present pods."""
    bench = Bench(node("n"))
    runs = {"gates": (), "node": NodeName("n"), "phase": Phase.RUNNING, "started_at": Millis(0)}
    makers = ("job-a", "job-a", "job-b")
    three = [held(f"g{i}", gang="g", gang_size=3, owner=each) for i, each in enumerate(makers)]
    three = [
        replace(pod, release_annotation=f"6.{i + 1}", **runs)  # type: ignore[arg-type]
        for i, pod in enumerate(three)
    ]
    bench.see(*three)
    bench.see(*(replace(pod, phase=Phase.FINISHED) for pod in three[:2]))
    bench.see(replace(three[2], phase=Phase.FINISHED, failed=True))
    bench.see(held("again", gang="g", gang_size=3, owner="job-b"))
    assert list(bench.released) == ["again"]
