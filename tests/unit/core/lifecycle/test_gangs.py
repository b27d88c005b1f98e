"""A gang is released as a whole; if a leader dies in between, the next one completes it first."""

from __future__ import annotations

from dataclasses import replace

import pytest

from app.core import events as ev
from app.core.effects import EventReason
from app.core.explain.reasons import Rule
from app.core.model import (
    DEFAULT_POOL,
    Millis,
    Node,
    NodeName,
    Phase,
    Pod,
    Pool,
    PoolName,
    Quota,
    ReleaseOutcome,
    Tenant,
    TenantName,
    TopologyConstraint,
    Uid,
    UserName,
)
from app.core.quantities import PODS
from app.sim.cluster.virtual_cluster import held_pod
from tests.support.gang_term import EPOCH, GPU, Term


def member(number: int, size: int = 4, release: str = "0", **more: object) -> Pod:
    pod = replace(held_pod(f"g{number}", "a"), **more)  # type: ignore[arg-type]
    return replace(pod, gang="train", gang_size=size, release_annotation=release)


def running(pod: Pod, release: str) -> Pod:
    return replace(pod, gates=(), release_annotation=release, node=NodeName("n0"))


def half(size: int = 4, done: int = 2) -> list[Pod]:
    """Return a gang that a dead leader released in part. Its successor fenced the held pods."""
    old = [running(member(n, size), f"7.{n + 1}") for n in range(done)]
    return old + [member(n, size, release=f"0@{EPOCH}") for n in range(done, size)]


def test_an_incomplete_gang_is_held() -> None:
    term = Term(member(0), member(1), member(2))
    assert term.names() == []
    assert "3 of 4 pods are there" in term.text(member(0))


def test_a_complete_gang_is_released_together() -> None:
    term = Term(*map(member, range(4)))
    assert sorted(term.names()) == ["g0", "g1", "g2", "g3"]
    assert {order.batch_size for order in term.released} == {4}


def test_gang_that_does_not_fit_is_not_released() -> None:
    assert Term(*map(member, range(4)), gpus=3).names() == []


def test_remaining_pods_of_a_half_released_gang_are_released_first() -> None:
    urgent = [held_pod(f"u{n}", "b", priority=1000) for n in range(3)]
    term = Term(*urgent, *half(), gpus=4)
    assert term.names() == ["g2", "g3"]
    assert term.released[0].decision is not None
    assert "remaining pods of a gang" in term.released[0].decision.reason


def test_unreleased_gang_of_a_crashed_leader_waits_in_fair_order() -> None:
    fenced = [member(n, release=f"0@{EPOCH}", created_at=500) for n in range(4)]
    older = [held_pod(f"u{n}", "a", since=0) for n in range(4)]
    term = Term(*fenced, *older, gpus=4)
    assert sorted(term.names()) == ["u0", "u1", "u2", "u3"]


def test_a_replacement_does_not_jump_the_queue() -> None:
    gang = [running(member(n), f"7.{n + 1}") for n in range(3)]
    replacement = member(9, created_at=500)
    older = held_pod("u", "a", since=0)
    term = Term(*gang, replacement, older, gpus=4)
    assert term.names() == ["u"]


def test_a_replacement_that_came_meanwhile_waits_until_the_rest_is_released() -> None:
    gang = half(4, 2)[:3]  # the last pod was deleted
    replacement = member(9, created_at=900)
    term = Term(*gang, replacement, gpus=3)
    assert term.names() == ["g2"]
    term.hear(ev.ReleaseAnswered(Millis(1000), Uid("a/g2"), ReleaseOutcome.RELEASED))
    assert term.names() == ["g2"]
    term.node(4)
    assert term.names() == ["g2", "g9"]


