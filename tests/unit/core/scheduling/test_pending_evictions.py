"""Evictions as in a real cluster: slow and not always successful."""

from __future__ import annotations

from dataclasses import replace

import pytest

from app.core import events as ev
from app.core.audit_entry import AuditRecord, EntryType
from app.core.effects import (
    EmitEvent,
    EventReason,
    EvictForReclaim,
    EvictPod,
    ReclaimOnCooldown,
    Release,
)
from app.core.lifecycle.claim_protection import SECURE_MS
from app.core.lifecycle.stale_pods import SURE_MS, StaleReason
from app.core.lifecycle.update_pauses import FEW_PODS
from app.core.model import (
    ClaimRef,
    Millis,
    Node,
    NodeName,
    Phase,
    Pod,
    Quota,
    ReleaseOutcome,
    Tenant,
    TenantName,
    Uid,
)
from app.core.podspec.constraints import DistanceRuleKind, PodDistanceRule
from app.core.podspec.resource_claims import DeviceAsk, DeviceClass, ResourceClaim
from app.core.policy import Mode, Reclaim, WithinQueue
from app.core.quantities import PODS
from app.core.scheduling.blocked_evictions import EXCLUDED_MS
from app.core.scheduling.pending_evictions import STUCK_MS
from app.core.scheduling.reclaim_cooldown import COOLDOWN_MS
from app.core.scheduling.reservation import CLOSED_OUT_MS
from app.core.scheduling.victim_candidates import MAX_TERMINATION_MS
from app.sim.cluster.virtual_cluster import held_pod
from tests.support.eviction_cluster import GPU, NODE, POOL, EvictionCluster, nine


@pytest.fixture
def town() -> EvictionCluster:
    return EvictionCluster()


def test_freed_capacity_stays_reserved_until_the_last_victim_has_ended(
    town: EvictionCluster,
) -> None:
    pods = nine(town)
    town.lead()
    town.submit("a-two", 2)
    town.submit("d-one")
    assert town.evicted() == ["b7", "b8"]
    town.accept(*pods[7:])
    town.end(pods[7])
    assert town.released() == []
    town.end(pods[8])
    assert town.released() == ["a-two"]
    assert town.evicted() == []


def change_claim(town: EvictionCluster, name: str, *devices: int) -> None:
    """Change a claim of tenant a to these amounts, one after another."""
    for count in devices:
        request = (DeviceAsk("gpu.example.com", count),)
        claim = ResourceClaim("a", name, (request,), has_finalizer=True)
        town.hear(ev.ClaimObserved(town.at, claim))


def submit_with_shared_claims(town: EvictionCluster, *claims: str) -> None:
    """Create pods of tenant a that share these claims of 2 devices. Changes cause pauses."""
    town.hear(ev.Installed(town.at, Millis(0)))
    town.hear(ev.ClassObserved(town.at, DeviceClass("gpu.example.com", GPU)))
    for name in claims:
        change_claim(town, name, 2)
    for number in range(2 * FEW_PODS):
        pod = held_pod(f"a{number}", "a", since=town.now)
        charges = {"demand": {PODS: 1}, "container_requests": {PODS: 1}}
        pod = replace(pod, claims=tuple(ClaimRef(name, name) for name in claims), **charges)
        town.hear(ev.PodObserved(town.at, pod))
    town.wait(SECURE_MS)


@pytest.mark.parametrize("backfill", [True, False])
def test_freed_capacity_stays_reserved_while_a_shared_claim_changes(
    town: EvictionCluster, backfill: bool
) -> None:
    town.rule(backfill=backfill)
    pods = nine(town)
    town.lead()
    submit_with_shared_claims(town, "shared")
    assert town.evicted() == ["b7", "b8"]
    town.submit("a-four", 4)
    change_claim(town, "shared", 3, 2, 3, 2)
    town.accept(*pods[7:])
    town.submit("d-two", 2)
    town.end(*pods[7:])
    assert town.released() == []
    town.wait(1000)
    assert town.released()[0] == "a0"


