"""How long a workload waits for its reservation, and until its reservation is overdue."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from app.core import events as ev
from app.core.model import (
    Millis,
    PoolName,
    Quota,
    Tenant,
    TenantName,
    Uid,
    UnmanagedPod,
    UserName,
)
from app.core.policy import Policy, Reclaim
from app.core.quantities import PODS
from app.core.scheduling.release_window import ReleaseWindow
from app.core.scheduling.reservation import OVERDUE_FACTOR
from app.sim.cluster.virtual_cluster import held_pod
from tests.support.gang_driver import GPU, NODE, Lead

SECOND = 1000
PATIENCE = Policy(reserve_after=Millis(SECOND), reclaim=Reclaim.OFF)


def create_gang(lead: Lead, *numbers: int) -> None:
    """Create pods of a gang of six."""
    pods = [held_pod(f"g{n}", "large", since=lead.at) for n in numbers]
    lead.see(*(replace(pod, gang="g", gang_size=6, owner="job") for pod in pods))


def replace_oldest(lead: Lead, number: int) -> None:
    """Delete the oldest running small pod. The next one may start, and another one waits."""
    lead.gone(f"small/s{number}")
    lead.see(held_pod(f"s{number + 4}", "small", since=lead.at))


def change_unmanaged_pod(lead: Lead, number: int) -> None:
    lead.hear(
        ev.UnmanagedPodObserved(lead.at, UnmanagedPod(Uid(f"u{number}"), NODE, {PODS: 1})),
        ev.PodGone(lead.at, Uid(f"u{number - 1}")),
    )


def change_policy(lead: Lead, number: int) -> None:
    lead.hear(ev.PolicyObserved(lead.at, replace(PATIENCE, max_unbound=50 + number % 2)))


def change_tenant(lead: Lead, number: int) -> None:
    other = Tenant(TenantName("other"), Millis(0), namespaces=(f"other{number}",))
    lead.hear(ev.TenantObserved(lead.at, other))


def replace_first_pod(lead: Lead, number: int) -> None:
    """Delete the first pod of the gang once, long after its reservation. Another one follows."""
    if number == OVERDUE_FACTOR // 2:
        lead.gone("large/g0")
        create_gang(lead, 6)


@pytest.mark.parametrize(
    "change", [change_unmanaged_pod, change_policy, change_tenant, replace_first_pod]
)
def test_changes_of_the_cluster_do_not_delay_an_overdue_reservation(
    change: Callable[[Lead, int], None],
) -> None:
    """A tenant with small pods is first again and again, and refills what the gang waits for."""
    lead = Lead(8, policy=PATIENCE)
    lead.see(*(held_pod(f"s{n}", "small", since=lead.at) for n in range(3)))
    create_gang(lead, *range(6))
    lead.see(held_pod("s3", "small", since=lead.at))
    for number in range(OVERDUE_FACTOR + 1):
        lead.wait(SECOND)
        change(lead, number)
        replace_oldest(lead, number)
    assert "g5" in lead.released


def test_replaced_first_pod_does_not_delay_the_reservation_of_its_gang() -> None:
    lead = Lead(8, policy=replace(PATIENCE, reserve_after=Millis(10 * SECOND)))
    lead.see(*(held_pod(f"s{n}", "small", since=lead.at) for n in range(9)))
    create_gang(lead, *range(6))
    lead.wait(9 * SECOND)
    lead.gone("large/g0")
    create_gang(lead, 6)
    lead.wait(SECOND)
    lead.gone("small/s0")
    assert "s8" not in lead.released


def test_new_gang_of_the_same_name_starts_its_own_timer() -> None:
    lead = Lead(8, policy=replace(PATIENCE, reserve_after=Millis(10 * SECOND)))
    lead.see(*(held_pod(f"s{n}", "small", since=lead.at) for n in range(9)))
    create_gang(lead, *range(6))
    lead.wait(9 * SECOND)
    lead.gone(*(f"large/g{n}" for n in range(6)))
    create_gang(lead, *range(6))
    lead.wait(SECOND)
    lead.gone("small/s0")
    assert "s8" in lead.released


def end_small_pods(lead: Lead, rounds: int) -> None:
    """End the oldest running small pod each round. Its tenant creates another."""
    for _ in range(rounds):
        lead.wait(SECOND)
        oldest = next(uid for uid, pod in lead.pods.items() if "team" in uid and not pod.gates)
        team = lead.pods[oldest].namespace
        lead.gone(oldest)
        lead.see(held_pod(f"s{lead.at}", team, since=lead.at))


def ten_tenants(lead: Lead) -> None:
    """Eight tenants have a small pod that runs, and all ten have more that wait."""
    for number in range(20):
        lead.see(held_pod(f"s{number}", f"team{number % 10}", since=lead.at))


def test_gang_starts_although_small_pods_of_other_tenants_are_always_next() -> None:
    """Each tenant with a small pod has a lower score, at most 1.5 devices, than the gang's 3."""
    lead = Lead(8, policy=PATIENCE)
    ten_tenants(lead)
    create_gang(lead, *range(6))
    end_small_pods(lead, OVERDUE_FACTOR)
    assert "g5" not in lead.released
    end_small_pods(lead, OVERDUE_FACTOR)
    assert "g5" in lead.released


