"""Usage records are exact to the millisecond, for any leader changes and crashes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.core import events as ev
from app.core.effects import Charge, Dequeue, Effect, Enqueue, Intend, Refund, Release, StoreWrite
from app.core.engine import Engine
from app.core.engine_options import EngineOptions
from app.core.fairshare.usage_record import UsageEnded, UsageRecord, UsageStarted
from app.core.model import (
    Millis,
    Node,
    NodeName,
    Phase,
    Pod,
    ReleaseOutcome,
    Resource,
    Tenant,
    TenantName,
    Uid,
)
from app.core.quantities import PODS, ManagedResources
from app.core.usage.usage_sums import GroupBy, UsageAggregator
from app.core.well_known import GATE
from app.sim.cluster.virtual_cluster import held_pod
from tests.fakes.fake_store import Contents
from tests.fakes.fake_usage_records import Runs
from tests.support.depth import cases

GPU = Resource("nvidia.com/gpu")
NODES = ("n0", "n1")
SPACES = ("a", "b", "c")
TEAMS = ("t0", "t1")
KINDS = (
    ["create"] * 5 + ["patch"] * 5 + ["answer"] * 4 + ["bind"] * 4 + ["finish", "delete"] * 2
    + ["write"] * 5 + ["move", "rebuild", "crash", "crash"]
)  # fmt: skip

steps = st.lists(
    st.tuples(st.sampled_from(KINDS), st.integers(0, 10**6), st.integers(0, 5000)),
    min_size=30,
    max_size=100,
)


@dataclass
class Truth:
    """The true usage of one pod, divided where it was bound or its tenant changed."""

    pod: Pod
    cuts: list[tuple[int, str, str]] = field(default_factory=list)
    """Start time, tenant and node of each part."""
    end: int | None = None


class Cluster:
    """Two replicas, Redis, and pods. Both replicas receive each event at once."""

    def __init__(self) -> None:
        self.now = 1_000_000
        self.pods: dict[Uid, Pod] = {}
        self.truth: dict[Uid, Truth] = {}
        self.teams = dict.fromkeys(SPACES, "t0")
        self.contents, self.runs = Contents(), Runs()
        self.count, self.epoch = 0, 0
        self.orders: list[Release] = []
        self.answers: list[Uid] = []
        self.unwritten: list[StoreWrite] = []
        self.told: list[UsageStarted | UsageEnded] = []
        self.leader, self.standby = self.start(), self.start()
        self.elect()

    def start(self) -> Engine:
        engine = Engine(ManagedResources([GPU]), EngineOptions(emits_audit_records=False))
        at = Millis(self.now)
        for name in NODES:
            engine.handle(ev.NodeObserved(at, Node(NodeName(name), {}, {GPU: 8, PODS: 99}, True)))
        for name in TEAMS:
            engine.handle(ev.TenantObserved(at, self.tenant(name)))
        for pod in self.pods.values():
            engine.handle(ev.PodObserved(at, pod))
        for source in ev.WatchedSource:
            engine.handle(ev.SourceFresh(at, source))
        engine.handle(ev.Pass(at))
        return engine

    def tenant(self, name: str) -> Tenant:
        spaces = tuple(space for space, team in self.teams.items() if team == name)
        return Tenant(TenantName(name), Millis(0), namespaces=spaces)

    def elect(self) -> None:
        """Start a new leader with the state in Redis and its own observations."""
        self.epoch += 1
        self.orders, self.answers, self.unwritten, self.told = [], [], [], []
        gained = ev.LeadershipGained(
            Millis(self.now), self.epoch, {}, self.contents.intents(), (), self.runs.running()
        )
        self.play(self.leader.handle(gained))
        self.rebuild()
        self.play(self.leader.handle(ev.StoreReady(Millis(self.now))))
        self.play(self.leader.handle(ev.Pass(Millis(self.now))))

    def rebuild(self) -> None:
        """Rebuild Redis. Usage records that were already written may be written again."""
        self.contents, self.unwritten = Contents(), []
        for write in [*self.told, *self.leader.store_writes()]:
            self.keep(write)

    def keep(self, write: StoreWrite) -> None:
        self.contents.apply(write)
        self.runs.apply(write)

    def hear(self, event: ev.NewsEvent) -> None:
        for engine in (self.leader, self.standby):
            effects = engine.handle(event) + engine.handle(ev.Pass(event.at))
            if engine is self.leader:
                self.play(effects)

    def play(self, effects: Iterable[Effect]) -> None:
        for effect in effects:
            match effect:
                case Release():
                    self.orders.append(effect)
                    self.unwritten.append(effect.intent)
                case UsageStarted() | UsageEnded():
                    self.told.append(effect)
                    self.unwritten.append(effect)
                case Enqueue() | Dequeue() | Charge() | Refund():
                    self.unwritten.append(effect)
                case _:
                    pass

    def step(self, what: str, which: int, pause: int) -> None:
        self.now += pause
        at, using = Millis(self.now), [t for t in self.truth.values() if t.end is None]
        match what:
            case "create":
                self.count += 1
                space = SPACES[which % len(SPACES)]
                self.see(held_pod(f"p{self.count}", space, 1 + which % 3, user=f"u{which % 2}"))
            case "patch" if self.orders:
                self.patch(self.orders.pop(which % len(self.orders)))
            case "answer" if self.answers:
                uid = self.answers.pop(which % len(self.answers))
                event = ev.ReleaseAnswered(at, uid, ReleaseOutcome.RELEASED)
                self.play(self.leader.handle(event) + self.leader.handle(ev.Pass(at)))
            case "bind":
                free = [t for t in using if self.pods[t.pod.uid].node is None]
                if free:
                    self.bind(free[which % len(free)], NODES[which % len(NODES)])
            case "finish" | "delete" if using:
                self.stop(using[which % len(using)], gone=what == "delete")
            case "write":
                for write in self.unwritten[: which % 7]:
                    self.keep(write)
                del self.unwritten[: which % 7]
            case "move":
                self.move(SPACES[which % len(SPACES)])
            case "rebuild":
                self.rebuild()
            case "crash":
                self.leader = self.standby
                self.elect()
                self.standby = self.start()
            case _:
                pass

    def see(self, pod: Pod) -> None:
        self.pods[pod.uid] = pod
        self.hear(ev.PodObserved(Millis(self.now), pod))

    def patch(self, order: Release) -> None:
        """Apply a release patch after its intent and all earlier writes are stored."""
        intent = order.intent
        while isinstance(intent, Intend) and intent in self.unwritten:
            self.keep(self.unwritten.pop(0))
        pod = self.pods[intent.ref.uid]
        self.truth[pod.uid] = Truth(pod, [(intent.begin, self.teams[pod.namespace], "")])
        self.answers.append(pod.uid)
        self.see(replace(pod, gates=(), release_annotation=intent.stamp, pool=intent.pool))

    def bind(self, truth: Truth, node: str) -> None:
        pod = self.pods[truth.pod.uid]
        truth.cuts.append((self.now, self.teams[pod.namespace], node))
        started = Millis(self.now // 1000 * 1000)
        self.see(replace(pod, node=NodeName(node), phase=Phase.RUNNING, started_at=started))

    def stop(self, truth: Truth, *, gone: bool) -> None:
        truth.end = self.now
        pod = self.pods.pop(truth.pod.uid)
        if gone:
            self.hear(ev.PodGone(Millis(self.now), pod.uid))
        else:
            self.hear(ev.PodObserved(Millis(self.now), replace(pod, phase=Phase.FINISHED)))

    def move(self, space: str) -> None:
        """Move a namespace to another tenant in one step, so that it always has a tenant."""
        old = self.teams[space]
        new = TEAMS[1 - TEAMS.index(old)]
        self.teams[space] = new
        for engine in (self.leader, self.standby):
            events = [ev.TenantObserved(Millis(self.now), self.tenant(name)) for name in TEAMS]
            effects = [effect for event in events for effect in engine.handle(event)]
            effects += engine.handle(ev.Pass(Millis(self.now)))
            if engine is self.leader:
                self.play(effects)
        for truth in self.truth.values():
            if truth.end is None and truth.pod.namespace == space:
                truth.cuts.append((self.now, new, truth.cuts[-1][2]))

    def settle(self) -> None:
        for write in self.unwritten:
            self.keep(write)
        self.unwritten = []

    def found(self) -> list[UsageRecord]:
        return [*self.runs.ended.values(), *self.runs.running()]

    def used(self, begin: int, end: int) -> Counter[tuple[str, str, str, str]]:
        """Return the true usage by tenant, user, node and namespace."""
        sums: Counter[tuple[str, str, str, str]] = Counter()
        for truth in self.truth.values():
            pod, last = truth.pod, end if truth.end is None else min(truth.end, end)
            ends = [at for at, _, _ in truth.cuts[1:]] + [last]
            for (at, team, node), until in zip(truth.cuts, ends, strict=True):
                span = min(until, last) - max(at, begin)
                if span > 0:
                    sums[team, str(pod.user), node, pod.namespace] += span * pod.demand[GPU]
        return sums


def tallied(
    cluster: Cluster, by: list[GroupBy], begin: int, end: int, step: int | None = None
) -> UsageAggregator:
    tally = UsageAggregator(by, Millis(begin), Millis(end), None if step is None else Millis(step))
    for run in cluster.found():
        tally.add(run)
    return tally


def total(tally: UsageAggregator) -> int:
    return sum(row.spent.get(GPU, 0) for row in tally.rows())


@settings(max_examples=cases(60, 150))
@given(steps=steps, seed=st.integers(0, 10**6))
def test_usage_records_equal_the_real_usage_after_leader_crashes(
    steps: list[tuple[str, int, int]], seed: int
) -> None:
    cluster, random = Cluster(), Random(seed)
    began = cluster.now
    for step in steps:
        cluster.step(*step)
    cluster.now += 1000
    cluster.settle()

    runs = cluster.found()
    assert len({run.id for run in runs}) == len(runs)
    assert not any(run.assumed for run in runs)
    begin = random.randint(began, cluster.now - 1)
    end = random.randint(begin + 1, cluster.now)
    wanted = cluster.used(begin, end)
    all_of = tallied(
        cluster, [GroupBy.TENANT, GroupBy.USER, GroupBy.NODE, GroupBy.WORKLOAD], begin, end
    )
    found = Counter[tuple[str, str, str, str]]()
    for row in all_of.rows():
        tenant, user, node, workload = row.names
        found[tenant, user, node, workload.partition("/")[0]] += row.spent.get(GPU, 0)
    assert found == wanted

    for by in GroupBy:
        assert total(tallied(cluster, [by], begin, end)) == wanted.total()
        step = random.randint(1 + (end - begin) // 50, 1 + end - begin)
        assert total(tallied(cluster, [by], begin, end, step)) == wanted.total()


@settings(max_examples=cases(25, 60))
@given(steps=steps)
def test_usage_records_equal_the_charged_totals(steps: list[tuple[str, int, int]]) -> None:
    cluster = Cluster()
    for what, which, pause in steps:
        if what == "crash" or (what == "move" and cluster.orders):
            continue  # while a release is pending, the ledger charges the first tenant
        cluster.step(what, which, pause)
    while cluster.orders or cluster.answers:  # the ledger charges from the `Release` effect on
        cluster.step("patch", 0, 0)
        cluster.step("answer", 0, 0)
    cluster.now += 1000
    cluster.settle()
    charged = Counter[tuple[str, str]]()
    spent = cluster.leader.queries.usage_totals(Millis(cluster.now))
    for (tenant, user, _), amounts in spent.items():
        charged[tenant, user] += amounts.get(GPU, 0)
    tally = tallied(cluster, [GroupBy.TENANT, GroupBy.USER], 0, cluster.now)
    assert {row.names: row.spent[GPU] for row in tally.rows()} == {
        key: value for key, value in charged.items() if value
    }


@pytest.mark.parametrize("gone", [True, False])
def test_unobserved_end_of_a_pod_is_set_by_the_next_term_and_marked_assumed(gone: bool) -> None:
    cluster = Cluster()
    for what in ("create", "patch", "answer", "bind"):
        cluster.step(what, 0, 1000)
    cluster.settle()
    (run,) = cluster.runs.running()
    cluster.now += 5000
    pod = cluster.pods.pop(run.uid)
    if not gone:  # finished but not deleted
        cluster.pods[pod.uid] = replace(pod, phase=Phase.FINISHED)
    cluster.now += 60_000
    cluster.leader = cluster.start()
    cluster.elect()
    cluster.settle()
    (ended,) = cluster.found()
    assert ended == replace(run, end=Millis(cluster.now), assumed=True)
    assert GATE not in pod.gates


def test_redis_without_data_gets_running_usage_records_back_unchanged() -> None:
    cluster = Cluster()
    for what in ("create", "patch", "answer", "bind"):
        cluster.step(what, 0, 1000)
    cluster.settle()
    before = cluster.runs.running()
    cluster.runs = Runs()
    cluster.rebuild()
    assert cluster.runs.running() == before
