"""A forecast is exact if run times are known and no new workload arrives."""

from __future__ import annotations

import pickle
from dataclasses import dataclass, replace
from fractions import Fraction
from random import Random

from hypothesis import Phase, given, settings
from hypothesis import strategies as st

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
)
from app.core.policy import Policy
from app.core.quantities import PODS, ManagedResources
from app.sim.cluster.virtual_cluster import VirtualCluster, held_pod
from app.sim.forecast.forward_run import simulate_starts
from tests.support.depth import cases

GPU = Resource("nvidia.com/gpu")
MANAGED = ManagedResources([GPU])
NEVER = Millis(10**12)
"""Reservation timers are state of the leader and not part of a snapshot."""

END = Millis(10_000_000)


@dataclass(frozen=True)
class Known:
    """Returns the exact run time of every workload."""

    lengths: dict[Uid, int]

    def remaining_time(self, pod: Pod, ran: Millis) -> Millis:
        return Millis(self.lengths[pod.uid] - ran)


def drawn(dice: Random) -> tuple[VirtualCluster, dict[Uid, int]]:
    """Return a `VirtualCluster` with submissions during the first 900 s, and all run times.

    Uses a random generator, because strategies prefer small worlds in which workloads never queue.
    """
    sizes = [dice.randint(1, 6) for _ in range(dice.randint(1, 4))]
    nodes = [
        Node(NodeName(f"n{i}"), {"kind": "x" if i % 2 else "y"}, {GPU: n, PODS: 100}, True)
        for i, n in enumerate(sizes)
    ]
    pools = [Pool(PoolName("x"), {"kind": "x"}), Pool(PoolName("y"), {"kind": "y"})]
    quota = {PoolName("y"): Quota({GPU: dice.randint(0, 3)}, {GPU: 5})}
    tenants = [
        Tenant(TenantName("a"), Millis(0), Fraction(2), namespaces=("a",), quotas=quota),
        Tenant(TenantName("b"), Millis(0), parent=TenantName("a"), namespaces=("b",)),
    ]
    policy = Policy(
        history=Fraction(dice.randint(0, 1)),
        reserve_after=NEVER,
        backfill=dice.random() < 0.5,
    )
    world = VirtualCluster(MANAGED, nodes, tenants, dice.choice([pools, []]), policy)
    lengths: dict[Uid, int] = {}
    for number in range(dice.randint(1, 40)):
        namespace, user = dice.choice("abc"), dice.choice(["ann", "bob"])
        gpus, priority, members = dice.randint(1, 4), dice.randint(0, 2), dice.choice([1, 1, 2, 3])
        since, length = Millis(dice.randint(0, 900) * 1000), dice.randint(1, 900) * 1000
        declared = dice.choice([None, Millis(100_000), Millis(2_000_000)])
        for member in range(members):
            pod = held_pod(f"{number}-{member}", namespace, gpus, user=user, priority=priority)
            pod = replace(
                pod,
                created_at=since,
                gang=f"g{number}" if members > 1 else "",
                gang_size=members,
                max_runtime=declared,
            )
            lengths[pod.uid] = length
            world.submit(pod, since, length)
    return world, lengths


seeds = st.integers(0, 2**32)


@given(seeds, st.integers(900, 2000))
@settings(max_examples=cases(60, 150), phases=[Phase.generate])
def test_forecast_with_known_run_times_equals_the_later_starts(seed: int, seconds: int) -> None:
    world, lengths = drawn(Random(seed))
    now = Millis(seconds * 1000)
    world.advance_to(now)
    # A real leader runs cycles all the time, and history changes the order over time.
    world.send_events()
    snapshot = world.engine.queries.snapshot(now)
    foreseen = simulate_starts(
        pickle.loads(pickle.dumps(snapshot)), Known(lengths), END, [p.uid for p in snapshot.held]
    )
    before = len(world.started)
    world.advance_to(END)
    happened = {each.pod.uid: each.at for each in world.started[before:]}
    assert foreseen.starts == happened


@given(seeds, st.integers(900, 2000))
@settings(max_examples=30, phases=[Phase.generate])
def test_forecast_does_not_change_the_engine(seed: int, seconds: int) -> None:
    world, lengths = drawn(Random(seed))
    now = Millis(seconds * 1000)
    world.advance_to(now)
    snapshot = world.engine.queries.snapshot(now)
    before = pickle.dumps(snapshot)
    simulate_starts(snapshot, Known(lengths), END, [pod.uid for pod in snapshot.held])
    assert pickle.dumps(world.engine.queries.snapshot(now)) == before
