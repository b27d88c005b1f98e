"""Releases pause while the scheduler binds no pods, and scheduling time-outs pause too."""

from __future__ import annotations

from dataclasses import replace

import pytest

from app.core import events as ev
from app.core.effects import EventReason
from app.core.explain.reasons import Rule
from app.core.lifecycle.binding_progress import MOST, PROBE_MS, RECENT_MS, STALL_MS
from app.core.lifecycle.eviction_limit import LEAST
from app.core.model import (
    Millis,
    Node,
    NodeName,
    PoolName,
    Quota,
    SchedulerCondition,
    Tenant,
    TenantName,
    Uid,
)
from app.core.policy import Policy
from app.core.quantities import PODS
from app.core.scheduling.release_window import RECLAIM_MS
from app.sim.cluster.virtual_cluster import held_pod
from tests.support.binding_cluster import GPU, BindingCluster
from tests.support.host_ports import PORTS

TIMEOUT = Policy().scheduling_timeout


def alive(yard: BindingCluster) -> None:
    """Let the scheduler bind a pod, to show that it works."""
    yard.create(1, prefix=f"alive{yard.now}", owner="job")
    yard.bind(yard.unbound("alive"))


def test_releases_stop_at_the_window_while_no_pod_is_bound() -> None:
    yard = BindingCluster()
    yard.create(1000)
    assert yard.released() == 256
    yard.wait(STALL_MS)
    yard.wait(10 * TIMEOUT)
    assert yard.released() == 256
    assert not yard.expelled


def test_window_grows_with_the_number_of_bound_pods() -> None:
    yard = BindingCluster()
    yard.create(1000)
    passes = 0
    while yard.unbound():
        yard.bind(yard.unbound())
        yard.now += 1000
        passes += 1
    assert yard.released() == 1000
    assert passes <= 4


def test_unschedulable_pods_are_not_in_the_window() -> None:
    yard = BindingCluster()
    yard.create(600)
    yard.judge(yard.unbound())
    yard.judge(p for p in yard.unbound() if p.scheduler_condition is None)
    yard.judge(p for p in yard.unbound() if p.scheduler_condition is None)
    assert yard.released() == 600


@pytest.mark.parametrize("owner", ["job", ""])
def test_gang_larger_than_the_window_is_released_if_no_other_pod_is_unbound(
    owner: str,
) -> None:
    yard = BindingCluster()
    first = yard.create(1, prefix="a")
    yard.create(300, prefix="gang", gang="g", gang_size=300, owner=owner)
    assert yard.released("gang") == 0
    yard.bind(yard.pods[pod.uid] for pod in first)
    assert yard.released("gang") == 300


def test_smaller_work_does_not_overtake_a_gang_that_waits_for_the_window() -> None:
    yard = BindingCluster()
    yard.create(10, prefix="first")
    yard.create(300, prefix="gang", gang="g", gang_size=300)
    yard.create(10, prefix="late")
    assert yard.released("late") == 0
    yard.bind(yard.unbound("first"))
    assert yard.released("gang") == 300


def test_a_pool_that_closed_for_a_large_gang_opens_when_the_gang_has_started() -> None:
    """One pod waits in the scheduler for long, for instance for its volume."""
    yard = BindingCluster()
    yard.create(1, prefix="slow", namespace="slow")
    yard.create(300, prefix="gang", gang="g", gang_size=300, namespace="big")
    assert yard.released("gang") == 0
    yard.wait(STALL_MS + 1000)
    assert yard.released("gang") == 300
    yard.bind(yard.unbound("gang"))
    yard.create(50, prefix="late", namespace="third")
    assert yard.released("late") == 50


