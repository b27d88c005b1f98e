"""If no pool can run a pod, the reason of each pool is reported."""

from __future__ import annotations

from dataclasses import replace

import pytest

from app.core import events as ev
from app.core.engine import Engine
from app.core.explain.reasons import Rule, WaitExplanation
from app.core.model import (
    Millis,
    Node,
    NodeName,
    Pod,
    Pool,
    PoolName,
    Resource,
    Tenant,
    TenantName,
    Uid,
    UnmanagedPod,
)
from app.core.quantities import PODS, ManagedResources
from app.sim.cluster.virtual_cluster import held_pod

GPU = Resource("nvidia.com/gpu")
NOW = Millis(0)


def node(name: str, gpus: int, ready: bool = True, **labels: str) -> ev.NodeObserved:
    return ev.NodeObserved(NOW, Node(NodeName(name), labels, {GPU: gpus, PODS: 100}, ready))


def asked(pod: Pod, *more: ev.ClusterEvent) -> WaitExplanation:
    """Return why a pod waits in a cluster with pools h100 and t4 and these other objects."""
    engine = Engine(ManagedResources([GPU]))
    pools = [Pool(PoolName("h100"), {"gpu": "h100"}), Pool(PoolName("t4"), {"gpu": "t4"})]
    tenant = Tenant(TenantName("team"), NOW, namespaces=("a",))
    events: list[ev.ClusterEvent] = [ev.PoolObserved(NOW, pool) for pool in pools]
    events += [node("n0", 8, gpu="h100", zone="x"), node("n1", 4, gpu="h100", zone="x")]
    events += [node("m0", 2, gpu="t4"), ev.TenantObserved(NOW, tenant), *more]
    for event in [*events, ev.PodObserved(NOW, pod)]:
        engine.handle(event)
    for source in ev.WatchedSource:
        engine.handle(ev.SourceFresh(NOW, source))
    engine.handle(ev.Pass(NOW))
    found = engine.queries.explain_wait(pod.uid)
    assert found is not None
    return found


POD = held_pod("p", "a", 1)
PAUSED = ev.PoolObserved(NOW, Pool(PoolName("t4"), {"gpu": "t4"}, paused=True))
ONLY_T4 = Tenant(TenantName("team"), NOW, namespaces=("a",), pools=(PoolName("t4"),))
BARE = ev.PoolObserved(NOW, Pool(PoolName("bare"), {"gpu": "none"}))


@pytest.mark.parametrize(
    ("pod", "more", "pool", "reason"),
    [
        (
            replace(POD, selector={"gpu": "a100"}),
            (),
            "h100",
            "its node selector asks for gpu=a100, the pool is gpu=h100",
        ),
        (
            replace(POD, selector={"zone": "y"}),
            (),
            "h100",
            "its nodes lack the labels of the pod's node selector, zone=y",
        ),
        (
            replace(POD, pools=(PoolName("nix"),)),
            (),
            "t4",
            "its annotation fairgate.io/pools names nix only",
        ),
        (
            replace(POD, selector={"gpu": "h100"}),
            (ev.TenantObserved(NOW, ONLY_T4),),
            "h100",
            "its tenant team may use t4 only",
        ),
        (replace(POD, selector={"gpu": "t4"}), (PAUSED,), "t4", "it is paused"),
        (replace(POD, selector={"x": "y"}), (BARE,), "bare", "it has no nodes"),
        (
            replace(POD, node_names=(NodeName("ghost"),)),
            (),
            "t4",
            "node ghost, which it must go to, is not in it",
        ),
        (
            replace(POD, node_names=(NodeName("m0"),), selector={"zone": "y"}),
            (),
            "t4",
            "node m0, which it must go to, lacks the labels of the pod's node selector, zone=y",
        ),
    ],
)
def test_reason_of_each_pool_states_why_it_excludes_the_pod(
    pod: Pod, more: tuple[ev.ClusterEvent, ...], pool: str, reason: str
) -> None:
    found = asked(pod, *more)
    assert found.rule is Rule.NO_POOL
    assert found.numbers[f"pool {pool}"] == reason
    assert f"pool {pool}: {reason}" in found.text
    assert found.remedies


@pytest.mark.parametrize(
    ("pod", "more", "reasons"),
    [
        (
            held_pod("p", "a", 16),
            (),
            (
                "16 nvidia.com/gpu asked, 12 in all its ready nodes",
                "16 nvidia.com/gpu asked, 2 in all its ready nodes",
            ),
        ),
        (
            held_pod("p", "a", 9),
            (),
            (
                "9 nvidia.com/gpu asked on one node, its largest has 8",
                "9 nvidia.com/gpu asked, 2 in all its ready nodes",
            ),
        ),
        (
            held_pod("p", "a", 9),
            (node("m0", 2, False, gpu="t4"),),
            (
                "9 nvidia.com/gpu asked on one node, its largest has 8",
                "none of its nodes is ready",
            ),
        ),
    ],
)
def test_reason_of_a_pool_that_is_too_small_states_the_amounts(
    pod: Pod, more: tuple[ev.ClusterEvent, ...], reasons: tuple[str, str]
) -> None:
    found = asked(pod, *more)
    assert found.rule is Rule.NO_POOL
    assert (found.numbers["pool h100"], found.numbers["pool t4"]) == reasons
    assert found.position == 1


def test_reason_states_that_the_pods_of_a_gang_may_not_share_one_pool() -> None:
    gang = replace(POD, gang="g", gang_size=2, selector={"gpu": "h100"})
    mate = replace(held_pod("q", "a", 1), gang="g", gang_size=2, selector={"gpu": "t4"})
    found = asked(gang, ev.PodObserved(NOW, mate))
    assert found.rule is Rule.NO_POOL
    assert found.numbers["pool h100"] == "not all pods of its gang g may go there"


def test_a_gang_larger_than_a_pool_that_holds_each_pod_needs_fewer_pods_or_more_nodes() -> None:
    def remedies(gpus: int) -> tuple[str, ...]:
        pods = [replace(held_pod(f"p{n}", "a", gpus), gang="g", gang_size=10) for n in range(10)]
        return tuple(asked(pods[0], *(ev.PodObserved(NOW, pod) for pod in pods[1:])).remedies)

    assert remedies(4) == ("fewer pods in the gang", "more nodes in pool h100")
    assert remedies(9) == ("less asked for by each pod", "larger nodes in pool h100 or t4")


def test_capacity_used_by_unmanaged_pods_does_not_exclude_a_pool() -> None:
    taken = ev.UnmanagedPodObserved(NOW, UnmanagedPod(Uid("b"), NodeName("n0"), {PODS: 99, GPU: 5}))
    found = asked(replace(held_pod("p", "a", 8), selector={"gpu": "h100"}), taken)
    assert found.rule is Rule.CAPACITY
