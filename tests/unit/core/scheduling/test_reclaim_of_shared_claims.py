"""Reclaim of pods that share a ResourceClaim: it is free once all its users have ended."""

from __future__ import annotations

from dataclasses import replace

import pytest

from app.core import events as ev
from app.core.effects import GiveReclaimNotice
from app.core.lifecycle.claim_joins import LEFTOVER_MS
from app.core.lifecycle.claim_protection import SECURE_MS
from app.core.model import ClaimRef, Millis, Pod, ReclaimTerms, Uid, UserName
from app.core.podspec.resource_claims import (
    AllocatedDevice,
    DeviceAsk,
    DeviceClass,
    DeviceId,
    ResourceClaim,
)
from app.core.policy import WithinQueue
from app.core.quantities import PODS
from app.sim.cluster.virtual_cluster import held_pod
from tests.support.device_slices import allocated, published
from tests.support.device_slices import gpus as device_gpus
from tests.support.eviction_cluster import GPU, EvictionCluster

NOTICE = 60_000


@pytest.fixture
def town() -> EvictionCluster:
    """Return a cluster where tenant b may share claims of 6, 1 and 1 devices."""
    found = EvictionCluster()
    found.hear(
        ev.Installed(found.at, found.at), ev.ClassObserved(found.at, DeviceClass("gpu", GPU))
    )
    for name, count in (("c", 6), ("d", 1), ("e", 1)):
        claim = ResourceClaim(
            "b", name, ((DeviceAsk("gpu", count),),), uid=Uid(name), has_finalizer=True
        )
        found.hear(ev.ClaimObserved(found.at, claim))
    return found


def claiming(*names: str, own: int = 0, **more: object) -> dict[str, object]:
    plain = {PODS: 1, GPU: own} if own else {PODS: 1}
    refs = tuple(ClaimRef(name, name) for name in names)
    return {"demand": plain, "container_requests": plain, "claims": refs, **more}


def submit_claiming(town: EvictionCluster, name: str, *claims: str) -> Pod:
    pod = replace(held_pod(name, name[0], since=town.now), **claiming(*claims))  # type: ignore[arg-type]
    town.hear(ev.PodObserved(town.at, pod))
    town.wait(SECURE_MS)
    town.wait(SECURE_MS)
    return pod


def test_all_pods_that_share_a_claim_are_evicted_together(town: EvictionCluster) -> None:
    town.run("b0", "b1", "b2", **claiming("c"))
    town.run("b3", "b4", "b5")
    town.lead()
    town.submit("a-four", 4)
    assert town.evicted() == ["b0", "b1", "b2"]


def test_pods_that_share_claims_in_a_chain_are_evicted_together(town: EvictionCluster) -> None:
    town.run("b0", **claiming("d"))
    town.run("b1", **claiming("d", "c"))
    town.run("b2", **claiming("c", "e"))
    town.run("b3", **claiming("e", gang="x", gang_size=2))
    town.run("b4", gang="x", gang_size=2)
    town.lead()
    town.submit("a-four", 4)
    assert town.evicted() == ["b0", "b1", "b2", "b3", "b4"]


def test_pods_of_two_users_that_share_a_claim_are_evicted_once(town: EvictionCluster) -> None:
    town.run("b0", **claiming("c", user=UserName("u")))
    town.run("b1", **claiming("c", user=UserName("v")))
    town.run("b2", "b3", "b4")
    town.lead()
    town.submit("a-four", 4)
    assert town.evicted() == ["b0", "b1"]


def test_claim_of_a_pod_that_is_not_preemptible_is_not_expected_to_be_freed(
    town: EvictionCluster,
) -> None:
    town.run("b0", **claiming("c"))
    town.run("b1", **claiming("c", preemptible=False))
    town.run("b2", "b3", "b4")
    town.lead()
    town.submit("a-four", 4)
    assert town.evicted() == []


def test_own_devices_are_reclaimed_although_a_shared_claim_stays(town: EvictionCluster) -> None:
    town.run("b0", **claiming("d", preemptible=False))
    town.run("b1", "b2", **claiming("d", own=4))
    town.lead()
    town.submit("a-four", 4)
    assert town.evicted() == ["b2"]


def test_a_terminating_pod_leaves_its_claim_to_the_others(town: EvictionCluster) -> None:
    pods = town.run("b0", "b1", **claiming("c"))
    town.run("b2", "b3", "b4")
    town.leave(pods[0])
    town.lead()
    town.submit("a-four", 4)
    assert "b1" in town.evicted()


def test_pods_that_share_a_claim_are_evicted_together_after_a_notice(
    town: EvictionCluster,
) -> None:
    terms = ReclaimTerms(notice=Millis(NOTICE))
    pods = town.run("b0", **claiming("c", reclaim_terms=terms)) + town.run("b1", **claiming("c"))
    town.run("b2", "b3", "b4")
    town.lead()
    town.submit("a-four", 4)
    assert town.evicted() == []
    assert town.write_notices({pod.name: pod for pod in pods}) == ["b0"]
    town.wait(NOTICE)
    assert town.evicted() == ["b0", "b1"]


@pytest.mark.parametrize("reclaims", [True, False])
def test_no_pod_joins_a_claim_while_its_users_are_evicted(
    town: EvictionCluster, reclaims: bool
) -> None:
    pods = town.run("b0", "b1", **claiming("c"))
    town.run("b2", "b3", "b4")
    town.lead()
    if not reclaims:
        submit_claiming(town, "b-new", "c")
        assert town.released() == ["b-new"]
        return
    town.submit("a-four", 4)
    assert town.evicted() == ["b0", "b1"]
    submit_claiming(town, "b-new", "c")
    assert town.released() == []
    town.accept(*pods)
    town.wait(1000)
    assert town.released() == []
    town.end(*pods)
    town.wait(1000)
    assert town.released() == ["a-four"]


