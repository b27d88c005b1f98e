"""A released pod that fits no node is evicted, and identical pods must wait."""

from __future__ import annotations

from dataclasses import replace

import pytest

from app.core import events as ev
from app.core.effects import EmitEvent, EventReason, EvictPod, Release
from app.core.model import Millis, Node, NodeName, Pod, ReleaseOutcome, SchedulerCondition
from app.core.policy import Mode, Policy
from app.core.quantities import PODS
from app.core.retry import FIRST, LONG
from app.core.well_known import RELEASE_ADOPTED
from app.sim.cluster.virtual_cluster import held_pod
from tests.support.bypass_watch import GPU, NODE, Watch, free
from tests.support.host_ports import PORTS

TIMEOUT = 300_000


def start(
    watch: Watch,
    name: str,
    devices: int = 1,
    user: str = "user",
    owner: str = "job",
    said: SchedulerCondition | None = PORTS,
) -> Pod:
    """Release a pod; return it in its released, unbound state."""
    pod = held_pod(name, "a", devices, user=user, since=watch.now)
    pod = replace(pod, owner=owner)
    watch.see(pod)
    [order] = watch.all(Release)
    watch.hear(ev.ReleaseAnswered(watch.at, pod.uid, ReleaseOutcome.RELEASED))
    after = replace(pod, gates=(), release_annotation=order.stamp, scheduler_condition=said)
    watch.see(after)
    return after


def waits(watch: Watch, name: str, devices: int = 1, user: str = "user") -> bool:
    """Create a pod like the others; return whether it is held."""
    watch.see(held_pod(name, "a", devices, user=user, since=watch.now))
    return not watch.all(Release)


def evicted(watch: Watch) -> list[str]:
    return [each.ref.name for each in watch.all(EvictPod)]


def fail(watch: Watch, name: str) -> None:
    """Release a pod that finds no node, and let it be evicted and deleted."""
    pod = start(watch, name)
    watch.wait(TIMEOUT)
    assert evicted(watch) == [name]
    watch.hear(ev.PodGone(watch.at, pod.uid))


def test_unbound_pod_is_evicted_after_the_timeout_with_an_event() -> None:
    watch = Watch()
    pod = start(watch, "p")
    watch.wait(TIMEOUT - 1)
    assert not evicted(watch)
    watch.wait(1)
    assert evicted(watch) == ["p"]
    assert not [
        t for t in watch.all(EmitEvent) if t.reason is EventReason.RECLAIMED
    ]  # it still exists
    watch.hear(ev.PodGone(watch.at, pod.uid))
    [told] = watch.all(EmitEvent)
    assert told.reason is EventReason.RECLAIMED
    assert "300 s" in told.message
    assert "schedulingTimeout" in told.message


def test_it_counts_as_used_until_it_is_gone() -> None:
    watch = Watch()
    pod = start(watch, "p", 8)
    watch.wait(TIMEOUT)
    assert waits(watch, "q", 2, user="another")
    watch.hear(ev.PodGone(watch.at, pod.uid))
    assert [each.intent.ref.name for each in watch.all(Release)] == ["q"]


def test_engine_requests_a_wakeup_at_the_scheduling_timeout() -> None:
    watch = Watch()
    start(watch, "p")
    assert watch.alarm == watch.now + TIMEOUT


def test_pod_bound_in_time_is_not_evicted() -> None:
    watch = Watch()
    pod = start(watch, "p")
    watch.see(replace(pod, node=NODE))
    watch.wait(10 * TIMEOUT)
    assert not evicted(watch)


def test_a_pod_that_leaves_is_not_evicted() -> None:
    watch = Watch()
    pod = start(watch, "p")
    watch.see(replace(pod, terminating=True))
    watch.wait(10 * TIMEOUT)
    assert not evicted(watch)


def test_timeout_of_an_earlier_leaders_pod_starts_once_the_scheduler_works() -> None:
    watch = Watch(free("p", release="6.1", node=None, owner="job", scheduler_condition=PORTS))
    watch.wait(TIMEOUT)
    assert not evicted(watch)  # the scheduler has not yet bound any pod
    start(watch, "q")
    watch.wait(TIMEOUT - 1)
    assert not evicted(watch)
    watch.wait(1)
    assert evicted(watch) == ["p", "q"]


