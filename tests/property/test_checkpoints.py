"""History and totals survive the loss of every engine, except for the charges of one minute."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from fractions import Fraction

from hypothesis import given, settings
from hypothesis import strategies as st

from app.core import events as ev
from app.core.effects import Release
from app.core.engine import Engine
from app.core.engine_options import EngineOptions
from app.core.fairshare.checkpoint import (
    MAX_STORED_USERS,
    OTHER_TENANTS,
    TenantCheckpoint,
    fit_checkpoints,
)
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
    Uid,
    UserName,
)
from app.core.policy import Policy
from app.core.quantities import PODS, ManagedResources
from app.core.well_known import GATE, RELEASE_HELD
from app.sim.cluster.virtual_cluster import held_pod
from tests.support.depth import cases

GPU = Resource("nvidia.com/gpu")
GPUS = 12
MINUTE = 60_000
HALF_LIFE = 20 * MINUTE
EXACT = 1e-6
KEPT = Policy(history=Fraction(1), half_life=Millis(HALF_LIFE), reserve_after=Millis(10**12))
TENANTS = (
    Tenant(TenantName("a"), Millis(0), namespaces=("a",), quotas={}),
    Tenant(TenantName("b"), Millis(0), Fraction(2), TenantName("a"), namespaces=("b",)),
)
NAMESPACES = ("a", "b", "free")


@dataclass
class Cluster:
    """The real state: pods, and the stored checkpoints."""

    now: int
    pods: dict[Uid, Pod] = field(default_factory=dict)
    kept: dict[TenantName, TenantCheckpoint] = field(default_factory=dict)

    def opening(self, policy: Policy) -> Iterator[ev.NewsEvent]:
        """Return the events that a newly started engine receives."""
        at = Millis(self.now)
        room = {GPU: GPUS, PODS: 1000}
        yield ev.PolicyObserved(at, policy)
        yield ev.NodeObserved(at, Node(NodeName("n"), {}, room, True))
        objects = {tenant.name for tenant in TENANTS}
        for tenant in TENANTS:
            yield ev.TenantObserved(at, tenant, 0, self.kept.get(tenant.name))
        for pod in self.pods.values():
            yield ev.PodObserved(at, pod)
        for source in ev.WatchedSource:
            yield ev.SourceFresh(at, source)
        others = {name: each for name, each in self.kept.items() if name not in objects}
        yield ev.CheckpointsRead(at, others)


class Controller:
    """An engine that receives the events of a cluster, and its releases in order."""

    def __init__(self, cluster: Cluster, policy: Policy) -> None:
        self.cluster = cluster
        self.engine = Engine(ManagedResources([GPU]), EngineOptions(compared_siblings=None))
        self.released: list[Uid] = []
        for event in cluster.opening(policy):
            self.engine.handle(event)
        self.act()

    def lead(self, epoch: int) -> None:
        self.hear(ev.LeadershipGained(Millis(self.cluster.now), epoch))
        self.hear(ev.StoreReady(Millis(self.cluster.now)))

    def hear(self, event: ev.NewsEvent) -> None:
        self.engine.handle(event)
        self.act()

    def act(self) -> None:
        """Run a cycle, and carry out every release as the API server does."""
        at = Millis(self.cluster.now)
        effects = self.engine.handle(ev.Pass(at))
        while orders := [each for each in effects if isinstance(each, Release)]:
            for order in orders:
                uid = order.intent.ref.uid
                pod = replace(
                    self.cluster.pods[uid],
                    gates=(),
                    release_annotation=order.stamp,
                    pool=order.intent.pool,
                    node=NodeName("n"),
                    phase=Phase.RUNNING,
                    started_at=at,
                )
                self.released.append(uid)
                self.cluster.pods[uid] = pod
                self.engine.handle(ev.ReleaseAnswered(at, uid, ReleaseOutcome.RELEASED))
                self.engine.handle(ev.PodObserved(at, pod))
            effects = self.engine.handle(ev.Pass(at))

    def keep(self) -> None:
        """Store every checkpoint."""
        memory = self.engine.checkpoints
        self.cluster.kept = {
            name: memory.make_checkpoint(name) for name in sorted(memory.tenant_names())
        }


class Life:
    """Random workloads under one leader, which writes a checkpoint every minute."""

    def __init__(self, seed: int, policy: Policy) -> None:
        self.random = random.Random(seed)
        self.policy = policy
        self.cluster = Cluster(1_700_000_000_000)
        self.leader = Controller(self.cluster, policy)
        self.leader.lead(1)
        self._kept = self.cluster.now
        self._made = 0

    def go_on(self, seconds: int) -> None:
        """Create and end pods at random for this many seconds."""
        until = self.cluster.now + seconds * 1000
        while self.cluster.now < until:
            step = self.random.randint(1, 20_000)
            due = self._kept + MINUTE
            self.cluster.now = min(self.cluster.now + step, until, due)
            self.leader.act()
            if self.cluster.now == due:
                self._kept = due
                self.leader.keep()
            elif self.random.random() < 0.6:
                self.leader.hear(self.submit())
            elif ended := [uid for uid, pod in self.cluster.pods.items() if not pod.gates]:
                uid = self.random.choice(ended)
                del self.cluster.pods[uid]
                self.leader.hear(ev.PodGone(Millis(self.cluster.now), uid))

    def submit(self) -> ev.PodObserved:
        """Create a pod."""
        self._made += 1
        uid, at = Uid(f"{self._made:06}"), Millis(self.cluster.now)
        user = UserName(self.random.choice("xyz"))
        asks = {GPU: self.random.randint(1, 4), PODS: 1}
        namespace = self.random.choice(NAMESPACES)
        pod = Pod(uid, namespace, f"p{uid}", user, 0, at, asks, (GATE,), RELEASE_HELD)
        self.cluster.pods[uid] = pod
        return ev.PodObserved(at, pod)

    def crash(self, seconds: int) -> tuple[Controller, Controller]:
        """Run without a leader for this long; return the old controller and a new one."""
        self.leader.hear(ev.LeadershipLost(Millis(self.cluster.now)))
        self.cluster.now += seconds * 1000
        self.leader.act()
        return self.leader, Controller(self.cluster, self.policy)


Facts = Mapping[tuple[str, str], float]


def histories(one: Controller) -> Facts:
    """Return the borrowing history of every tenant (user "") and user."""
    return {
        (name, user): kept.history.get(GPU, 0.0)
        for name, each in one.cluster.kept.items()
        for user, kept in {"": each.own, **each.users}.items()
    }


def totals(one: Controller) -> Facts:
    """Return the GPU-seconds of every user."""
    return {
        (name, user): sum(amounts.get(GPU, 0) for amounts in kept.totals.values()) / 1000
        for name, each in one.cluster.kept.items()
        for user, kept in each.users.items()
    }


def knowledge(one: Controller, epoch: int) -> tuple[Facts, Facts]:
    """Return the history and totals of an engine that leads without a store: no releases."""
    one.hear(ev.LeadershipGained(Millis(one.cluster.now), epoch))
    one.keep()
    return histories(one), totals(one)


def furthest(one: Facts, other: Facts) -> float:
    return max((abs(one.get(k, 0) - other.get(k, 0)) for k in {*one, *other}), default=0)


@given(st.integers(0, 10**6), st.integers(1, 900), st.sampled_from([0, 5, 60, 1200, 7200]))
@settings(max_examples=cases(25, 60))
def test_error_after_total_loss_is_at_most_one_minute_of_charges(
    seed: int, before: int, nobody: int
) -> None:
    life = Life(seed, KEPT)
    life.go_on(before)
    seen, anew = life.crash(nobody)
    (true_history, true_totals), (history, spent) = knowledge(seen, 2), knowledge(anew, 2)
    assert furthest(true_history, history) <= 1 - 0.5 ** (MINUTE / HALF_LIFE) + EXACT
    assert furthest(true_totals, spent) <= GPUS * 60
    assert min([*history.values(), *spent.values()], default=0) >= 0


@given(st.integers(0, 10**6), st.integers(1, 10), st.sampled_from([0, 30, 7200]))
@settings(max_examples=cases(25, 60))
def test_usage_without_a_leader_is_charged_exactly(seed: int, minutes: int, nobody: int) -> None:
    """No pod comes or ends between the last checkpoint and the start of the next leader."""
    life = Life(seed, KEPT)
    life.go_on(minutes * 60)
    life.leader.keep()
    seen, anew = life.crash(nobody)
    (true_history, true_totals), (history, spent) = knowledge(seen, 2), knowledge(anew, 2)
    assert furthest(true_history, history) <= EXACT
    assert spent == true_totals


@given(st.integers(0, 10**6), st.integers(1, 900), st.booleans())
@settings(max_examples=cases(25, 60))
def test_releases_after_a_crash_are_the_same_as_without_a_crash(
    seed: int, before: int, remembers: bool
) -> None:
    """The checkpoint is fresh. True with and without history."""
    life = Life(seed, KEPT if remembers else replace(KEPT, history=Fraction(0)))
    life.go_on(before)
    life.leader.keep()
    seen, anew = life.crash(0)
    seen.released.clear()
    news = [life.submit() for _ in range(30)]
    now = Millis(life.cluster.now)
    ends = [ev.PodGone(now, uid) for uid, pod in life.cluster.pods.items() if not pod.gates]
    pods = dict(life.cluster.pods)
    for one in (seen, anew):
        one.cluster = replace(life.cluster, pods=dict(pods))
        for event in news:
            one.engine.handle(event)
        for end in ends:
            one.engine.handle(end)
        one.lead(2)
    assert anew.released == seen.released
    assert seen.released


@given(st.integers(0, 10**6), st.integers(1, 900), st.integers(-3600, 3600))
@settings(max_examples=40)
def test_standby_has_the_fairness_state_of_the_leader_despite_clock_skew(
    seed: int, before: int, skew: int
) -> None:
    """The standby starts late and receives each checkpoint as it is written."""
    life = Life(seed, KEPT)
    life.go_on(before)
    late = replace(life.cluster, now=life.cluster.now + skew * 1000, kept={})
    standby = Controller(late, KEPT)
    life.leader.keep()
    for member in TENANTS:
        checkpoint = life.cluster.kept.get(member.name)
        standby.hear(ev.TenantObserved(Millis(late.now), member, 0, checkpoint))
    true_history, true_totals = histories(life.leader), totals(life.leader)
    history, spent = knowledge(standby, 2)
    for name in [member.name for member in TENANTS]:
        assert furthest(of(true_history, name), of(history, name)) <= EXACT
        assert of(true_totals, name) == of(spent, name)


def of(facts: Facts, name: str) -> Facts:
    return {key: value for key, value in facts.items() if key[0] == name}


def test_replica_ignores_older_checkpoints_that_it_wrote_itself() -> None:
    life = Life(1, KEPT)
    life.go_on(300)
    life.leader.keep()
    old = dict(life.cluster.kept)
    life.go_on(30)
    life.leader.keep()
    before = totals(life.leader)
    for leads in (True, False):
        for member in TENANTS:
            now = Millis(life.cluster.now)
            life.leader.hear(ev.TenantObserved(now, member, 0, old[member.name]))
        if leads:
            life.leader.hear(ev.LeadershipLost(Millis(life.cluster.now)))
    _, after = knowledge(life.leader, 2)
    assert after == before != {}


def test_a_guarantee_in_use_leaves_no_history_behind() -> None:
    life = Life(1, KEPT)
    quota = {DEFAULT_POOL: Quota(guarantee={GPU: GPUS})}
    now = Millis(life.cluster.now)
    life.leader.hear(ev.TenantObserved(now, replace(TENANTS[0], quotas=quota)))
    life.go_on(300)
    life.leader.keep()
    assert histories(life.leader)["a", ""] == 0.0


def test_old_checkpoint_of_an_idle_tenant_charges_no_idle_time() -> None:
    """An idle tenant's checkpoint is old. The tenant starts a pod, and all replicas crash."""
    life = Life(1, KEPT)
    life.go_on(300)
    for uid in list(life.cluster.pods):
        del life.cluster.pods[uid]
        life.leader.hear(ev.PodGone(Millis(life.cluster.now), uid))
    life.leader.keep()
    life.cluster.now += 10 * 24 * 60 * MINUTE
    life.leader.hear(life.submit())
    life.cluster.now += 30_000
    seen, anew = life.crash(600)
    (true_history, true_totals), (history, spent) = knowledge(seen, 2), knowledge(anew, 2)
    assert furthest(true_history, history) <= EXACT
    assert spent == true_totals