def test_pods_join_a_claim_again_after_a_refused_eviction(town: EvictionCluster) -> None:
    town.run("b0", "b1", **claiming("c"))
    town.run("b2", "b3", "b4")
    town.lead()
    town.submit("a-four", 4)
    assert town.evicted() == ["b0", "b1"]
    submit_claiming(town, "b-new", "c")
    assert town.released() == []
    town.hear(ev.EvictionRefused(town.at, Uid("b/b0")))
    town.wait(1000)
    assert town.released() == ["b-new"]


def test_a_reclaim_waits_until_the_claim_of_its_victim_is_free(town: EvictionCluster) -> None:
    town.hear(ev.SliceObserved(town.at, published("n", *device_gpus(9))))
    held = replace(
        allocated("x", "n", *(f"gpu-{i}" for i in range(6)), namespace="b"),
        requests=((DeviceAsk("gpu", 6, "r"),),),
        has_finalizer=True,
    )
    town.hear(ev.ClaimObserved(town.at, held))
    town.run("b2", "b3", "b4", priority=1)
    [pod] = town.run("b0", **claiming("x"))
    town.lead()
    town.submit("a-three", 3)
    assert town.evicted() == ["b0"]
    town.accept(pod)
    town.end(pod)
    town.wait(1000)
    town.wait(1000)
    assert town.evicted() == []
    town.hear(ev.ClaimObserved(town.at, replace(held, allocated_devices=None)))
    assert town.released() == ["a-three"]


def test_a_reclaim_does_not_wait_for_a_claim_that_stays_allocated(town: EvictionCluster) -> None:
    town.hear(ev.SliceObserved(town.at, published("n", *device_gpus(9))))
    held = replace(
        allocated("x", "n", *(f"gpu-{i}" for i in range(6)), namespace="b"),
        requests=((DeviceAsk("gpu", 6, "r"),),),
        has_finalizer=True,
    )
    town.hear(ev.ClaimObserved(town.at, held))
    town.run("b2", "b3", "b4", priority=1)
    [pod] = town.run("b0", **claiming("x"))
    town.lead()
    town.submit("a-three", 3)
    assert town.evicted() == ["b0"]
    town.accept(pod)
    town.end(pod)
    town.wait(LEFTOVER_MS)
    town.wait(1000)
    assert town.evicted() == ["b2", "b3", "b4"]


def test_a_pod_does_not_reclaim_for_its_priority_from_users_of_its_claim(
    town: EvictionCluster,
) -> None:
    town.rule(within_queue=WithinQueue.LOWER_PRIORITY)
    terms = ReclaimTerms(notice=Millis(NOTICE))
    town.run("b0", **claiming("c", reclaim_terms=terms))
    town.run("b1", "b2", "b3")
    town.lead()
    high = replace(
        held_pod("b-x", "b", since=town.now),
        priority=1,
        **claiming("c", own=4),  # type: ignore[arg-type]
    )
    town.hear(ev.PodObserved(town.at, high))
    for _ in range(8):
        town.wait(SECURE_MS)
    assert town.take(GiveReclaimNotice) == []


def test_an_unshared_claim_is_reclaimed_although_a_shared_claim_stays(
    town: EvictionCluster,
) -> None:
    town.run("b0", **claiming("c", "d"))
    town.run("b1", **claiming("d", preemptible=False))
    town.run("b2", "b3")
    town.lead()
    town.submit("a-four", 4)
    assert town.evicted() == ["b0"]


@pytest.mark.parametrize("others", [("b2",), ()])
def test_a_shared_claim_for_other_devices_protects_no_gpu(
    town: EvictionCluster, others: tuple[str, ...]
) -> None:
    """The first alternative of the claim, a network card, was allocated."""
    asks = (DeviceAsk("nic", 1, "r/nic"), DeviceAsk("gpu", 1, "r/gpu"))
    card = AllocatedDevice("r/nic", DeviceId("nic.example", "n1", "nic-0"))
    claim = ResourceClaim(
        "b", "n", (asks,), uid=Uid("n"), has_finalizer=True, allocated_devices=(card,)
    )
    town.hear(ev.ClassObserved(town.at, DeviceClass("nic")), ev.ClaimObserved(town.at, claim))
    town.run("b0", "b1", **claiming("n", own=4))
    town.run(*others, **claiming("n"))
    town.lead()
    town.submit("a-four", 4)
    assert town.evicted() == ["b1"]


def test_only_the_claims_of_pods_that_stay_are_kept(town: EvictionCluster) -> None:
    town.run("b0", **claiming("d", preemptible=False))
    town.run("b1", **claiming("d", "c"))
    town.run("b2", **claiming("c"))
    town.run("b3")
    town.lead()
    town.submit("a-four", 4)
    assert town.evicted() == ["b1", "b2"]


def test_claims_of_a_gang_are_freed_although_one_of_its_claims_is_kept(
    town: EvictionCluster,
) -> None:
    gang = {"gang": "g", "gang_size": 4}
    town.run("b0", **claiming("d", preemptible=False))
    town.run("b1", **claiming("d", "e", **gang))
    town.run("b2", **claiming("e", **gang))
    town.run("b3", "b4", **claiming("c", **gang))
    town.lead()
    town.submit("a-four", 4)
    assert town.evicted() == ["b1", "b2", "b3", "b4"]
