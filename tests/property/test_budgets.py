"""A guarantee is met within a bounded time despite any disruption budgets, if the Policy says so.

Random full clusters in virtual time. Budgets may protect any pods of the borrower. An eviction of a
protected pod is refused unless the order overrides budgets.
"""

from __future__ import annotations

from dataclasses import dataclass
from random import Random

import pytest

from app.core.model import Millis, Node, NodeName, PoolName, Quota, Resource, Tenant, TenantName
from app.core.model import UserName as User
from app.core.policy import DisruptionBudgets, Policy, Reclaim
from app.core.quantities import PODS, ManagedResources
from app.core.scheduling.blocked_evictions import OVERRIDE_DELAY_MS
from app.sim.cluster.virtual_cluster import VirtualCluster
from app.sim.cluster.workload import SimulatedWorkload, TimelineStep
from tests.support.depth import cases

GPU = Resource("nvidia.com/gpu")
POOL = PoolName("default")
OWNER, BORROWER = TenantName("owner"), TenantName("borrower")
CLUSTERS = cases(60, 150)
AT = Millis(10_000)
BOUND_MS = 2 * OVERRIDE_DELAY_MS
"""One budget patience, and the same time again for all reclaims together."""


@dataclass
class Case:
    """A full cluster, and the workloads of the guarantee's owner."""

    world: VirtualCluster
    asked: int
    guaranteed: int


def case(random: Random, budgets: DisruptionBudgets) -> Case:
    capacity = random.randint(4, 32)
    guaranteed = random.randint(1, capacity)
    own = random.randint(0, capacity - guaranteed)
    policy = Policy(
        reclaim=random.choice((Reclaim.GUARANTEE, Reclaim.FAIR)),
        min_runtime=Millis(0),
        disruption_budgets=budgets,
    )
    tenants = [
        Tenant(name, Millis(0), namespaces=(name,), quotas={POOL: Quota({GPU: amount})})
        for name, amount in ((OWNER, guaranteed), (BORROWER, own))
    ]
    node = Node(NodeName("n"), {}, {GPU: capacity, PODS: 1000}, ready=True)
    world = VirtualCluster(ManagedResources([GPU]), [node], tenants, policy=policy)
    for number, gpus, pods in parts(random, capacity):
        kept = random.random() < 0.8
        at = Millis(-1_000 + number)
        world.add_workload(
            work(f"b{number}", BORROWER, gpus, pods, released=at, kept_by_budget=kept)
        )
    asked = 0
    for number, gpus, pods in parts(random, guaranteed):
        at = Millis(AT + random.choice((0, 0, 100, 2_000)))
        world.add_workload(work(f"o{number}", OWNER, gpus, pods, at=at))
        asked += gpus * pods
    return Case(world, asked, guaranteed)


def work(name: str, of: TenantName, gpus: int, pods: int, **more: object) -> SimulatedWorkload:
    fields = {"at": Millis(0), "demand": {GPU: gpus, PODS: 1}, "pods": pods, **more}
    return SimulatedWorkload(name, of, User(of), **fields)  # type: ignore[arg-type]


def parts(random: Random, total: int) -> list[tuple[int, int, int]]:
    """Divide `total` GPUs into workloads; return number, GPUs per pod, and pods of each."""
    found = []
    while total > 0:
        gpus = random.randint(1, min(4, total))
        pods = random.randint(1, total // gpus) if random.random() < 0.3 else 1
        found.append((len(found), gpus, pods))
        total -= gpus * pods
    return found


def used(world: VirtualCluster, tenant: TenantName) -> int:
    return sum(pod.demand[GPU] for pod in world.released_pods.values() if pod.namespace == tenant)


@pytest.mark.parametrize("seed", range(CLUSTERS))
def test_a_guarantee_is_honoured_in_time_over_any_budget(seed: int) -> None:
    found = case(Random(seed), DisruptionBudgets.OVERRIDE)
    found.world.advance_to(Millis(AT + 2_000 + BOUND_MS))
    assert used(found.world, OWNER) == found.asked == found.guaranteed


@pytest.mark.parametrize("seed", range(CLUSTERS))
def test_a_respected_budget_is_never_broken(seed: int) -> None:
    found = case(Random(seed), DisruptionBudgets.RESPECT)
    found.world.advance_to(Millis(AT + 600_000))
    evicted = [each.work for each in found.world.timeline if each.step is TimelineStep.EVICTED]
    assert not any(each.kept_by_budget for each in evicted)
    free = sum(not each.work.kept_by_budget for each in found.world.timeline if each.at < 0)
    assert free >= len({each.name for each in evicted})