def test_claims_that_change_all_the_time_reserve_freed_capacity_for_a_minute(
    town: EvictionCluster,
) -> None:
    """Two claims that change in turn keep the owner of the reservation from its turn."""
    pods = nine(town)
    town.lead()
    submit_with_shared_claims(town, "x", "y")
    assert town.evicted() == ["b5", "b6", "b7", "b8"]
    town.wait(1000)  # the pauses since the creation end
    change_claim(town, "x", 1, 2, 1)
    town.wait(4 * FEW_PODS)
    change_claim(town, "y", 1, 2, 1)
    town.accept(*pods[5:])
    town.submit("d-one")
    town.end(*pods[5:])
    began, turn = town.now, 0
    while not (released := town.released()):
        assert town.now <= began + CLOSED_OUT_MS
        town.wait(FEW_PODS)
        change_claim(town, "xy"[turn % 2], 2 - turn // 2 % 2)
        turn += 1
    assert released == ["d-one"]
    assert town.now >= began + CLOSED_OUT_MS - FEW_PODS


def test_reclaim_event_is_sent_once_and_names_only_the_other_tenant(
    town: EvictionCluster,
) -> None:
    pods = nine(town)
    town.lead()
    town.submit("a-secret")
    town.take(EmitEvent)
    town.accept(pods[8])
    town.end(pods[8])
    [told] = [t for t in town.take(EmitEvent) if t.reason is EventReason.RECLAIMED]
    assert told.ref.name == "b8"
    assert "work of tenant a in pool default" in told.message
    assert "secret" not in told.message
    assert "tenant b borrows a weighted share of" in told.message
    assert ", tenant a one of 0. It would" in told.message
    [record] = [r for r in town.take(AuditRecord) if r.entry_type is EntryType.RECLAIMED]
    assert record.facts["cause"] == "guarantee"


def test_the_compared_shares_have_the_names_of_the_siblings(town: EvictionCluster) -> None:
    quotas = {POOL: Quota({GPU: 2})}
    above = Tenant(TenantName("top"), Millis(0), quotas=quotas)
    below = Tenant(TenantName("b"), Millis(0), parent=above.name, namespaces=("b",), quotas=quotas)
    town.hear(ev.TenantObserved(town.at, above), ev.TenantObserved(town.at, below))
    pods = nine(town)
    town.lead()
    town.submit("a-one")
    town.accept(pods[8])
    [told] = [t for t in town.take(EmitEvent) if t.reason is EventReason.RECLAIMED]
    assert "Once done, tenant top (above tenant b) borrows a weighted share of" in told.message
    assert ", tenant a one of 0. It would have stayed" in told.message
    assert (
        "within a guarantee of tenant b in that pool, and of each tenant above it" in told.message
    )


def test_eviction_is_not_needed_after_the_waiting_pod_is_deleted(town: EvictionCluster) -> None:
    pods = nine(town)
    town.lead()
    uid = town.submit("a-one")
    assert town.engine.is_eviction_needed(pods[8].uid)
    town.hear(ev.PodGone(town.at, uid))
    assert not town.engine.is_eviction_needed(pods[8].uid)


def test_eviction_is_not_needed_after_the_waiting_pod_fits_without_it(
    town: EvictionCluster,
) -> None:
    pods = nine(town)
    town.lead()
    town.submit("a-one")
    assert town.evicted() == ["b8"]
    town.end(pods[0])
    assert town.released() == ["a-one"]
    assert not town.engine.is_eviction_needed(pods[8].uid)


def test_rest_of_a_gang_is_evicted_after_its_first_pod(town: EvictionCluster) -> None:
    town.run(*(f"b{number}" for number in range(6)), priority=1)
    gang = town.run("b-m0", "b-m1", "b-m2", gang="train", gang_size=3)
    town.lead()
    uid = town.submit("a-one")
    assert town.evicted() == ["b-m0", "b-m1", "b-m2"]
    town.accept(gang[0])
    town.end(gang[0])
    assert town.released() == ["a-one"]
    town.hear(ev.PodGone(town.at, uid))
    assert town.engine.is_eviction_needed(gang[1].uid)
    assert town.engine.is_eviction_needed(gang[2].uid)
    town.end(*gang[1:])
    assert sum(t.reason is EventReason.RECLAIMED for t in town.take(EmitEvent)) == 3


def test_gang_is_excluded_for_a_while_if_one_eviction_is_refused(town: EvictionCluster) -> None:
    town.run(*(f"b{number}" for number in range(6)), preemptible=False)
    gang = town.run("b-m0", "b-m1", "b-m2", gang="train", gang_size=3)
    town.lead()
    town.submit("a-one")
    assert len(town.evicted()) == 3
    town.take(EmitEvent)
    town.hear(ev.EvictionRefused(town.at, gang[1].uid))
    assert not any(town.engine.is_eviction_needed(pod.uid) for pod in gang)
    [told] = town.take(EmitEvent)
    assert (told.ref.name, told.reason) == ("a-one", EventReason.WAITING)
    assert "tenant b" in told.message
    assert "m1" not in told.message
    town.wait(EXCLUDED_MS - 1)
    assert town.evicted() == []
    assert town.alarm == town.now + 1
    town.wait(1)
    assert len(town.evicted()) == 3


def test_another_pod_is_evicted_if_an_eviction_is_refused(town: EvictionCluster) -> None:
    pods = nine(town)
    town.lead()
    town.submit("a-one")
    assert town.evicted() == ["b8"]
    town.hear(ev.EvictionRefused(town.at, pods[8].uid))
    assert town.evicted() == ["b7"]


def test_capacity_of_terminating_pods_is_awaited_and_reserved(town: EvictionCluster) -> None:
    pods = nine(town)
    town.lead()
    town.leave(pods[0], pods[1])
    town.submit("a-two", 2)
    town.submit("d-one")
    assert town.evicted() == []
    town.end(pods[0])
    assert town.released() == []
    town.end(pods[1])
    assert town.released() == ["a-two"]


def test_new_leader_evicts_only_for_capacity_that_is_still_missing(town: EvictionCluster) -> None:
    pods = nine(town)
    town.leave(pods[3])
    town.submit("a-two", 2)
    town.lead()
    assert town.evicted() == ["b8"]


def test_new_leader_evicts_the_rest_of_a_partly_evicted_gang(town: EvictionCluster) -> None:
    gang = town.run("b-m0", "b-m1", gang="train", gang_size=2)
    town.run(*(f"b{number}" for number in range(7)))
    town.leave(gang[0])
    town.submit("a-two", 2)
    town.lead()
    assert town.evicted() == ["b-m1"]


def test_another_pod_is_evicted_if_a_victim_does_not_terminate(town: EvictionCluster) -> None:
    pods = nine(town)
    town.lead()
    town.submit("a-one")
    assert town.evicted() == ["b8"]
    town.accept(pods[8])
    town.wait(STUCK_MS - 1)
    assert town.evicted() == []
    town.wait(1)
    town.wait(MAX_TERMINATION_MS)
    assert town.evicted() == ["b7"]


def reverse(town: EvictionCluster, gpus: int) -> EvictionCluster:
    """a reclaims its guarantee from b and then borrows; b, with guarantee 2, submits `b-back`."""
    town.rule(reclaim=Reclaim.FAIR)
    pods = nine(town)
    town.lead()
    town.submit("a-one")
    town.accept(pods[8])
    town.end(*pods)
    assert town.released() == ["a-one"]
    town.hear(ev.ReleaseAnswered(town.at, Uid("a/a-one"), ReleaseOutcome.RELEASED))
    town.hear(ev.PodGone(town.at, Uid("a/a-one")))
    town.run(*(f"a{number}" for number in range(9)))
    town.take(EvictForReclaim)
    town.submit("b-back", gpus)
    return town


def test_reverse_of_a_reclaim_is_refused_and_reported_once(town: EvictionCluster) -> None:
    reverse(town, 3)
    assert town.evicted() == []
    [found] = town.take(ReclaimOnCooldown)
    assert (found.beneficiary.name, found.tenant, found.pool) == ("b-back", "a", POOL)
    assert any("was evicted there for that tenant" in told.message for told in town.take(EmitEvent))
    town.wait(60_000)
    assert town.take(ReclaimOnCooldown) == []


def test_reclaim_within_a_guarantee_is_not_refused_as_a_reverse(town: EvictionCluster) -> None:
    reverse(town, 2)
    assert town.evicted() == ["a7", "a8"]
    assert town.take(ReclaimOnCooldown) == []


@pytest.mark.parametrize(("gpus", "gone"), [(2, ["d-four"]), (3, [])], ids=["owed", "more"])
def test_pod_on_reclaimed_capacity_is_evicted_for_a_guarantee_only(
    town: EvictionCluster, gpus: int, gone: list[str]
) -> None:
    """d reclaims three devices from b and starts. a uses the rest with non-preemptible pods."""
    town.rule(reclaim=Reclaim.FAIR)
    pods = nine(town)
    town.lead()
    uid = town.submit("d-four", 3)
    leaving = town.evicted()
    town.end(*(pod for pod in pods if pod.name in leaving))
    assert town.released() == ["d-four"]
    town.hear(ev.ReleaseAnswered(town.at, uid, ReleaseOutcome.RELEASED))
    run = replace(
        held_pod("d-four", "d", 3, since=town.now), gates=(), release_annotation="7.1", node=NODE
    )
    town.hear(ev.PodObserved(town.at, replace(run, phase=Phase.RUNNING, started_at=town.at)))
    town.end(*(pod for pod in pods if pod.name not in leaving))
    town.run(*(f"a{number}" for number in range(6)), preemptible=False)
    town.submit("b-back", gpus)
    assert town.evicted() == gone


def test_after_an_hour_it_is_no_reverse_any_more(town: EvictionCluster) -> None:
    reverse(town, 3)
    assert any(key.startswith("Reclaim/") for key in town.notes)
    town.wait(COOLDOWN_MS - 1)
    assert town.evicted() == []
    town.wait(1)
    assert town.evicted() == ["a6", "a7", "a8"]
    assert not any(key.startswith("Reclaim/") for key in town.notes)


def test_next_leader_refuses_the_reverse_of_an_earlier_reclaim(town: EvictionCluster) -> None:
    reverse(town, 3)
    after = EvictionCluster(town.notes, epoch=8, at=town.now)
    after.rule(reclaim=Reclaim.FAIR)
    after.run(*(f"a{number}" for number in range(9)))
    after.submit("b-back", 3)
    after.lead()
    assert after.evicted() == []
    assert len(after.take(ReclaimOnCooldown)) == 1


def test_another_pod_is_evicted_if_eviction_of_an_idle_pod_is_refused(
    town: EvictionCluster,
) -> None:
    pods = nine(town)
    town.lead()
    idle = ev.StalePodFound(town.at, pods[8].uid, StaleReason.IDLE, "it is idle")
    town.hear(idle)
    town.submit("a-one")
    assert town.evicted() == ["b8"]
    town.wait(SURE_MS)
    town.hear(idle)
    assert town.take(EvictPod) == []
    town.hear(ev.EvictionRefused(town.at, pods[8].uid))
    assert town.evicted() == ["b7"]


def test_eviction_of_a_once_spared_pod_ends_with_the_waiting_pod(town: EvictionCluster) -> None:
    pods = nine(town)
    town.lead()
    town.submit("a-two", 2)
    assert town.evicted() == ["b7", "b8"]
    town.end(pods[0])
    town.wait(STUCK_MS)
    town.wait(0)
    assert town.evicted() == ["b8"]
    town.accept(pods[8])
    town.end(pods[8])
    assert town.released() == ["a-two"]
    uid = town.submit("a-one")
    assert town.evicted() == ["b7"]
    town.hear(ev.PodGone(town.at, uid))
    assert not town.engine.is_eviction_needed(pods[7].uid)


@pytest.mark.parametrize(
    ("key", "text"),
    [
        ('Reclaim/["p", "b", "a"]', "soon"),
        ('Reclaim/["p", "b", "a"]', "1" * 5000),
        ("Reclaim/", "1"),
        ("Reclaim/5", "1"),
        ('Reclaim/["x"]', "1"),
        ('Reclaim/[["x"], "b", "a"]', "1"),
        ("Reclaim/" + "[" * 100_000, "1"),
    ],
    ids=["no time", "no number", "no key", "no list", "too short", "no names", "too deep"],
)
def test_a_garbled_note_is_no_cooldown(town: EvictionCluster, key: str, text: str) -> None:
    town.notes = {key: text}
    nine(town)
    town.submit("a-one")
    town.lead()
    assert town.evicted() == ["b8"]


@pytest.mark.parametrize("rules", [{"mode": Mode.OBSERVE}, {"reclaim": Reclaim.OFF}], ids=str)
def test_no_pod_is_evicted_in_mode_observe_or_if_reclaim_is_off(
    town: EvictionCluster, rules: dict[str, object]
) -> None:
    town.rule(**rules)
    nine(town)
    town.lead()
    town.submit("a-one")
    assert town.evicted() == []


@pytest.mark.parametrize("late", [False, True])
def test_reclaim_event_is_also_sent_for_own_pods_of_lower_priority(
    town: EvictionCluster, late: bool
) -> None:
    """The pod may be gone before the leader receives the accepted eviction."""
    town.rule(within_queue=WithinQueue.LOWER_PRIORITY)
    mine = town.run("a0", "a1", "a2", "a3")
    others = town.run(*(f"b{number}" for number in range(5)))
    town.lead()
    high = replace(held_pod("a-x", "a", 4, since=town.now), priority=1)
    town.hear(ev.PodObserved(town.at, high))
    gone = town.evicted()
    assert set(gone) <= {pod.name for pod in (*mine, *others)}
    pods = [pod for pod in (*mine, *others) if pod.name in gone]
    for pod in pods:
        if late:
            town.end(pod)
            town.hear(ev.EvictionAccepted(town.at, pod.uid))
        else:
            town.accept(pod)
            town.end(pod)
    told = sorted(t.ref.name for t in town.take(EmitEvent) if t.reason is EventReason.RECLAIMED)
    assert told == gone


def test_victims_that_depend_on_each_other_are_evicted_even_if_one_is_enough(
    town: EvictionCluster,
) -> None:
    """Guarantees 4 and 2 of 9: b's pod may be evicted for a's only together with a's own pod."""
    town.rule(within_queue=WithinQueue.LOWER_PRIORITY)
    [mine] = town.run("a0", demand={GPU: 3, PODS: 1})
    [others] = town.run("b0", demand={GPU: 6, PODS: 1})
    town.lead()
    high = replace(held_pod("a-x", "a", 4, since=town.now), priority=1)
    town.hear(ev.PodObserved(town.at, high))
    assert town.evicted() == ["a0", "b0"]
    town.accept(others)
    town.end(others)
    assert town.released() == ["a-x"]
    assert town.engine.is_eviction_needed(mine.uid)


def test_eviction_that_was_withdrawn_too_late_is_reported(
    town: EvictionCluster,
) -> None:
    pods = nine(town)
    town.lead()
    uid = town.submit("a-one")
    town.hear(ev.PodGone(town.at, uid))
    town.take(EmitEvent)
    town.accept(pods[8])
    assert [t.reason for t in town.take(EmitEvent)] == [EventReason.RECLAIMED]


def close_user_out(town: EvictionCluster) -> Pod:
    """Free two devices for a user with too many unbound pods of its own. Return one of these."""
    pods = town.run(*(f"b{number}" for number in range(8)))
    town.lead()
    unbound = held_pod("a-unbound", "a", since=town.now)
    town.hear(ev.PodObserved(town.at, unbound))
    [order] = town.take(Release)
    town.hear(ev.ReleaseAnswered(town.at, unbound.uid, ReleaseOutcome.RELEASED))
    unbound = replace(unbound, gates=(), release_annotation=order.stamp)
    town.hear(ev.PodObserved(town.at, unbound))
    town.submit("a-two", 2)
    town.rule(max_unowned_unbound=1)
    town.accept(*pods[6:])
    town.submit("d-one")
    town.end(*pods[6:])
    assert town.released() == []
    return unbound


def test_freed_capacity_is_released_to_others_if_its_user_stays_closed_out(
    town: EvictionCluster,
) -> None:
    close_user_out(town)
    assert town.alarm == town.now + CLOSED_OUT_MS
    town.wait(CLOSED_OUT_MS)
    assert town.released() == ["d-one"]


def test_freed_capacity_stays_reserved_if_its_user_is_closed_out_briefly(
    town: EvictionCluster,
) -> None:
    unbound = close_user_out(town)
    town.wait(CLOSED_OUT_MS - 1)
    town.hear(ev.PodGone(town.at, unbound.uid))
    assert town.released() == ["a-two", "d-one"]


def free_node_for_spread(town: EvictionCluster) -> Pod:
    """Free a device for a pod of a spread. Return another such pod, which waits for a node."""
    rule = PodDistanceRule(DistanceRuleKind.EVEN, "zone", "web")
    for name, zone, devices in ((NODE, "n", 9), (NodeName("m"), "m", 1), (NodeName("k"), "m", 4)):
        room = {GPU: devices, PODS: 110}
        town.hear(ev.NodeObserved(town.at, Node(name, {"zone": zone}, room, True)))
    pods = nine(town)
    [first] = town.run("a-first", distance_rules=(rule,))
    town.hear(ev.PodObserved(town.at, replace(first, node=NodeName("m"))))
    town.lead()
    second = replace(held_pod("a-second", "a", since=town.now), distance_rules=(rule,))
    town.hear(ev.PodObserved(town.at, second))
    assert town.evicted() == ["b8"]
    another = replace(first, uid=Uid("a-third"), name="a-third", release_annotation="5.99")
    unplaced = replace(another, node=None, phase=Phase.PENDING, node_names=(NodeName("m"),))
    town.hear(ev.PodObserved(town.at, unplaced))
    rival = replace(held_pod("d-one", "d", since=town.now), node_names=(NODE,))
    town.hear(ev.PodObserved(town.at, rival))
    town.accept(pods[8])
    town.end(pods[8])
    town.wait(1)
    assert town.released() == []
    return unplaced


def test_freed_capacity_stays_reserved_while_another_pod_of_the_spread_waits_for_a_node(
    town: EvictionCluster,
) -> None:
    unplaced = free_node_for_spread(town)
    town.hear(ev.PodObserved(town.at, replace(unplaced, node=NodeName("k"), phase=Phase.RUNNING)))
    assert town.released() == ["a-second"]


def test_freed_capacity_is_released_to_others_if_the_spread_does_not_allow_its_use(
    town: EvictionCluster,
) -> None:
    free_node_for_spread(town)
    town.wait(CLOSED_OUT_MS)
    assert town.released() == ["d-one"]
