"""A forecast is what then happens, if run times are known and nobody new comes."""

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
from app.core.resources import PODS, ManagedResources
from app.sim.foresight import foresee
from app.sim.world import World, held_pod

GPU = Resource("nvidia.com/gpu")
MANAGED = ManagedResources([GPU])
NEVER = Millis(10**12)
"""The clocks of reservations are the leader's own, and not in a snapshot."""

END = Millis(10_000_000)


@dataclass(frozen=True)
class Known:
    """Knows how long everything runs."""

    lengths: dict[Uid, int]

    def left(self, pod: Pod, ran: Millis) -> Millis:
        return Millis(self.lengths[pod.uid] - ran)


def drawn(dice: Random) -> tuple[World, dict[Uid, int]]:
    """Return a World into which work comes during the first 900 s, and how long all of it runs.

    Dice, not strategies: those prefer small worlds, and there nobody has to wait for a turn.
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
    world = World(MANAGED, nodes, tenants, dice.choice([pools, []]), policy)
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
                since=since,
                gang=f"g{number}" if members > 1 else "",
                gang_size=members,
                max_runtime=declared,
            )
            lengths[pod.uid] = length
            world.submit(pod, since, length)
    return world, lengths


seeds = st.integers(0, 2**32)


@given(seeds, st.integers(900, 2000))
@settings(max_examples=150, phases=[Phase.generate])
def test_a_forecast_with_known_run_times_is_what_then_happens(seed: int, seconds: int) -> None:
    world, lengths = drawn(Random(seed))
    now = Millis(seconds * 1000)
    world.run(now)
    world.hear()  # a live leader looks again all the time, and with history turns change by time
    snapshot = world.engine.outlook.snapshot(now)
    foreseen = foresee(pickle.loads(pickle.dumps(snapshot)), Known(lengths), END)
    before = len(world.started)
    world.run(END)
    happened = {each.pod.uid: each.at for each in world.started[before:]}
    assert foreseen.starts == happened


@given(seeds, st.integers(900, 2000))
@settings(max_examples=30, phases=[Phase.generate])
def test_looking_ahead_changes_nothing(seed: int, seconds: int) -> None:
    world, lengths = drawn(Random(seed))
    now = Millis(seconds * 1000)
    world.run(now)
    before = pickle.dumps(world.engine.outlook.snapshot(now))
    foresee(world.engine.outlook.snapshot(now), Known(lengths), END)
    assert pickle.dumps(world.engine.outlook.snapshot(now)) == before