@pytest.mark.parametrize("stamp", [RELEASE_ADOPTED, ""])
def test_pod_that_was_not_released_is_not_evicted(stamp: str) -> None:
    watch = Watch(free("p", release=stamp, node=None, since=0))
    watch.wait(10 * TIMEOUT)
    assert not evicted(watch)


def test_the_like_of_it_waits_and_others_do_not() -> None:
    watch = Watch()
    fail(watch, "p")
    assert not waits(watch, "larger", 2)
    assert not waits(watch, "colleague", 1, user="another")
    assert waits(watch, "again")
    [told] = watch.all(EmitEvent)
    assert "no node took it" in (watch.engine.queries.wait_reason(told.ref.uid) or "")
    watch.wait(TIMEOUT - 1)
    assert not watch.all(Release)
    watch.wait(1)
    assert [each.intent.ref.name for each in watch.all(Release)] == ["again"]


def node(name: str, gpus: int, **labels: str) -> ev.NodeObserved:
    there = Node(NodeName(name), labels, {GPU: gpus, PODS: 110}, True)
    return ev.NodeObserved(Millis(200_000), there)


@pytest.mark.parametrize("cordoned", [False, True])
def test_its_like_need_not_wait_if_its_node_was_lost(cordoned: bool) -> None:
    watch = Watch()
    pod = start(watch, "p")
    if cordoned:
        watch.hear(ev.NodeObserved(watch.at, Node(NODE, {}, {GPU: 8, PODS: 110}, False)))
    else:
        watch.hear(ev.NodeGone(watch.at, NODE))
    watch.hear(node("other", 8))
    watch.wait(TIMEOUT)
    assert evicted(watch) == ["p"]
    watch.hear(ev.PodGone(watch.at, pod.uid))
    [told] = watch.all(EmitEvent)
    assert "was lost" in told.message
    assert not waits(watch, "again")


def test_identical_pod_waits_even_if_the_failed_pod_gained_a_selector() -> None:
    watch = Watch()
    pod = start(watch, "p")
    watch.see(replace(pod, selector={"rack": "none"}))
    watch.wait(TIMEOUT)
    assert evicted(watch) == ["p"]
    watch.hear(ev.PodGone(watch.at, pod.uid))
    assert waits(watch, "again")


def test_pod_pinned_to_one_rack_uses_no_capacity_of_another_rack() -> None:
    watch = Watch()
    watch.hear(ev.NodeGone(watch.at, NODE))
    watch.hear(node("first", 2, rack="r0"))
    pod = start(watch, "p", 2)
    watch.see(replace(pod, selector={"rack": "r0"}))
    watch.hear(node("small", 2, rack="r1"))
    watch.hear(node("large", 4, rack="r1"))
    watch.hear(ev.NodeGone(watch.at, NodeName("first")))
    watch.see(held_pod("q", "b", 2, since=watch.now))
    [order] = watch.all(Release)
    assert order.node == "small"


def test_identical_pod_that_waits_already_must_wait_too() -> None:
    watch = Watch()
    doomed = start(watch, "p", 5)
    assert waits(watch, "q", 5)
    watch.wait(TIMEOUT)
    watch.hear(ev.PodGone(watch.at, doomed.uid))
    assert not watch.all(Release)


