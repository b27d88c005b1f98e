"""The published fair order and the rules of reclaim hold for elastic gangs.

An elastic gang is its minimum as one workload. Each further pod is a workload that arrives when the
minimum is released. The reference model knows only such workloads, so the engine is compared with
it at every release.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction
from random import Random

import pytest

from app.core import events as ev
from app.core.effects import Effect, EvictForReclaim, Release
from app.core.model import (
    DEFAULT_POOL,
    Millis,
    Node,
    NodeName,
    Quota,
    Resource,
    Tenant,
    TenantName,
    UserName,
)
from app.core.policy import Policy, Reclaim
from app.core.quantities import PODS
from app.sim.cluster.jobs import SimulatedJob
from app.sim.cluster.virtual_cluster import VirtualCluster
from app.sim.cluster.workload import SimulatedWorkload
from tests.property.engine_driver import GPU, MANAGED, Drive, Started, pods_of, rules_of
from tests.property.random_clusters import NO_RESERVATION, POOL, Script, Submit, dense
from tests.property.reference_engine import Job, Naive, Site, Team
from tests.support.depth import cases

EXACT = 1 + Fraction(1, 10**9)


class ElasticDrive(Drive):
    """A drive with elastic gangs. The further pods of a gang become workloads at its release."""

    def __post_init__(self) -> None:
        self.later_pods: dict[str, list[Job]] = {}
        self.gangs: dict[str, list[Job]] = {}
        super().__post_init__()

    def submit(self, job: Job, lasting: int | None = None) -> None:
        super().submit(job, lasting)
        further = further_of(job)
        self.gangs[job.uid], self.later_pods[job.uid] = further, list(further)
        for each in further:
            for pod in pods_of(each):
                self.pods[pod.uid] = pod
                self._hear(ev.PodObserved(self._at, pod))

    def _release(self, job: Job, releases: list[Release]) -> None:
        super()._release(job, releases)
        for each in self.later_pods.pop(job.uid, ()):
            self.jobs[each.uid] = self.ever[each.uid] = each
            if self.judge:
                self.judge.jobs[each.uid] = each

    def end(self, uid: str, evicted: bool = False) -> None:
        super().end(uid, evicted)
        for each in self.gangs.pop(uid, ()):
            if each.uid in self.jobs:
                super().end(each.uid, evicted)
                continue
            for pod in pods_of(each):
                del self.pods[pod.uid]
                self._hear(ev.PodGone(self._at, pod.uid))


def further_of(job: Job) -> list[Job]:
    """Return the further pods of a gang. Their uids are behind those of its minimum."""
    count = max(0, job.gang_size - job.size)
    return [replace(job, uid=f"{job.uid}~{number:02}", size=1, nodes=[]) for number in range(count)]


def elastic(submit: Submit, further: int) -> Job:
    """Return the minimum of a gang with this number of further pods."""
    job = submit.job()
    if not further:
        return job
    return replace(job, gang=job.uid, gang_size=job.size + further, gang_least=job.size)


def played(script: Script, further: Sequence[int], policy: Policy = NO_RESERVATION) -> ElasticDrive:
    """Play a script in which the n-th workload has that many further pods."""
    judge = Naive({GPU})
    judge.rules = rules_of(policy)
    drive = ElasticDrive(policy, judge=judge, exact=not policy.history)
    drive.site("n", Site(POOL, {GPU: script.capacity}))
    for team in script.teams:
        drive.team(team)
    for submit, more in zip(script.work, further, strict=True):
        drive.later(submit.at, elastic(submit, more), submit.lasting)
    drive.run(40)
    return drive


def drawn(seed: int) -> tuple[Script, list[int]]:
    dice = Random(seed)
    script = replace(dense(seed, largest=2), policy=NO_RESERVATION)
    return script, [dice.choice((0, 0, 1, 3, 6)) for _ in script.work]


@pytest.mark.parametrize("seed", range(cases(15, 200)))
def test_every_release_is_the_next_of_the_reference_order(seed: int) -> None:
    """The drive asks the reference before each release, and after each cycle for work left over."""
    drive = played(*drawn(seed))
    assert [each for each in drive.decisions if isinstance(each, Started)]


def test_the_published_bound_holds_for_further_pods() -> None:
    drives = [played(*drawn(seed)) for seed in range(100, 100 + cases(10, 150))]
    pairs = [pair for drive in drives for pair in drive.pairs]
    assert any("~" in each.uid for drive in drives for each in drive.decisions)
    assert len(pairs) > 50 * len(drives)
    assert max(left / right for left, right in pairs) <= EXACT
    assert max(drive.engine.drift.ratio for drive in drives) <= float(EXACT)


@pytest.mark.parametrize("seed", range(cases(5, 80)))
def test_elastic_gangs_of_others_leave_a_tenant_its_equal_part(seed: int) -> None:
    dice = Random(seed)
    teams = tuple(Team(f"t{number}") for number in range(dice.randint(2, 4)))
    mine = [Submit(f"x{number:03}", "t0") for number in range(60)]
    others = [
        Submit(f"{number:03}", dice.choice(teams[1:]).name, pods=dice.randint(1, 4))
        for number in range(20)
    ]
    script = Script(dice.randint(6, 30), teams, (*others, *mine))
    more = [dice.randint(0, 12) for _ in others]
    drive = played(script, [*more, *(0 for _ in mine)])
    assert drive.used("t0") >= Fraction(script.capacity, len(teams)) - 4


@pytest.mark.parametrize("seed", range(cases(5, 80)))
def test_the_priority_of_an_elastic_gang_takes_nothing_from_others(seed: int) -> None:
    """A head with a raised priority may be younger, so the tenant may lose ties: others gain."""
    script, more = drawn(1000 + seed)
    script = script.but(lambda submit: replace(submit, size=1, pods=2, priority=0))
    favoured = script.teams[0].name
    raised = script.but(
        lambda submit: (
            replace(submit, priority=int(submit.uid) % 4) if submit.tenant == favoured else submit
        )
    )
    alike = [3 for _ in more]
    script, raised = (replace(s, work=tuple(lasting(s.work))) for s in (script, raised))
    plain, urgent = (releases(played(each, alike), favoured) for each in (script, raised))
    for instant in sorted({at for at, _ in plain}):
        before, after = (sum(at <= instant for at, _ in each) for each in (plain, urgent))
        assert before <= after <= before + len(script.teams)


@pytest.mark.parametrize("seed", range(cases(5, 80)))
def test_higher_weight_costs_an_elastic_tenant_at_most_one_minimal_gang(seed: int) -> None:
    script, more = drawn(5000 + seed)
    script = replace(script, work=tuple(lasting(script.work)))
    name = script.teams[0].name
    low, high = (played(script.weigh(name, Fraction(n)), more).used(name) for n in (1, 3))
    assert high >= low - max(each.size * each.pods for each in script.work)


@pytest.mark.parametrize("seed", range(cases(5, 80)))
def test_the_order_of_elastic_gangs_within_an_instant_changes_no_release(seed: int) -> None:
    script, more = drawn(6000 + seed)
    work = list(zip(script.work, more, strict=True))

    def started(pairs: Sequence[tuple[Submit, int]]) -> list[str]:
        drive = ElasticDrive(NO_RESERVATION)
        drive.site("n", Site(POOL, {GPU: script.capacity}))
        for team in script.teams:
            drive.team(team)
        for submit, further in pairs:
            drive.submit(elastic(submit, further))
        drive.settle()
        return [each.uid for each in drive.decisions if isinstance(each, Started)]

    assert started(work) == started(Random(seed).sample(work, len(work)))


FORMS = {"one gang": (1, 29), "six gangs": (6, 4), "single pods": (30, 0)}
"""A demand of thirty pods as this number of gangs, each with this number of further pods."""


@pytest.mark.parametrize("seed", range(cases(4, 60)))
def test_a_demand_split_into_other_gangs_changes_no_release_of_others(seed: int) -> None:
    script, more = drawn(7000 + seed)
    name = script.teams[0].name
    pairs = zip(lasting(script.work), more, strict=True)
    others = [(submit, further) for submit, further in pairs if submit.tenant != name]
    # Nothing binds the pods, so the limit of unbound pods without a controller would decide.
    policy = replace(NO_RESERVATION, max_unbound=1000, max_unowned_unbound=1000)
    found = []
    for count, further in FORMS.values():
        mine = [(Submit(f"x{number:03}", name), further) for number in range(count)]
        work, extra = zip(*others, *mine, strict=True)
        drive = played(replace(script, work=work), extra, policy)
        found.append((drive.used(name), releases(drive, without=name)))
    assert found[0] == found[1] == found[2]


def lasting(work: Sequence[Submit]) -> list[Submit]:
    """Return the workloads without an end, so that only the order decides."""
    return [replace(submit, lasting=None) for submit in work]


def releases(drive: Drive, without: str) -> list[tuple[int, str]]:
    found = [each for each in drive.decisions if isinstance(each, Started)]
    return [(each.at, each.uid) for each in found if drive.ever[each.uid].tenant != without]


@pytest.mark.parametrize("seed", range(cases(5, 80)))
def test_a_new_leader_releases_the_same_further_pods(seed: int) -> None:
    script, more = drawn(2000 + seed)
    one, other = (ElasticDrive(NO_RESERVATION) for _ in range(2))
    for drive in (one, other):
        drive.site("n", Site(POOL, {GPU: script.capacity // 2}))
        for team in script.teams:
            drive.team(team)
        for submit, further in zip(script.work, more, strict=True):
            drive.submit(elastic(submit, further))
        drive.settle()
    other.restart()
    for drive in (one, other):
        drive.site("n", Site(POOL, {GPU: script.capacity}))
        drive.settle()
    assert [d.uid for d in one.decisions if isinstance(d, Started)] == [
        d.uid for d in other.decisions if isinstance(d, Started)
    ]


# Reclaim.


class Court(VirtualCluster):
    """Checks each reclaim of elastic gangs. A loop of evictions ends the test."""

    def __init__(self, gpus: int, tenants: Sequence[Tenant], policy: Policy) -> None:
        self.whole = self.shrunk = 0
        self.lost: set[tuple[str, str]] = set()
        node = Node(NodeName("n0"), {}, {Resource(GPU): gpus, PODS: 10_000}, True)
        super().__init__(MANAGED, [node], tenants, policy=policy)
        handle = self.engine.handle
        self.engine.handle = lambda event: self._judged(handle(event))  # type: ignore[method-assign]

    def _judged(self, effects: list[Effect]) -> list[Effect]:
        """Check the evictions of one pass before the first one is carried out."""
        orders = [each for each in effects if isinstance(each, EvictForReclaim)]
        evicted = Counter(self._jobs[order.ref.uid] for order in orders)
        for job, count in evicted.items():
            spare = len(job.running) - job.needed
            assert count == len(job.running) or count <= spare, f"{job.work.name} loses {count}"
            self.whole += count == len(job.running) and job.needed > 1
            self.shrunk += count < len(job.running)
        assert self.whole + self.shrunk < 2000, "evictions do not end"
        for order in orders:
            self._take(self._jobs[order.ref.uid], self._jobs[order.beneficiary.uid])
        return effects

    def _take(self, loser: SimulatedJob, taker: SimulatedJob) -> None:
        assert loser.work.tenant != taker.work.tenant
        assert (taker.work.name, loser.work.name) not in self.lost, "a loop"
        self.lost.add((loser.work.name, taker.work.name))


def court(seed: int, mode: Reclaim) -> Court:
    dice = Random(seed)
    gpus = dice.randint(8, 30)
    tenants = [
        tenant(f"t{n}", dice.choice((0, gpus // 4)), dice) for n in range(dice.randint(2, 4))
    ]
    policy = Policy(reclaim=mode, min_runtime=Millis(0), reserve_after=Millis(10**12))
    world = Court(gpus, tenants, policy)
    for number in range(25):
        world.advance_to(Millis(number * 7_200_000))
        world.lost.clear()
        pods = dice.choice((1, 1, 2, 4, 8))
        least = max(1, pods - 1) if seed % 2 else 1
        owner = dice.choice(tenants[1:] if number < 10 else tenants[:2]).name  # borrowers first
        lasts = None if number < 10 else Millis(3_600_000 * dice.randint(1, 40))
        demand = {Resource(GPU): 1, PODS: 1}
        work = SimulatedWorkload(
            f"w{number}", owner, UserName(owner), world.now, demand, pods, lasts, min_pods=least
        )
        world.add_workload(work)
        world.advance_to(world.now)
    return world


def tenant(name: str, guarantee: int, dice: Random) -> Tenant:
    quotas = {DEFAULT_POOL: Quota({Resource(GPU): guarantee})} if guarantee else {}
    weight = Fraction(dice.choice((1, 1, 2)))
    return Tenant(TenantName(name), Millis(0), weight, namespaces=(name,), quotas=quotas)


@pytest.mark.parametrize("mode", [Reclaim.GUARANTEE, Reclaim.FAIR])
def test_no_reclaim_leaves_part_of_a_minimum_and_no_eviction_is_reversed(mode: Reclaim) -> None:
    worlds = [court(seed, mode) for seed in range(cases(15, 300))]
    assert sum(world.shrunk for world in worlds) > 1
    assert sum(world.whole for world in worlds) > 1