def test_totals_stay_equal_after_repeated_takeovers() -> None:
    """More users than stored individually: the others are summed and counted once."""
    cluster = Cluster(1_700_000_000_000)
    leader, standby = Controller(cluster, KEPT), Controller(cluster, KEPT)
    leader.lead(1)
    users = MAX_STORED_USERS + 20
    for number in range(users):
        pod = replace(held_pod(f"p{number}", "a"), user=UserName(f"u{number}"))
        cluster.pods[pod.uid] = pod
        leader.hear(ev.PodObserved(Millis(cluster.now), pod))
        standby.hear(ev.PodObserved(Millis(cluster.now), cluster.pods[pod.uid]))
        cluster.now += MINUTE
        del cluster.pods[pod.uid]
        for one in (leader, standby):
            one.hear(ev.PodGone(Millis(cluster.now), pod.uid))
    for epoch in range(2, 5):
        leader.keep()
        assert summed(cluster.kept[TENANTS[0].name]) == users * MINUTE
        leader.hear(ev.LeadershipLost(Millis(cluster.now)))
        kept = cluster.kept[TENANTS[0].name]
        standby.hear(ev.TenantObserved(Millis(cluster.now), TENANTS[0], 0, kept))
        leader, standby = standby, leader
        cluster.now += 1
        leader.lead(epoch)


