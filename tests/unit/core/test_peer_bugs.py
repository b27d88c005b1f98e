"""Bugs of another project that Fairgate must not have, with a cluster that outlives its leaders."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.core import events as ev
from app.core.effects import Effect, Release
from app.core.engine import Engine
from app.core.model import (
    DEFAULT_POOL,
    Millis,
    Node,
    NodeName,
    Phase,
    Pod,
    Quota,
    ReleaseOutcome,
    Resource,
    Tenant,
    TenantName,
)
from app.core.quantities import PODS, ManagedResources
from app.core.well_known import GATE
from app.sim.cluster.virtual_cluster import held_pod

GPU = Resource("nvidia.com/gpu")
NODE = NodeName("n")
TEAM = TenantName("team")


class House:
    """The real state of a cluster with some GPUs, and a leader that receives events on request."""

    def __init__(self, gpus: int, limit: int | None = None) -> None:
        self.gpus, self.limit = gpus, limit
        self.pods: dict[str, Pod] = {}
        self.orders: list[Release] = []
        self.epoch = 0
        self.now = 0
        self.lead()

    def lead(self) -> None:
        """Start a new leader that receives only the current state."""
        self.epoch += 1
        self.engine = Engine(ManagedResources([GPU]))
        self.orders = []
        node = Node(NODE, {}, {GPU: self.gpus, PODS: 1000}, True)
        self.hear(ev.NodeObserved(self.at, node))
        if self.limit is not None:
            quotas = {DEFAULT_POOL: Quota({}, {GPU: self.limit})}
            tenant = Tenant(TEAM, Millis(0), namespaces=("team",), quotas=quotas)
            self.hear(ev.TenantObserved(self.at, tenant))
        for name in self.pods:
            self.see(name)
        for source in ev.WatchedSource:
            self.hear(ev.SourceFresh(self.at, source))
        self.hear(ev.LeadershipGained(self.at, self.epoch))
        self.hear(ev.StoreReady(self.at))

    @property
    def at(self) -> Millis:
        self.now += 1000
        return Millis(self.now)

    def hear(self, event: ev.Event) -> None:
        effects: tuple[Effect, ...] = self.engine.handle(event)
        effects += self.engine.handle(ev.Pass(event.at))
        self.orders += [each for each in effects if isinstance(each, Release)]

    def create(self, name: str, gpus: int = 1, **more: object) -> None:
        self.pods[name] = replace(held_pod(name, "team", gpus), **more)  # type: ignore[arg-type]
        self.see(name)

    def see(self, name: str) -> None:
        self.hear(ev.PodObserved(self.at, self.pods[name]))

    def change(self, name: str, **how: object) -> None:
        self.pods[name] = replace(self.pods[name], **how)  # type: ignore[arg-type]

    def patch(self, order: Release) -> None:
        """Apply a release in the API server. No leader has received the event yet."""
        name = order.intent.ref.name
        pod = self.pods.get(name)
        if pod is not None and pod.uid == order.intent.ref.uid and pod.gates == (GATE,):
            self.change(name, gates=(), release_annotation=order.stamp, pool=order.intent.pool)

    def release(self) -> list[str]:
        """Apply and confirm all pending releases; return their pods."""
        orders, self.orders = self.orders, []
        for order in orders:
            self.patch(order)
            self.hear(ev.ReleaseAnswered(self.at, order.intent.ref.uid, ReleaseOutcome.RELEASED))
        return [order.intent.ref.name for order in orders]

    @property
    def used(self) -> int:
        """The real usage."""
        open_pods = (p for p in self.pods.values() if not p.gates)
        return sum(p.demand[GPU] for p in open_pods if p.phase is not Phase.FINISHED)

    @property
    def counted(self) -> int:
        """The usage counted by the leader."""
        return self.engine.queries.view().pools[DEFAULT_POOL].used.get(GPU, 0)

    @property
    def pending(self) -> int:
        tenants = self.engine.queries.view().tenants
        return sum(tenants[name].pending for name in tenants if tenants[name].parent is None)


def test_a_restart_does_not_admit_finished_work_again() -> None:
    house = House(gpus=4)
    for number in range(4):
        house.create(f"p{number}")
    assert len(house.release()) == 4
    for name in list(house.pods):
        house.change(name, phase=Phase.FINISHED)
    for _ in range(3):
        house.lead()
        assert house.orders == []
        assert (house.counted, house.pending) == (0, 0)
        assert list(house.engine.store_writes()) == []


def test_pod_that_finished_without_a_leader_is_not_queued() -> None:
    house = House(gpus=1)
    house.create("p")
    house.create("q")
    house.release()
    house.change("p", phase=Phase.FINISHED)
    house.lead()
    assert house.release() == ["q"]


CHURN = st.lists(
    st.tuples(
        st.sampled_from(("create", "patch", "answer", "lose", "see", "finish", "go", "lead")),
        st.integers(0, 9),
        st.integers(1, 3),
    ),
    max_size=120,
)


@given(CHURN)
def test_high_churn_never_over_commits(script: list[tuple[str, int, int]]) -> None:
    """Events are late, answers are lost and leaders change. Usage never exceeds the capacity."""
    house, made, patched = House(gpus=5), 0, []
    for what, which, gpus in script:
        names = sorted(house.pods)
        name = names[which % len(names)] if names else ""
        if what == "create":
            made += 1
            house.create(f"p{made:03}", gpus)
        elif what == "patch" and house.orders:
            order = house.orders.pop(which % len(house.orders))
            house.patch(order)
            patched.append(order)
        elif what == "answer" and patched:
            order = patched.pop(which % len(patched))
            house.hear(ev.ReleaseAnswered(house.at, order.intent.ref.uid, ReleaseOutcome.RELEASED))
        elif what == "lose" and patched:
            patched.pop(which % len(patched))
        elif what == "see" and name:
            house.see(name)
        elif what == "finish" and name and not house.pods[name].gates:
            house.change(name, phase=Phase.FINISHED)
        elif what == "go" and name:
            house.hear(ev.PodGone(house.at, house.pods.pop(name).uid))
        elif what == "lead":
            patched = []
            house.lead()
        assert house.used <= house.gpus
        assert house.counted <= house.gpus


def test_a_loop_of_refused_releases_holds_no_quota() -> None:
    house = House(gpus=4, limit=1)
    house.create("stuck")
    for _ in range(20):
        while not house.orders:
            house.hear(ev.SourceFresh(house.at, ev.WatchedSource.PODS))
        house.orders.clear()
        house.hear(ev.ReleaseAnswered(house.at, house.pods["stuck"].uid, ReleaseOutcome.HELD))
        assert house.counted == 0
    house.create("next")
    assert house.release() == ["next"]
    assert house.counted == 1


def test_usage_is_rebuilt_after_a_restart() -> None:
    house = House(gpus=4)
    for number in range(6):
        house.create(f"p{number}")
    house.release()
    house.lead()
    assert house.orders == []
    assert (house.counted, house.pending) == (4, 2)
    house.hear(ev.PodGone(house.at, house.pods.pop("p0").uid))
    assert house.release() == ["p4"]


@pytest.mark.parametrize(
    "late", [False, True], ids=["in order", "seen before its predecessor went"]
)
def test_a_replacement_is_counted_once(late: bool) -> None:
    house = House(gpus=1)
    house.create("worker-0")
    house.release()
    old = house.pods["worker-0"]
    fresh = replace(held_pod("worker-0", "team"), uid="another")  # type: ignore[arg-type]
    house.pods["worker-0"] = fresh
    if late:
        house.see("worker-0")
        assert (house.orders, house.counted, house.pending) == ([], 1, 1)
    house.hear(ev.PodGone(house.at, old.uid))
    if not late:
        house.see("worker-0")
    assert house.release() == ["worker-0"]
    assert (house.used, house.counted, house.pending) == (1, 1, 0)
    house.lead()
    assert (house.orders, house.counted, house.pending) == ([], 1, 0)


def test_a_pod_with_another_gate_holds_no_quota() -> None:
    house = House(gpus=1, limit=1)
    house.create("gated", gates=(GATE, "example.com/wait"))
    assert (house.orders, house.counted) == ([], 0)
    house.create("free")
    assert house.release() == ["free"]
    house.change("gated", gates=(GATE,))
    house.see("gated")
    assert house.orders == []
    house.hear(ev.PodGone(house.at, house.pods.pop("free").uid))
    assert house.release() == ["gated"]
