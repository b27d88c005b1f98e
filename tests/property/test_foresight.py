"""A forecast is what then happens, if run times are known and nobody new comes."""

from __future__ import annotations

import pickle
from dataclasses import dataclass, replace
from fractions import Fraction

from hypothesis import given, settings
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


works = st.lists(
    st.tuples(
        st.sampled_from("abc"),
        st.sampled_from(["ann", "bob"]),
        st.integers(1, 4),  # devices
        st.integers(0, 2),  # priority
        st.integers(0, 900),  # arrival, in s
        st.integers(1, 900),  # run time, in s
        st.integers(1, 3),  # pods of the gang
        st.sampled_from([None, 100, 2000]),  # declared run time, in s
    ),
    min_size=1,
    max_size=40,
)


@st.composite
def worlds(draw: st.DrawFn) -> tuple[World, dict[Uid, int]]:
    """Return a World into which work comes during the first 900 s, and how long all of it runs."""
    sizes = draw(st.lists(st.integers(1, 6), min_size=1, max_size=4))
    nodes = [
        Node(NodeName(f"n{i}"), {"kind": "x" if i % 2 else "y"}, {GPU: n, PODS: 100}, True)
        for i, n in enumerate(sizes)
    ]
    pools = [Pool(PoolName("x"), {"kind": "x"}), Pool(PoolName("y"), {"kind": "y"})]
    quota = {PoolName("y"): Quota({GPU: draw(st.integers(0, 3))}, {GPU: 5})}
    tenants = [
        Tenant(TenantName("a"), Millis(0), Fraction(2), namespaces=("a",), quotas=quota),
        Tenant(TenantName("b"), Millis(0), parent=TenantName("a"), namespaces=("b",)),
    ]
    policy = Policy(
        history=Fraction(draw(st.integers(0, 1))),
        reserve_after=NEVER,
        backfill=draw(st.booleans()),
    )
    world = World(MANAGED, nodes, tenants, draw(st.sampled_from([pools, []])), policy, evicts=False)
    lengths: dict[Uid, int] = {}
    for number, (team, user, gpus, priority, at, length, pods, declared) in enumerate(draw(works)):
        for member in range(pods):
            pod = held_pod(f"{number}-{member}", team, gpus, user=user, priority=priority)
            pod = replace(
                pod,
                since=Millis(at * 1000),
                gang=f"g{number}" if pods > 1 else "",
                gang_size=pods,
                max_runtime=None if declared is None else Millis(declared * 1000),
            )
            lengths[pod.uid] = length * 1000
            world.submit(pod, pod.since, length * 1000)
    return world, lengths


@given(worlds(), st.integers(900, 2000))
@settings(max_examples=150, deadline=None)
def test_a_forecast_with_known_run_times_is_what_then_happens(
    made: tuple[World, dict[Uid, int]], seconds: int
) -> None:
    world, lengths = made
    now = Millis(seconds * 1000)
    world.run(now)
    snapshot = world.engine.outlook.snapshot(now)
    foreseen = foresee(pickle.loads(pickle.dumps(snapshot)), Known(lengths), END)
    before = len(world.started)
    world.run(END)
    happened = {each.pod.uid: each.at for each in world.started[before:]}
    assert foreseen.starts == happened


@given(worlds(), st.integers(900, 2000))
@settings(max_examples=30, deadline=None)
def test_looking_ahead_changes_nothing(made: tuple[World, dict[Uid, int]], seconds: int) -> None:
    world, lengths = made
    now = Millis(seconds * 1000)
    world.run(now)
    before = pickle.dumps(world.engine.outlook.snapshot(now))
    foresee(world.engine.outlook.snapshot(now), Known(lengths), END)
    assert pickle.dumps(world.engine.outlook.snapshot(now)) == before