def test_the_wait_doubles_each_time_up_to_sixty_four_times() -> None:
    watch = Watch()
    spans = []
    for turn in range(9):
        fail(watch, f"p{turn}")
        before = watch.now
        name = f"q{turn}"
        assert waits(watch, name)
        spans.append((watch.alarm - before) // TIMEOUT)
        watch.hear(ev.PodGone(watch.at, held_pod(name, "a").uid))
        watch.wait(watch.alarm - watch.now)
    assert spans == [1, 2, 4, 8, 16, 32, 64, 64, 64]


def test_those_that_fail_together_count_once() -> None:
    watch = Watch()
    pods = [start(watch, f"p{i}") for i in range(4)]
    watch.wait(TIMEOUT)
    assert len(evicted(watch)) == 4
    for pod in pods:
        watch.hear(ev.PodGone(watch.at, pod.uid))
    assert waits(watch, "again")
    watch.wait(TIMEOUT)
    assert len(watch.all(Release)) == 1


def test_binding_of_one_identical_pod_ends_the_wait_of_all() -> None:
    watch = Watch()
    stubborn = start(watch, "p")
    watch.now += 10_000
    lucky = start(watch, "q")
    watch.wait(TIMEOUT - 10_000)
    assert evicted(watch) == ["p"]
    watch.hear(ev.PodGone(watch.at, stubborn.uid))
    assert waits(watch, "again")
    watch.see(replace(lucky, node=NODE))
    assert [each.intent.ref.name for each in watch.all(Release)] == ["again"]


def test_backoff_is_reset_after_a_long_time_without_identical_pods() -> None:
    watch = Watch()
    fail(watch, "p")
    watch.wait(TIMEOUT)
    assert watch.alarm == watch.now + LONG
    watch.wait(LONG)
    fail(watch, "q")
    assert waits(watch, "again")
    watch.wait(TIMEOUT)  # not twice as long
    assert len(watch.all(Release)) == 1


def test_short_pause_of_the_controller_does_not_reset_the_backoff() -> None:
    watch = Watch()
    fail(watch, "p")
    watch.wait(TIMEOUT + LONG - 1)
    fail(watch, "q")
    assert waits(watch, "again")
    watch.wait(TIMEOUT)
    assert not watch.all(Release)


def test_a_kind_is_not_forgotten_while_it_waits() -> None:
    watch = Watch()
    fail(watch, "p")
    full = free("full", release="6.1", demand={**held_pod("x", "a", 8).demand})
    watch.see(full)
    assert waits(watch, "q")
    watch.wait(TIMEOUT)
    for _ in range(3):
        watch.wait(LONG)
    watch.hear(ev.PodGone(watch.at, full.uid))
    [order] = watch.all(Release)
    pod = replace(
        held_pod("q", "a", since=200_000 + TIMEOUT), gates=(), release_annotation=order.stamp
    )
    watch.hear(ev.ReleaseAnswered(watch.at, pod.uid, ReleaseOutcome.RELEASED))
    pod = replace(pod, owner="job", scheduler_condition=PORTS)
    watch.see(pod)
    watch.wait(TIMEOUT)
    assert evicted(watch) == ["q"]
    watch.hear(ev.PodGone(watch.at, pod.uid))
    assert waits(watch, "again")
    watch.wait(TIMEOUT)
    assert not watch.all(Release)  # it is the second time
    watch.wait(TIMEOUT)
    assert watch.all(Release)


def test_refused_eviction_is_retried() -> None:
    watch = Watch()
    pod = start(watch, "p")
    watch.wait(TIMEOUT)
    watch.hear(ev.EvictionRefused(watch.at, pod.uid))
    watch.wait(FIRST)
    assert evicted(watch) == ["p"]
    watch.see(replace(pod, node=NODE))  # a node accepted it after all
    watch.wait(10 * FIRST)
    assert not evicted(watch)


def test_pod_deleted_after_a_refused_eviction_gets_no_event() -> None:
    watch = Watch()
    pod = start(watch, "p")
    watch.wait(TIMEOUT)
    watch.hear(ev.EvictionRefused(watch.at, pod.uid))
    watch.hear(ev.PodGone(watch.at, pod.uid))
    assert not watch.all(EmitEvent)


@pytest.mark.parametrize(
    "policy", [Policy(scheduling_timeout=Millis(0)), Policy(mode=Mode.OBSERVE)]
)
def test_the_policy_turns_it_off(policy: Policy) -> None:
    watch = Watch()
    fail(watch, "p")
    assert waits(watch, "q")
    watch.hear(ev.PolicyObserved(watch.at, policy))
    assert [each.intent.ref.name for each in watch.all(Release)] == ["q"]
    watch.wait(100 * TIMEOUT)
    assert not evicted(watch)


def test_a_shorter_time_holds_for_those_released_before() -> None:
    watch = Watch()
    start(watch, "p")
    watch.now += 10_000
    watch.hear(ev.PolicyObserved(watch.at, Policy(scheduling_timeout=Millis(10_000))))
    assert evicted(watch) == ["p"]