def test_half_released_gang_with_a_deleted_pod_is_completed() -> None:
    gang = half(64, 20)
    del gang[40]
    term = Term(*gang, gpus=64)
    assert len(term.names()) == 43
    for order in term.released:
        term.hear(ev.ReleaseAnswered(Millis(1000), order.intent.ref.uid, ReleaseOutcome.RELEASED))
    term.bind_all(at=1000)
    assert term.hear(ev.PodObserved(Millis(2000), member(99, 64))) == ["g99"]


def test_pod_deleted_during_the_gang_release_does_not_block_its_replacement() -> None:
    term = Term(*map(member, range(4)), gpus=4)
    term.hear(ev.ReleaseAnswered(Millis(1000), Uid("a/g1"), ReleaseOutcome.GONE))
    for n in (0, 2, 3):
        term.hear(ev.ReleaseAnswered(Millis(1000), Uid(f"a/g{n}"), ReleaseOutcome.RELEASED))
    assert term.hear(ev.PodObserved(Millis(2000), member(9))) == ["g9"]


def test_gang_pod_with_a_refused_release_waits_in_fair_order() -> None:
    """A user that may edit a pod can cause a refused release, and fix the pod later."""
    term = Term(*map(member, range(4)), gpus=4)
    for n in (0, 1, 2):
        term.hear(ev.ReleaseAnswered(Millis(1000), Uid(f"a/g{n}"), ReleaseOutcome.RELEASED))
    urgent = [held_pod(f"u{n}", "b", priority=1000) for n in range(2)]
    term.hear(*(ev.PodObserved(Millis(1000), pod) for pod in urgent))
    term.released.clear()
    term.node(3)
    term.hear(ev.ReleaseAnswered(Millis(1000), Uid("a/g3"), ReleaseOutcome.HELD))
    term.node(4)
    assert term.names() == ["u0"]  # other pods are released during its backoff
    term.hear(at=5000)
    term.node(5)
    assert term.names() == ["u0", "u1"]
    term.node(6)
    assert term.names() == ["u0", "u1", "g3"]


def test_remaining_pods_that_do_not_fit_get_a_reservation_and_a_reason() -> None:
    gang = half(4, 2)
    other = running(held_pod("b", "b"), "7.9")
    small = held_pod("u", "b", priority=1000)
    term = Term(*gang, other, small, gpus=4)
    assert term.names() == []  # one device is free and reserved
    assert "2 of gang train run already" in term.text(gang[3])
    why = term.engine.queries.explain_wait(gang[3].uid)
    assert why is not None
    assert why.rule is Rule.CAPACITY
    assert term.hear(ev.PodGone(Millis(2000), other.uid)) == ["g2", "g3"]


def test_reservation_grows_with_the_remaining_pods() -> None:
    rest = [member(number, 5, f"0@{EPOCH}") for number in (2, 3, 4)]
    started = [running(member(number, 5), f"7.{number + 1}") for number in range(2)]
    others = [running(held_pod(f"b{number}", "b"), f"7.{number + 9}") for number in range(3)]
    urgent = [held_pod(f"u{number}", "b", priority=1000) for number in range(3)]
    term = Term(*started, rest[0], *others, *urgent, gpus=5)
    term.hear(*(ev.PodObserved(Millis(1000), pod) for pod in rest[1:]))
    for pod in others:
        term.hear(ev.PodGone(Millis(2000), pod.uid))
    assert term.names() == [pod.name for pod in rest]


def test_remaining_pods_that_can_never_fit_block_no_other_pod() -> None:
    term = Term(*half(4, 2), held_pod("u", "b"), gpus=3)
    assert term.names() == ["u"]


def test_remaining_pods_are_released_to_the_pool_of_the_others() -> None:
    term = Term(*half())
    assert {order.intent.pool for order in term.released} == {"default"}
    assert {order.batch_size for order in term.released} == {2}