def test_a_stall_of_one_pool_does_not_stop_another() -> None:
    yard = BindingCluster("a", "b")
    yard.create(300, prefix="a", pools=("a",))
    yard.create(1, prefix="b", pools=("b",))
    for number in range(4):
        yard.wait(STALL_MS // 2)
        yard.create(5, prefix=f"b{number}", pools=("b",))
        yard.bind(yard.unbound("b"))
    assert yard.engine.queries.view().pools[PoolName("a")].stalled_since is not None
    assert yard.engine.queries.view().pools[PoolName("b")].stalled_since is None
    assert yard.released("a") == 256
    assert yard.released("b") == 21


def test_a_stall_below_the_window_stops_releases_until_the_scheduler_is_back() -> None:
    yard = BindingCluster()
    yard.create(10)
    yard.wait(STALL_MS)
    [waiting] = yard.create(1, prefix="late")
    assert yard.released("late") == 0
    why = yard.engine.queries.explain_wait(waiting.uid)
    assert why is not None
    assert why.rule is Rule.BINDING
    assert "has not bound 10 pods released into pool default" in why.text
    yard.bind(yard.unbound()[:1])
    assert yard.released("late") == 1


def test_scheduling_timeout_pauses_and_resumes_with_the_scheduler() -> None:
    yard = BindingCluster()
    [stuck] = yard.create(1, prefix="stuck")
    yard.judge([yard.pods[stuck.uid]])
    yard.wait(100_000)
    alive(yard)
    yard.create(5, prefix="silent")
    yard.wait(STALL_MS)
    yard.wait(10 * TIMEOUT)
    assert not yard.expelled
    yard.bind(yard.unbound("silent"))
    assert not yard.expelled
    yard.wait(TIMEOUT - 100_000 - STALL_MS - 1)
    assert not yard.expelled
    yard.wait(1)
    assert yard.expelled == ["stuck-0000"]


def test_silent_pod_is_never_evicted() -> None:
    yard = BindingCluster()
    yard.create(20)
    for _ in range(10):
        yard.wait(TIMEOUT)
    assert not yard.expelled


def test_an_error_of_the_scheduler_is_no_verdict() -> None:
    yard = BindingCluster()
    yard.create(5)
    yard.judge(yard.unbound(), SchedulerCondition("SchedulerError", "binding rejected"))
    yard.wait(10 * TIMEOUT)
    assert not yard.expelled
    assert yard.engine.queries.view().pools[PoolName("default")].stalled_since is not None


def test_new_leader_starts_no_timeout_before_the_scheduler_binds_a_pod() -> None:
    yard = BindingCluster()
    yard.create(3, prefix="stuck")
    yard.judge(yard.unbound())
    yard.create(3, prefix="silent")
    yard.hear(ev.LeadershipLost(yard.at))
    yard.lead(8)
    yard.wait(10 * TIMEOUT)
    assert not yard.expelled
    yard.bind(yard.unbound("silent"))
    yard.wait(TIMEOUT - 1)
    assert not yard.expelled
    yard.wait(1)
    assert len(yard.expelled) == 3


def test_no_time_runs_while_a_watch_is_silent() -> None:
    yard = BindingCluster()
    yard.create(1)
    yard.judge(yard.unbound())
    yard.hear(ev.SourceStale(yard.at, ev.WatchedSource.NODES))
    yard.wait(10 * TIMEOUT)
    yard.hear(ev.SourceFresh(yard.at, ev.WatchedSource.NODES))
    assert not yard.expelled
    yard.wait(TIMEOUT)
    assert yard.expelled == ["p-0000"]


def test_unowned_pod_is_evicted_only_if_the_policy_enables_it() -> None:
    yard = BindingCluster()
    yard.create(1, owner="")
    yard.judge(yard.unbound())
    yard.wait(10 * TIMEOUT)
    assert not yard.expelled
    [told] = [t for t in yard.told if t.reason is EventReason.WAITING]
    assert "it has no controller" in told.message
    assert "Insufficient" in told.message
    yard.rule(Policy(evict_unowned=True))
    assert yard.expelled == ["p-0000"]


def test_unbound_pods_without_a_controller_keep_only_their_own_user_waiting() -> None:
    yard = BindingCluster()
    yard.create(100, owner="")
    yard.judge(yard.unbound())
    yard.wait(TIMEOUT)
    assert yard.released() == 16
    why = yard.engine.queries.explain_wait(Uid("a/p-0099"))
    assert why is not None
    assert why.rule is Rule.UNOWNED
    assert "16 pods of this user that no controller owns" in why.text
    view = yard.engine.queries.view().pools[PoolName("default")]
    assert dict(view.unowned_usage) == {"ns.a": {GPU: 16}}
    yard.create(20, prefix="owned")
    assert yard.released("owned") == 20
    yard.create(16, prefix="other", owner="", user="other")
    assert yard.released("other") == 16
    yard.bind(yard.unbound("p")[:4])
    assert yard.released("p") == 20


def test_few_pods_of_a_pool_are_evicted_at_once() -> None:
    yard = BindingCluster()
    yard.create(200)
    yard.judge(yard.unbound())
    yard.wait(TIMEOUT)
    yard.wait(TIMEOUT - 1)
    assert len(set(yard.expelled)) == LEAST
    alive(yard)
    yard.wait(2 * TIMEOUT)
    assert len(set(yard.expelled)) == 2 * LEAST


def test_pods_that_may_stay_silent_block_only_their_own_user() -> None:
    yard = BindingCluster()
    yard.create(300, prefix="apart", scheduler_may_be_silent=True)
    assert yard.released("apart") == 256
    yard.wait(STALL_MS)
    yard.create(5, prefix="plain")
    assert yard.released("plain") == 5
    yard.create(1, prefix="other", scheduler_may_be_silent=True, user="other")
    assert yard.released("other") == 1


def test_pod_is_not_evicted_while_its_node_is_not_ready() -> None:
    yard = BindingCluster()
    [pod] = yard.create(1)
    yard.judge(yard.unbound())
    name = NodeName("node-default")
    node = Node(name, {"pool": "default"}, {GPU: 4000, PODS: 4000}, False)
    yard.hear(ev.NodeObserved(yard.at, node))
    yard.wait(10 * TIMEOUT)
    assert not yard.expelled
    yard.hear(ev.NodeObserved(yard.at, replace(node, ready=True)))
    yard.wait(TIMEOUT)
    assert not yard.expelled  # the scheduler has bound no pod since
    yard.judge([yard.pods[pod.uid]], PORTS)
    assert yard.expelled == ["p-0000"]


def test_gang_is_not_evicted_while_binding_is_stalled() -> None:
    half = [
        replace(held_pod(f"g{n}", "a", since=900_000), owner="job", gang="g", gang_size=4)
        for n in range(4)
    ]
    yard = BindingCluster()
    there = [
        replace(pod, gates=(), release_annotation=f"6.{n}", node=NodeName("node-default"))
        for n, pod in enumerate(half[:2], 1)
    ]
    yard.hear(*(ev.PodObserved(yard.at, pod) for pod in there))
    yard.create(1, prefix="silent")
    yard.wait(STALL_MS)
    yard.wait(10 * Policy().gang_timeout)
    assert not yard.expelled
    yard.bind(yard.unbound("silent"))
    yard.wait(Policy().gang_timeout - 1)
    assert not yard.expelled
    yard.wait(1)
    assert sorted(yard.expelled) == ["g0", "g1"]


@pytest.mark.parametrize("evicts", [False, True])
def test_gang_of_unowned_pods_is_evicted_only_if_the_policy_enables_it(evicts: bool) -> None:
    yard = BindingCluster(policy=Policy(evict_unowned=evicts))
    for n in range(2):
        pod = replace(held_pod(f"g{n}", "a", since=900_000), gang="g", gang_size=4)
        pod = replace(pod, gates=(), release_annotation=f"6.{n + 1}", node=NodeName("node-default"))
        yard.hear(ev.PodObserved(yard.at, pod))
    yard.wait(2 * Policy().gang_timeout)
    assert sorted(yard.expelled) == (["g0", "g1"] if evicts else [])


def test_one_silent_pod_does_not_close_its_pool_to_other_users() -> None:
    yard = BindingCluster()
    yard.create(1, prefix="poison")
    yard.wait(10 * STALL_MS)
    yard.create(5, prefix="other", user="other")
    assert yard.released("other") == 1  # to find out whether the scheduler works
    assert yard.engine.queries.view().pools[PoolName("default")].stalled_since is not None
    yard.bind(yard.unbound("other"))
    assert yard.released("other") == 5
    yard.bind(yard.unbound("other"))
    yard.wait(10 * STALL_MS)
    assert yard.engine.queries.view().pools[PoolName("default")].stalled_since is None
    yard.create(5, prefix="later", user="other")
    assert yard.released("later") == 5


def test_a_stalled_pool_takes_a_workload_of_each_user_a_minute_within_the_window() -> None:
    yard = BindingCluster()
    for user in ("one", "two", "three"):
        yard.create(300, prefix=user, user=user, namespace=f"of-{user}")
    assert yard.released("one") == 256
    yard.wait(STALL_MS)
    assert (yard.released("two"), yard.released("three")) == (1, 1)
    yard.wait(PROBE_MS - 1)
    assert yard.released() == 258
    yard.wait(1)
    assert yard.released() == 260
    for _ in range(200):
        yard.wait(PROBE_MS)
    assert yard.released() == 512
    assert not yard.expelled


def test_users_of_one_tenant_fill_only_one_window_of_a_stalled_pool() -> None:
    yard = BindingCluster()
    for user in ("one", "two", "three"):
        yard.create(300, prefix=user, user=user)
    yard.create(300, prefix="gang", user="four", gang="g", gang_size=256)
    for _ in range(20):
        yard.wait(PROBE_MS)
    assert yard.released() == 256
    yard.create(5, prefix="other", namespace="b", user="five")
    assert yard.released("other") == 1
    assert not yard.expelled


def test_user_with_a_silent_pod_gets_a_release_after_a_minute() -> None:
    yard = BindingCluster()
    yard.create(1, prefix="slow")
    yard.wait(STALL_MS)
    yard.create(5, prefix="next")
    assert yard.released("next") == 0
    yard.wait(PROBE_MS - STALL_MS - 1)
    assert yard.released("next") == 0
    yard.wait(1)
    assert yard.released("next") == 1
    yard.bind(yard.unbound("next"))
    assert yard.released("next") == 5


def test_window_full_of_silent_pods_of_one_user_does_not_block_others() -> None:
    yard = BindingCluster()
    yard.create(300, prefix="poison")
    yard.wait(STALL_MS)
    yard.create(20, prefix="other", user="other", namespace="b")
    yard.create(300, prefix="gang", user="third", gang="g", gang_size=300, namespace="c")
    passes = 0
    while yard.unbound("other") or yard.unbound("gang"):
        yard.bind([*yard.unbound("other"), *yard.unbound("gang")])
        yard.wait(100)
        passes += 1
    assert yard.released("other") == 20
    assert yard.released("gang") == 300
    assert yard.released("poison") == 256


def test_scheduling_timeout_pauses_once_a_slow_scheduler_stops_binding() -> None:
    yard = BindingCluster()
    yard.create(10)
    yard.wait(2 * STALL_MS)
    yard.bind(yard.unbound()[:1])
    yard.judge(yard.unbound()[:1])
    yard.wait(10 * TIMEOUT)
    yard.wait(10 * TIMEOUT)
    assert not yard.expelled


def test_pod_that_may_stay_silent_blocks_its_user_for_only_a_minute() -> None:
    yard = BindingCluster()
    yard.create(1, prefix="slow", scheduler_may_be_silent=True)
    yard.wait(STALL_MS)
    yard.create(5, prefix="next", scheduler_may_be_silent=True)
    assert yard.released("next") == 0
    yard.wait(PROBE_MS)
    assert yard.released("next") == 1
    yard.bind(yard.unbound("next"))
    assert yard.released("next") == 5


def test_stalled_pool_evicts_for_only_one_workload_within_ten_minutes() -> None:
    yard = BindingCluster()
    guarantee = {PoolName("default"): Quota(guarantee={GPU: 1000})}
    owed = Tenant(TenantName("owed"), Millis(0), namespaces=("b",), quotas=guarantee)
    yard.hear(ev.TenantObserved(yard.at, owed))
    for number in range(20):
        yard.create(1, prefix=f"taker{number}", gpus=199)
        yard.bind(yard.unbound())
    yard.create(1, prefix="silent", gpus=20)
    yard.wait(STALL_MS)
    waiting = [replace(held_pod(f"owed-{n}", "b", 199, since=yard.now), owner="x") for n in (1, 2)]
    yard.pods |= {pod.uid: pod for pod in waiting}
    yard.hear(*(ev.PodObserved(yard.at, pod) for pod in waiting))
    yard.wait(RECLAIM_MS - STALL_MS - 1)
    assert not yard.reclaimed
    yard.wait(STALL_MS)
    [victim] = yard.reclaimed
    yard.hear(ev.PodGone(yard.at, yard.pods.pop(Uid(f"a/{victim}")).uid))
    assert yard.released("owed") == 1
    yard.wait(RECLAIM_MS - PROBE_MS)
    assert len(yard.reclaimed) == 1
    yard.bind(yard.unbound("owed"))
    assert len(yard.reclaimed) == 2


def test_lanes_of_users_apart_are_forgotten_once_their_pods_are_bound() -> None:
    yard = BindingCluster()
    for number in range(3 * MOST):
        yard.create(1, prefix=f"p{number}", scheduler_may_be_silent=True, user=f"u{number}")
        yard.bind(yard.unbound())
        yard.wait(RECENT_MS)
    binding = yard.engine._registry.binding
    assert len(binding._user_lanes) <= MOST
    assert {
        lane for lanes in binding._user_lanes.values() for lane in lanes
    } <= binding._progress.keys()
