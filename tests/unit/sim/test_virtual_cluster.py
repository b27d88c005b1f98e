"""The simulated cluster: its workloads and its output."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import pytest

from app.core import events as ev
from app.core.effects import ReclaimCause, WakeAt
from app.core.errors import InvalidInput
from app.core.model import (
    Millis,
    Node,
    NodeName,
    Pod,
    Pool,
    PoolName,
    Quota,
    Resource,
    Tenant,
    TenantName,
    Uid,
    UserName,
)
from app.core.policy import Policy, Reclaim
from app.core.quantities import PODS, ManagedResources
from app.sim.cluster.virtual_cluster import VirtualCluster
from app.sim.cluster.workload import SimulatedWorkload, TimelineStep

GPU = Resource("nvidia.com/gpu")
MAIN = PoolName("default")


def node(name: str, gpus: int, **labels: str) -> Node:
    return Node(NodeName(name), labels, {GPU: gpus, PODS: 1000}, ready=True)


def tenant(name: str, guarantee: int = 0) -> Tenant:
    quotas = {MAIN: Quota({GPU: guarantee})} if guarantee else {}
    return Tenant(TenantName(name), Millis(0), namespaces=(name,), quotas=quotas)


def work(name: str, of: str = "a", gpus: int = 1, at: int = 0, **more: object) -> SimulatedWorkload:
    plain = SimulatedWorkload(name, TenantName(of), UserName(of), Millis(at), {GPU: gpus})
    return replace(plain, **more)  # type: ignore[arg-type]


def world_of(
    *gpus: int, tenants: Iterable[Tenant] = (), policy: Policy | None = None, **more: object
) -> VirtualCluster:
    nodes = [node(f"n{i}", size) for i, size in enumerate(gpus)]
    members = tuple(tenants) or (tenant("a"), tenant("b"))
    return VirtualCluster(ManagedResources([GPU]), nodes, members, policy=policy, **more)  # type: ignore[arg-type]


def told(world: VirtualCluster) -> list[tuple[int, TimelineStep, str]]:
    return [(moment.at, moment.step, moment.work.name) for moment in world.timeline]


GUARANTEE = Policy(reclaim=Reclaim.GUARANTEE, min_runtime=Millis(0))


def test_a_workload_is_submitted_released_and_ends() -> None:
    world = world_of(1)
    world.add_workload(work("w", at=5, duration=Millis(10)))
    world.advance_to(Millis(100))

    assert told(world) == [
        (5, TimelineStep.SUBMITTED, "w"),
        (5, TimelineStep.RELEASED, "w"),
        (15, TimelineStep.ENDED, "w"),
    ]
    assert (world.timeline[1].pool, world.timeline[1].nodes) == ("default", ("n0",))
    assert world.released_pods == {}
    assert world.now == 100


def test_workload_that_does_not_fit_waits_until_another_ends() -> None:
    world = world_of(1)
    world.add_workload(work("first", duration=Millis(10)))
    world.add_workload(work("second"))
    world.advance_to(Millis(9))
    waiting = [pod.name for pod in world.waiting_pods()]
    world.advance_to(Millis(10))

    assert waiting == ["second"]
    assert told(world)[-2:] == [
        (10, TimelineStep.ENDED, "first"),
        (10, TimelineStep.RELEASED, "second"),
    ]
    assert list(world.waiting_pods()) == []


def test_ties_are_resolved_in_order_of_addition() -> None:
    world = world_of(1)
    for index in range(12):
        world.add_workload(work(f"w{index}", duration=Millis(10)))
    world.advance_to(Millis(1000))

    released = [
        moment.work.name for moment in world.timeline if moment.step is TimelineStep.RELEASED
    ]
    assert released == [f"w{index}" for index in range(12)]


def test_gang_is_released_at_one_instant_with_a_node_for_each_pod() -> None:
    world = world_of(2, 2)
    world.add_workload(work("gang", pods=4, duration=Millis(10)))
    world.advance_to(Millis(10))

    (released,) = [moment for moment in world.timeline if moment.step is TimelineStep.RELEASED]
    assert sorted(released.nodes) == ["n0", "n0", "n1", "n1"]
    assert world.decisions == 1
    assert [step for _, step, _ in told(world)] == [
        TimelineStep.SUBMITTED,
        TimelineStep.RELEASED,
        TimelineStep.ENDED,
    ]
    assert world.released_pods == {}


def test_gang_that_does_not_fit_completely_uses_nothing() -> None:
    world = world_of(3)
    world.add_workload(work("gang", pods=4))
    world.advance_to(Millis(10))

    assert [step for _, step, _ in told(world)] == [TimelineStep.SUBMITTED]
    assert len(list(world.waiting_pods())) == 4
    assert world.released_pods == {}


def test_workloads_running_at_the_start_use_capacity_from_the_start() -> None:
    world = world_of(2, 2)
    for name, released in (("x", -3000), ("y", -2000), ("z", -1000)):
        world.add_workload(work(name, gpus=1, released=Millis(released), duration=Millis(5000)))
    world.add_workload(work("new", gpus=2))
    world.advance_to(Millis(0))

    assert told(world)[:3] == [
        (-3000, TimelineStep.RELEASED, "x"),
        (-2000, TimelineStep.RELEASED, "y"),
        (-1000, TimelineStep.RELEASED, "z"),
    ]
    assert [m.nodes for m in world.timeline[:3]] == [("n0",), ("n0",), ("n1",)]
    assert [pod.name for pod in world.waiting_pods()] == ["new"]
    assert world.view().tenants[TenantName("a")].used == {MAIN: {GPU: 3}}

    world.advance_to(Millis(10_000))
    assert (2000, TimelineStep.ENDED, "x") in told(world)
    assert (3000, TimelineStep.RELEASED, "new") in told(world)


def test_workloads_running_at_the_start_count_as_served_in_the_order() -> None:
    world = world_of(2)
    world.add_workload(work("x", of="a", released=Millis(-2000), duration=Millis(3000)))
    world.add_workload(work("y", of="b", released=Millis(-1000), duration=Millis(2000)))
    world.add_workload(work("p", of="b", gpus=2))
    world.add_workload(work("q", of="a", gpus=2))
    world.advance_to(Millis(1000))

    assert told(world)[-1] == (1000, TimelineStep.RELEASED, "q")


def test_workload_running_at_the_start_is_refused_without_free_capacity() -> None:
    world = world_of(2)
    with pytest.raises(InvalidInput, match="workload x is to run before the start"):
        world.add_workload(work("x", gpus=3, released=Millis(-1000)))


def test_workload_running_at_the_start_uses_only_allowed_pools() -> None:
    pools = [Pool(PoolName(name), {"kind": name}) for name in ("p", "q", "r")]
    nodes = [node(f"n-{pool.name}", 4, kind=pool.name) for pool in pools]
    picky = replace(tenant("a"), pools=(PoolName("q"), PoolName("r")))
    world = VirtualCluster(ManagedResources([GPU]), nodes, [picky, tenant("b")], pools)
    world.add_workload(work("any", released=Millis(-3000)))
    world.add_workload(work("one", released=Millis(-2000), pools=(PoolName("r"),)))
    world.add_workload(work("free", of="b", released=Millis(-1000)))
    world.advance_to(Millis(0))

    assert [moment.pool for moment in world.timeline] == ["q", "r", "p"]
    assert {pod.pool for pod in world.released_pods.values()} == {"p", "q", "r"}


def test_evicted_workload_waits_again_and_runs_its_whole_duration_again() -> None:
    world = world_of(2, tenants=[tenant("a", guarantee=2), tenant("b")], policy=GUARANTEE)
    world.add_workload(work("borrower", of="b", gpus=2, duration=Millis(1000)))
    world.add_workload(work("owner", of="a", gpus=2, at=400, duration=Millis(300)))
    world.advance_to(Millis(10_000))

    assert told(world) == [
        (0, TimelineStep.SUBMITTED, "borrower"),
        (0, TimelineStep.RELEASED, "borrower"),
        (400, TimelineStep.SUBMITTED, "owner"),
        (400, TimelineStep.EVICTED, "borrower"),
        (400, TimelineStep.RELEASED, "owner"),
        (700, TimelineStep.ENDED, "owner"),
        (700, TimelineStep.RELEASED, "borrower"),
        (1700, TimelineStep.ENDED, "borrower"),
    ]
    evicted = world.timeline[3]
    assert evicted.cause is ReclaimCause.GUARANTEE
    assert evicted.beneficiary is not None
    assert evicted.beneficiary.name == "owner"
    assert world.decisions == 4


def test_a_gang_is_evicted_once_and_whole() -> None:
    world = world_of(4, tenants=[tenant("a", guarantee=1), tenant("b")], policy=GUARANTEE)
    world.add_workload(work("gang", of="b", pods=4))
    world.add_workload(work("owner", of="a", at=1))
    world.advance_to(Millis(10))

    assert [(at, step) for at, step, name in told(world) if name == "gang"] == [
        (0, TimelineStep.SUBMITTED),
        (0, TimelineStep.RELEASED),
        (1, TimelineStep.EVICTED),
    ]
    assert [pod.name for pod in world.released_pods.values()] == ["owner"]
    assert len(list(world.waiting_pods())) == 4


def test_work_in_place_that_is_evicted_waits_like_any_other() -> None:
    world = world_of(1, tenants=[tenant("a", guarantee=1), tenant("b")], policy=GUARANTEE)
    world.add_workload(work("x", of="b", released=Millis(-1000), duration=Millis(5000)))
    world.add_workload(work("owner", of="a", duration=Millis(100)))
    world.advance_to(Millis(6000))

    assert told(world)[-2:] == [(100, TimelineStep.RELEASED, "x"), (5100, TimelineStep.ENDED, "x")]


def test_a_bare_pod_that_is_evicted_is_gone() -> None:
    world = world_of(1, tenants=[tenant("a", guarantee=1), tenant("b")], policy=GUARANTEE)
    pod = Pod(
        uid=Uid("b/bare"),
        namespace="b",
        name="bare",
        user=UserName("b"),
        priority=0,
        created_at=Millis(0),
        demand={GPU: 1},
        gates=("fairgate.io/queue",),
        release_annotation="0",
    )
    world.submit(pod, Millis(0), None)
    world.add_workload(work("owner", of="a", at=5))
    world.advance_to(Millis(5))

    assert [pod.name for pod in world.released_pods.values()] == ["owner"]


def test_engine_gets_a_pass_at_the_time_it_requested() -> None:
    world = world_of(1)
    heard: list[ev.Event] = []
    handle = world.engine.handle

    class Sleeper:
        """Asks twice to be woken at 50, and once in the past."""

        def handle(self, event: ev.Event) -> tuple[object, ...]:
            heard.append(event)
            return (*handle(event), WakeAt(Millis(50)), WakeAt(Millis(0)))

    world.engine = Sleeper()  # type: ignore[assignment]
    world.add_workload(work("w", at=10))
    world.advance_to(Millis(60))

    assert [event.at for event in heard if isinstance(event, ev.Pass)] == [10, 10, 50]


def test_eviction_due_by_time_alone_occurs_in_time() -> None:
    """No event occurs when the borrower has run for its minute."""
    policy = replace(GUARANTEE, min_runtime=Millis(60_000))
    world = world_of(1, tenants=[tenant("a", guarantee=1), tenant("b")], policy=policy)
    world.add_workload(work("borrower", of="b"))
    world.add_workload(work("owner", of="a", at=5_000))
    world.advance_to(Millis(100_000))

    assert told(world)[-2:] == [
        (60_000, TimelineStep.EVICTED, "borrower"),
        (60_000, TimelineStep.RELEASED, "owner"),
    ]


def test_event_count_excludes_passes() -> None:
    world = world_of(2)
    assert world.events == 0
    for name in ("x", "y", "z"):
        world.add_workload(work(name, duration=Millis(10)))
    world.advance_to(Millis(5))

    assert world.events == 3 + 2  # three arrived, two were released
    assert world.decisions == 2
    world.advance_to(Millis(100))
    assert world.events == 9


def test_progress_is_reported_at_every_instant_with_an_event() -> None:
    world = world_of(1)
    world.add_workload(work("x", at=3, duration=Millis(4)))
    times: list[int] = []
    world.advance_to(Millis(100), times.append)

    assert times == [3, 7]


def test_time_of_the_next_event_is_reported() -> None:
    world = world_of(1)
    assert world.next_event_at is None
    world.add_workload(work("x", at=3, duration=Millis(4)))
    assert world.next_event_at == 3
    world.advance_to(Millis(3))
    assert world.next_event_at == 7


def test_work_that_takes_no_time_is_over_at_once() -> None:
    world = world_of(1)
    world.add_workload(work("x", duration=Millis(0)))
    world.add_workload(work("y", duration=Millis(0)))
    world.advance_to(Millis(0))

    assert [(step, name) for _, step, name in told(world)] == [
        (TimelineStep.SUBMITTED, "x"),
        (TimelineStep.SUBMITTED, "y"),
        (TimelineStep.RELEASED, "x"),
        (TimelineStep.ENDED, "x"),
        (TimelineStep.RELEASED, "y"),
        (TimelineStep.ENDED, "y"),
    ]