def racks() -> Term:
    """Pools a and b with one node each in rack r0. One pod of a confined gang runs in pool a."""
    near = TopologyConstraint("rack", True)
    mate = replace(running(member(0, 2), "7.1"), topology=near, pool=PoolName("a"))
    term = Term(replace(mate, phase=Phase.RUNNING), lead=False)
    for name in ("a", "b"):
        pool = Pool(PoolName(name), {"in": name}, topology=("rack",))
        term.hear(ev.PoolObserved(Millis(1000), pool))
    for name, home in (("n0", "a"), ("n1", "b")):
        labels = {"in": home, "rack": "r0"}
        offer = {GPU: 8, PODS: 110}
        term.hear(ev.NodeObserved(Millis(1000), Node(NodeName(name), labels, offer, True)))
    term.hear(ev.LeadershipGained(Millis(1000), EPOCH))
    term.hear(ev.StoreReady(Millis(1000)))
    return term


def test_replacement_pod_of_a_confined_gang_waits_if_its_pool_is_deleted() -> None:
    term, late = racks(), replace(member(1, 2), topology=TopologyConstraint("rack", True))
    term.hear(ev.PoolGone(Millis(2000), PoolName("a")))
    assert term.hear(ev.PodObserved(Millis(2000), late)) == []
    assert "must stay together, and its other pods are in another pool" in term.text(late)


def test_replacement_pod_of_a_confined_gang_waits_if_its_rack_is_gone() -> None:
    term, late = racks(), replace(member(1, 2), topology=TopologyConstraint("rack", True))
    relabelled = Node(NodeName("n0"), {"in": "a"}, {GPU: 8, PODS: 110}, True)
    term.hear(ev.NodeObserved(Millis(2000), relabelled))
    assert term.hear(ev.PodObserved(Millis(2000), late)) == []
    assert "must stay in one rack, and its other pods are outside this pool" in term.text(late)
    back = replace(relabelled, labels={"in": "a", "rack": "r0"})
    assert term.hear(ev.NodeObserved(Millis(3000), back)) == ["g1"]


@pytest.mark.parametrize("stays", range(4))
def test_a_standby_answers_why_as_the_leader_does(stays: int) -> None:
    """The order is the same on all replicas. Only the leader has reservations."""
    full = running(held_pod("full", "b"), "7.1")
    pods = [*(held_pod(f"p{n}", "ab"[n % 2], since=n) for n in range(4)), *map(member, range(3))]
    leader, standby = Term(full, *pods, gpus=1), Term(full, *pods, gpus=1, lead=False)
    for pod in pods:
        assert standby.engine.queries.explain_wait(pod.uid) == leader.engine.queries.explain_wait(
            pod.uid
        )
    gone = ev.PodGone(Millis(2000), pods[stays].uid)
    leader.hear(gone)
    standby.hear(gone)
    for pod in pods:
        assert standby.engine.queries.explain_wait(pod.uid) == leader.engine.queries.explain_wait(
            pod.uid
        )
    assert standby.engine.queries.view() == leader.engine.queries.view()


def test_incomplete_gang_is_reported_once_to_each_pod() -> None:
    term = Term(gpus=4)
    for n in range(3):
        term.hear(ev.PodObserved(Millis(1000), member(n)))
    assert [tell.reason for tell in term.told] == [EventReason.HELD] * 3


def tenant(limit: int) -> Tenant:
    quotas = {DEFAULT_POOL: Quota(limit={GPU: limit})}
    return Tenant(TenantName("ten"), Millis(0), namespaces=("a",), quotas=quotas)


def test_remaining_pods_over_a_limit_block_no_other_pod() -> None:
    a = running(member(0, 2), "7.1")
    rest = replace(member(1, 2, release="0@8"), demand={GPU: 4})
    others = [held_pod(f"u{n}", "b") for n in range(8)]
    term = Term(a, rest, *others, gpus=8, lead=False)
    term.hear(ev.TenantObserved(Millis(1000), tenant(limit=2)))
    term.hear(ev.LeadershipGained(Millis(1000), EPOCH))
    assert len(term.hear(ev.StoreReady(Millis(1000)))) == 7
    assert "limit" in term.text(rest)