def test_tenants_summed_in_a_checkpoint_are_counted_once_after_takeover() -> None:
    cluster = Cluster(1_700_000_000_000)
    leader, standby = Controller(cluster, KEPT), Controller(cluster, KEPT)
    leader.lead(1)
    for number in range(9):
        pod = held_pod(f"p{number}", f"free-{number}")
        cluster.pods[pod.uid] = pod
        leader.hear(ev.PodObserved(Millis(cluster.now), pod))
        standby.hear(ev.PodObserved(Millis(cluster.now), cluster.pods[pod.uid]))
    cluster.now += MINUTE
    leader.act()
    standby.act()
    for epoch in range(2, 5):
        leader.keep()
        cluster.kept = fit_checkpoints(cluster.kept, 1000)
        assert OTHER_TENANTS in cluster.kept
        assert sum(map(summed, cluster.kept.values())) == 9 * MINUTE
        now = Millis(cluster.now)
        leader.hear(ev.LeadershipLost(now))
        standby.hear(ev.CheckpointsRead(now, cluster.kept))
        leader, standby = standby, leader
        leader.lead(epoch)


def summed(checkpoint: TenantCheckpoint) -> int:
    kept = (checkpoint.own, *checkpoint.users.values())
    return sum(amounts.get(GPU, 0) for each in kept for amounts in each.totals.values())