def test_refused_release_does_not_start_the_time_of_a_gang_again() -> None:
    lead = Lead(8, policy=PATIENCE)
    ten_tenants(lead)
    create_gang(lead, *range(6))
    lead.refused = {f"g{number}" for number in range(6)}
    while lead.refused:
        end_small_pods(lead, 1)
    end_small_pods(lead, OVERDUE_FACTOR // 2)
    assert lead.released.count("g5") == 2
    assert not lead.engine._cycle.reservations._owed_times


def test_second_refusal_starts_the_time_of_a_gang_again() -> None:
    lead = Lead(8, policy=PATIENCE)
    ten_tenants(lead)
    create_gang(lead, *range(6))
    for _ in range(2):
        lead.refused = {f"g{number}" for number in range(6)}
        while lead.refused:
            end_small_pods(lead, 1)
    end_small_pods(lead, OVERDUE_FACTOR // 2)
    assert lead.released.count("g5") == 2


def test_gang_stays_behind_other_pods_if_its_user_borrows_more() -> None:
    lead = Lead(8, policy=PATIENCE)
    lead.see(held_pod("first", "large", since=lead.at))
    ten_tenants(lead)
    create_gang(lead, *range(6))
    end_small_pods(lead, 2 * OVERDUE_FACTOR)
    assert "g5" not in lead.released


def test_guaranteed_work_stays_before_a_gang_beyond_its_guarantee() -> None:
    lead = Lead(8, policy=PATIENCE)
    for number in range(10):
        name, quota = f"team{number}", Quota({GPU: 1})
        quotas = {PoolName("default"): quota}
        tenant = Tenant(TenantName(name), Millis(0), namespaces=(name,), quotas=quotas)
        lead.hear(ev.TenantObserved(lead.at, tenant))
    ten_tenants(lead)
    create_gang(lead, *range(6))
    end_small_pods(lead, 2 * OVERDUE_FACTOR)
    assert "g5" not in lead.released


def test_time_without_a_leader_does_not_count() -> None:
    lead = Lead(8, policy=PATIENCE)
    ten_tenants(lead)
    create_gang(lead, *range(6))
    end_small_pods(lead, 3)
    lead.hear(ev.LeadershipLost(lead.at))
    lead.at = Millis(lead.at + 2 * OVERDUE_FACTOR * SECOND)
    lead.hear(ev.LeadershipGained(lead.at, 9), ev.StoreReady(lead.at))
    end_small_pods(lead, 12)
    assert "g5" not in lead.released


def test_sibling_at_its_limit_does_not_keep_a_gang_waiting() -> None:
    """A tenant at its limit borrows less than the user of the gang, but cannot use more."""
    lead = Lead(12, policy=PATIENCE)
    quotas = {PoolName("default"): Quota({}, {GPU: 1})}
    limited = Tenant(TenantName("lim"), Millis(0), namespaces=("lim",), quotas=quotas)
    lead.hear(ev.TenantObserved(lead.at, limited))
    lead.see(*(held_pod(f"l{n}", "lim", since=lead.at) for n in range(2)))
    lead.see(*(held_pod(f"big{n}", "large", since=lead.at) for n in range(2)))
    lead.see(*(held_pod(f"r{n}", "team0", since=lead.at) for n in range(12)))
    create_gang(lead, *range(6))
    for _ in range(2 * OVERDUE_FACTOR):
        lead.wait(SECOND)
    end_small_pods(lead, 6)
    assert "g5" in lead.released


def test_overdue_reservation_of_a_closed_out_user_does_not_delay_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    lead = Lead(8, policy=PATIENCE)
    ten_tenants(lead)
    gang = (replace(held_pod(f"g{n}", "large", since=lead.at), gang="g") for n in range(6))
    lead.see(*(replace(pod, gang_size=6) for pod in gang))
    end_small_pods(lead, OVERDUE_FACTOR + 3)
    assert sum(not pod.gates for pod in lead.pods.values()) < 8  # some devices are kept free
    account = (TenantName("ns.large"), UserName("user"))
    update = ReleaseWindow.update_closed_pools

    def close_out(window: ReleaseWindow) -> None:
        """Close the user out, as for too many unbound pods, which would also raise its usage."""
        update(window)
        lead.engine._usage.closed_pools.users_closed_for_unowned.add(account)
        lead.engine._usage.tree.mark_order_stale()

    monkeypatch.setattr(ReleaseWindow, "update_closed_pools", close_out)
    end_small_pods(lead, 10)
    assert sum(not pod.gates for pod in lead.pods.values()) >= 8
    assert "g5" not in lead.released