def test_reservation_for_remaining_pods_ends_when_the_released_pods_end() -> None:
    a = running(member(0, 2), "7.1")
    rest = replace(member(1, 2, release="0@8", created_at=100), demand={GPU: 4})
    busy = running(replace(held_pod("busy", "b"), demand={GPU: 4}), "7.9")
    term = Term(a, rest, busy, gpus=8)
    others = [held_pod(f"s{n}", "c", since=2500) for n in range(4)]
    assert term.hear(*(ev.PodObserved(Millis(1500), pod) for pod in others)) == []
    again = replace(
        member(7, 2, created_at=2000), demand={GPU: 6}
    )  # never fits together with the rest
    freed = term.hear(ev.PodGone(Millis(2000), a.uid), ev.PodObserved(Millis(2000), again), at=2000)
    assert freed == ["s0", "s1", "s2", "s3"]


def test_pods_of_another_user_do_not_join_enlarge_or_block_a_gang() -> None:
    gang = [replace(member(n, 2), user=UserName("alice")) for n in range(2)]
    blocks = replace(member(7, 2), user=UserName("eve"), pools=(PoolName("nowhere"),))
    swells = replace(member(8, 9999), user=UserName("eve"))
    assert Term(blocks, *gang, gpus=8).names() == ["g0", "g1"]
    term = Term(swells, *gang, gpus=8)
    assert term.names() == ["g0", "g1"]
    assert "1 of 9999 pods are there" in term.text(swells)


def test_gang_with_conflicting_pools_starts_once_the_pools_are_corrected() -> None:
    term = Term(gpus=0)
    for name in ("x", "y"):
        pool = Pool(PoolName(name), selector={"kind": name})
        node = Node(NodeName(f"n-{name}"), {"kind": name}, {GPU: 8, PODS: 110}, True)
        term.hear(ev.PoolObserved(Millis(1000), pool), ev.NodeObserved(Millis(1000), node))
    first, second = (replace(member(n, 2), pools=(PoolName("xy"[n]),)) for n in range(2))
    assert term.hear(*(ev.PodObserved(Millis(1000), pod) for pod in (first, second))) == []
    mended = replace(second, pools=(PoolName("x"),))
    assert term.hear(ev.PodObserved(Millis(2000), mended), at=2000) == ["g0", "g1"]


def test_refused_members_are_no_tickets_past_the_fair_order() -> None:
    term, refused, pods = Term(gpus=18), [], []
    for n in range(2):
        small = replace(held_pod(f"a{n}", "a"), gang=f"g{n}", gang_size=2)
        large = replace(held_pod(f"b{n}", "a"), gang=f"g{n}", gang_size=2, demand={GPU: 8})
        pods += [small, large]
        refused.append(large.uid)
    term.hear(*(ev.PodObserved(Millis(1000), pod) for pod in pods))
    for order in list(term.released):
        uid = order.intent.ref.uid
        answer = ReleaseOutcome.HELD if uid in refused else ReleaseOutcome.RELEASED
        term.hear(ev.ReleaseAnswered(Millis(1000), uid, answer))
    others = [replace(held_pod(f"o{n}", "b"), demand={GPU: 8}) for n in range(4)]
    term.hear(*(ev.PodObserved(Millis(1100), pod) for pod in others), at=1100)
    for order in list(term.released[4:]):
        term.hear(ev.ReleaseAnswered(Millis(1100), order.intent.ref.uid, ReleaseOutcome.RELEASED))
    term.bind_all(at=1200)
    term.hear(at=200_000)
    # Each tenant now uses half, except for the capacity that the gangs got at once.
    assert term.hear(ev.PodGone(Millis(201_000), others[0].uid), at=201_000) == ["b0"]
    assert term.hear(ev.PodGone(Millis(202_000), others[1].uid), at=202_000) == ["o2"]
